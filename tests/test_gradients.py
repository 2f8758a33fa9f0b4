"""The gradient of a block, every parameter and the input, against finite differences: each combination of switches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from wherefrom.attention import Mask
from wherefrom.model.attention_function import fused, plain
from wherefrom.model.config import Config
from wherefrom.model.positions import Rotary
from wherefrom.model.transformer import Block, Reading

BASE = Config(
    architecture="wherefrom",
    layers=1,
    encoder_layers=1,
    start_id=0,
    width=5,
    heads=2,
    kv_heads=1,
    head_size=4,
    feed_forward=7,
    vocabulary=2,
    context=9,
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
)
SWITCHES = [
    {"norm_first": first, "norm": norm, "activation": activation, "gated": gated, "query_key_norm": normed}
    for first, norm, activation, gated, normed in product(
        (True, False), ("rms", "layer"), ("silu", "gelu", "gelu_tanh", "relu"), (True, False), (True, False)
    )
]
STEP = 1e-4


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def block_of(config: Config) -> Block:
    block = Block(config, 0, "decoder", "").double()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(block.named_parameters()):
            # No larger, or attention is nearly a choice and the gradients by its scores drown in rounding.
            parameter.copy_(0.7 * drawn(parameter.shape, number) + ("norm.weight" in name))
    return block


def slopes(block: Block, given: dict[str, Tensor], reading: Reading, weight: Tensor) -> dict[str, Tensor]:
    """Central differences, by every number that is given, of a block's weighted output; their error is O(STEP^4)."""
    names = list(given)
    flat = torch.cat([given[name].flatten() for name in names])

    def value(numbers: Tensor) -> Tensor:
        pieces = numbers.split([given[name].numel() for name in names])
        own = {name: piece.view_as(given[name]) for name, piece in zip(names, pieces, strict=True)}
        changed = replace(reading, memory=own.pop("memory", None), memory_keys={})
        return (functional_call(block, own, (own.pop("x"), changed)) * weight).sum()

    moved = STEP * torch.eye(len(flat), dtype=torch.float64)
    with torch.no_grad():
        near, far = (vmap(value)(flat + n * moved) - vmap(value)(flat - n * moved) for n in (1, 2))
    found = (8 * near - far) / (12 * STEP)
    pieces = found.split([given[name].numel() for name in names])
    return {name: piece.view_as(given[name]) for name, piece in zip(names, pieces, strict=True)}


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "-".join(map(str, switches.values())))
@pytest.mark.parametrize("cross", [False, True], ids=["alone", "cross"])
@pytest.mark.parametrize("rotary", [False, True], ids=["unturned", "rotary"])
def test_gradients_are_finite_differences(switches: dict[str, object], cross: bool, rotary: bool) -> None:
    config = replace(BASE, **switches, encoder_layers=int(cross))
    block, positions = block_of(config), torch.arange(4)
    given = {"x": drawn((1, 4, 5), 90)} | ({"memory": drawn((1, 3, 5), 91)} if cross else {})
    given = {name: tensor.requires_grad_() for name, tensor in given.items()}
    reading = Reading(attention=plain, mask=Mask(), rotation=Rotary(4, 10.0)(positions) if rotary else None)
    weight = drawn((1, 4, 5), 92)
    output = block(given["x"], replace(reading, attention=fused, memory=given.get("memory")))
    (output * weight).sum().backward()
    numbers = given | dict(block.named_parameters())
    expected = slopes(block, {name: tensor.detach() for name, tensor in numbers.items()}, reading, weight)
    largest = max(float(tensor.grad.abs().max()) for tensor in numbers.values())
    for name, tensor in numbers.items():
        size = float(tensor.grad.abs().max())
        error = float((tensor.grad - expected[name]).abs().max())
        # Adding one vector to every key adds the same to a row's scores: nothing changes.
        nothing = (
            name.endswith("attention.key.bias") and not config.query_key_norm and not (rotary and "cross" not in name)
        )
        assert error <= (1e-9 * largest if nothing else 1e-6 * size), (name, error, size)
        assert nothing == (size < 1e-9 * largest)
