"""Random weights (floor 2): where training begins."""

from __future__ import annotations

import math

import torch
from torch import nn

from wherefrom.checks import as_index
from wherefrom.errors import InputError
from wherefrom.model.config import Config
from wherefrom.model.layers import Embedding, Linear
from wherefrom.model.transformer import Block, Transformer

SPREAD = 0.02


def draw(config: Config, seed: int) -> Transformer:
    """Return a transformer with random weights, on the CPU, ready to be trained.

    Matrices and embeddings are normal with standard deviation 0.02 (matrices of narrow models with more, up to 1 / (2
    sqrt(width))), those that write to the residual stream divided by sqrt(2 * layers), so that the stream does not grow
    with the depth (Radford et al. 2019, section 2.3); biases are 0, norms 1. Where the embedding is scaled up on the
    way in (the original), it is drawn with 1 / sqrt(width) instead.

    Args:
        config: its shape.
        seed: the same seed draws the same weights.

    Raises:
        InputError: a seed that is not from 0 to 2^63 - 1.
    """
    generator = torch.Generator().manual_seed(_checked(seed))
    model = Transformer(config)
    for module in model.modules():
        if isinstance(module, Linear):
            nn.init.normal_(module.weight, std=_spread(config), generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Embedding):  # behind the head, which may be the same matrix
            scaled = config.embedding_scale != 1.0
            nn.init.normal_(module.weight, std=config.width**-0.5 if scaled else SPREAD, generator=generator)
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, Block):
                writers = [block.attention.output, block.feed_forward.down]
                writers += [] if block.cross_attention is None else [block.cross_attention.output]
                for writer in writers:
                    writer.weight /= (2 * config.layers) ** 0.5
    return model.train()


def _checked(seed: int) -> int:
    number = as_index(seed)
    if number is None or not 0 <= number < 2**63:
        expected, way_out = "a whole number from 0 to 2^63 - 1", "0 is as good as any."
        raise InputError("the seed", expected=expected, given=f"{seed!r}", way_out=way_out, value=seed)
    return number


def _spread(config: Config) -> float:
    """Return the standard deviation of a matrix: 0.02 for the widths of GPT-2, 1 / (2 sqrt(width)) for narrower models.

    The two meet at a width of 625, near GPT-2's 768; with 0.02 a narrow model would begin with scores and logits near 0
    and learn slowly.
    """
    return max(SPREAD, 0.5 / math.sqrt(config.width))
