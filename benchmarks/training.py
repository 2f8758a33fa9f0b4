"""A training step of our GPT-2 and of transformers' with SDPA: same shape, same weights, same loop, same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import Result, at_least, paired, require
from wherefrom import Config
from wherefrom.model.layouts import parameters
from wherefrom.model.transformer import Transformer

SHAPES = (
    {"layers": 4, "width": 256, "heads": 8, "vocabulary": 1024, "context": 256, "batch": 16},
    {"layers": 6, "width": 384, "heads": 6, "vocabulary": 4096, "context": 256, "batch": 8},
)


def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    for shape in SHAPES:
        yield _at_shape(rounds=rounds, **shape)


def _at_shape(*, layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int, rounds: int) -> Result:
    theirs = _theirs(layers, width, heads, vocabulary, context)
    config = Config.decoder(
        layers=layers, width=width, heads=heads, vocabulary=vocabulary, context=context, style="gpt2"
    )
    weights = parameters(config, theirs.state_dict())
    ours = Transformer.from_parameters(config, {name: weight.clone() for name, weight in weights.items()})
    ids = torch.randint(vocabulary, (batch, context + 1), generator=torch.Generator().manual_seed(0))
    our_step = _stepper(ours.train().requires_grad_(True), ours, ids)
    their_step = _stepper(theirs, lambda read: theirs(read, use_cache=False).logits, ids)
    for _ in range(3):
        one, other = our_step(), their_step()
        require(abs(one - other) <= 1e-3, f"the losses of the same step differ: {one} and {other}")
    size = f"{layers} layers, width {width}, {batch} x {context} tokens"
    ratios = paired(their_step, our_step, rounds=rounds)
    checked = "same weights, same losses over the first steps"
    return at_least(f"training tokens/s, ours / transformers' GPT-2 with SDPA, {size}", ratios, 1.0, checked)


def _theirs(layers: int, width: int, heads: int, vocabulary: int, context: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    without_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary, "n_positions": context}
    config = GPT2Config(**shape, **without_dropout, attn_implementation="sdpa", bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).train()


def _stepper(model: torch.nn.Module, logits: Callable[[Tensor], Tensor], ids: Tensor) -> Callable[[], float]:
    """Return a function that makes one update and returns the loss before it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        loss = F.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step
