"""The original Transformer: stack by stack against torch.nn.Transformer with the same weights, and its positions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import random_weights, right_padding, some_ids, worst
from wherefrom.model.config import Config
from wherefrom.model.positions import sinusoids
from wherefrom.model.transformer import Attention, Block, Stack, Transformer

SIZES = {"layers": 3, "encoder_layers": 2, "width": 35, "heads": 5, "feed_forward": 67}
SOURCE, WRITTEN = [29, 17, 1], [19, 19, 7]  # lengths of a batch of three


def ours_of(**changes: Any) -> Transformer:
    """The original with the last norm of each stack, which torch adds."""
    sizes = {**SIZES, "vocabulary": 257, "context": 31, "start_id": 256}
    return random_weights(Config.encoder_decoder(**sizes, final_norm=True, **changes))


def torchs_of(model: Transformer) -> nn.Transformer:
    """torch's own, given the weights of ours."""
    config = model.config
    shape: dict[str, Any] = {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": config.feed_forward,
        "dropout": 0.0,
        "activation": config.activation,
        "layer_norm_eps": config.norm_epsilon,
        "batch_first": True,
        "norm_first": config.norm_first,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape), config.encoder_layers, nn.LayerNorm(35), enable_nested_tensor=False
    )
    made = nn.Transformer(custom_encoder=encoder, num_decoder_layers=config.layers, **shape)
    assert model.encoder is not None
    with torch.no_grad():
        for theirs, stack in ((made.encoder, model.encoder), (made.decoder, model)):
            _copy(stack.norm, theirs.norm)
            for layer, block in zip(theirs.layers, stack.blocks, strict=True):
                _copy_block(block, layer)
    return made.eval()


def _copy(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())


def _copy_block(ours: Block, theirs: nn.Module) -> None:
    _copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if ours.cross_attention is not None:
        _copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        _copy(norm, getattr(theirs, f"norm{number}"))
    _copy(ours.feed_forward.up, theirs.linear1)
    _copy(ours.feed_forward.down, theirs.linear2)


def _copy_attention(ours: Attention, theirs: nn.Module) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([one.weight for one in projections]))
    theirs.in_proj_bias.copy_(torch.cat([one.bias for one in projections]))
    _copy(ours.output, theirs.out_proj)


def embedded(stack: Stack, ids: Tensor) -> Tensor:
    return stack.embed(ids, torch.arange(ids.shape[1]))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_both_stacks_are_those_of_torch(
    norm_first: bool, activation: str, padded: bool, dtype: torch.dtype, most: float
) -> None:
    ours = ours_of(norm_first=norm_first, activation=activation).to(dtype)
    theirs = torchs_of(ours).to(dtype)
    source, written = some_ids(3, 29), some_ids(3, 19, seed=4)
    read, real = (right_padding(SOURCE, 29), right_padding(WRITTEN, 19)) if padded else (None, None)
    later = ~torch.ones(19, 19).tril().bool()
    hidden: dict[str, Any] = {"src_key_padding_mask": None if read is None else ~read}
    with torch.no_grad():
        right = theirs.encoder(embedded(ours.encoder, source), **hidden)
        memory = ours.encode(source, padding=read)
        assert worst(memory[read] if padded else memory, right[read] if padded else right) <= most
        hidden |= {"memory_key_padding_mask": hidden["src_key_padding_mask"]}
        hidden |= {"tgt_key_padding_mask": None if real is None else ~real}
        right = theirs(embedded(ours.encoder, source), embedded(ours, written), tgt_mask=later, **hidden)
        stream = ours.stream(written, memory=memory, memory_padding=read, padding=real)
        left = ours.norm(stream)
    assert worst(left[real] if padded else left, right[real] if padded else right) <= most
    assert right.std() > 0.5


def test_positions_are_the_papers_with_its_columns_sorted() -> None:
    """Section 3.5: sin in the even columns and cos in the odd ones; here all sines come first."""
    width, positions = 7, torch.tensor([0, 1, 12, 600])
    vectors = sinusoids(positions, width)
    for row, position in enumerate(positions.tolist()):
        angles = [position / 10_000 ** (2 * (column // 2) / width) for column in range(width)]
        paper = [math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)]
        assert vectors[row].tolist() == pytest.approx(paper[::2] + paper[1::2], abs=1e-4)


def test_the_base_model_of_the_paper_has_65_million_numbers() -> None:
    """Table 3: 65 million, with a shared vocabulary of about 37,000 tokens (section 5.1)."""
    config = Config.encoder_decoder(layers=6, width=512, heads=8, vocabulary=37_000, context=512, start_id=0)
    assert (config.feed_forward, config.head_size, config.encoder_layers) == (2048, 64, 6)
    with torch.device("meta"):  # shapes alone
        count = sum(parameter.numel() for parameter in Transformer(config).parameters())
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert count == 37_000 * 512 + 6 * (encoder + decoder) == 63_082_496
    assert abs(count - 65e6) < 0.03 * 65e6
