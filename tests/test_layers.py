"""The linear layer when one token is read alone: the same product in pieces, and when it is taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from families import random_model, some_ids, worst
from wherefrom.model import layers
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.layers import PIECES, SMALL, Linear, one_row

INPUTS, OUTPUTS = 521, 8 * 67  # the inputs are prime


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    layer = Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=number))
    return layer


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what went through `one_row`."""
    seen: list[tuple[int, ...]] = []

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(tuple(x.shape))
        return one_row(x, weight, bias)

    monkeypatch.setattr(layers, "one_row", watched)
    return seen


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(INPUTS,), (1, INPUTS), (1, 1, INPUTS)])
@pytest.mark.parametrize("outputs", [OUTPUTS, 8, 4096])
def test_one_row_is_the_linear_map(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    """A sum of 521 products of unit numbers: two orders of adding differ by some of its roundings."""
    x, weight, b = drawn(*shape), drawn(outputs, INPUTS, seed=2), drawn(outputs, seed=3) if bias else None
    ours, expected = one_row(x, weight, b), F.linear(x.double(), weight.double(), None if b is None else b.double())
    assert ours.shape == (*shape[:-1], outputs)
    assert worst(ours.double(), expected) <= 1e-4
    assert worst(ours, F.linear(x, weight, b)) <= 1e-4
    double = one_row(x.double(), weight.double(), None if b is None else b.double())
    assert worst(double, expected) <= 1e-12


@pytest.mark.parametrize("bias", [False, True])
def test_a_token_alone_goes_through_it_while_gradients_are_off(taken: list[tuple[int, ...]], bias: bool) -> None:
    layer, x = layer_of(INPUTS, OUTPUTS, bias=bias), drawn(1, 1, INPUTS)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            y = layer(x)
        assert taken.pop() == (1, 1, INPUTS)
        assert worst(y, F.linear(x, layer.weight, layer.bias)) <= 1e-4
    y = layer(x)
    assert (taken, y.requires_grad) == ([], True)
    assert torch.equal(y, F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize(
    ("inputs", "outputs", "shape"),
    [
        (INPUTS, OUTPUTS, (1, 2, INPUTS)),  # two tokens
        (INPUTS, OUTPUTS, (2, 1, INPUTS)),
        (INPUTS, OUTPUTS + 1, (1, 1, INPUTS)),  # no whole pieces
        (511, 512, (1, 1, 511)),  # too small to be worth it
    ],
)
def test_all_else_goes_through_torchs_own(
    taken: list[tuple[int, ...]], inputs: int, outputs: int, shape: tuple[int, ...]
) -> None:
    layer, x = layer_of(inputs, outputs), drawn(*shape)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert taken == []


def test_a_matrix_that_lies_transposed_goes_through_torchs_own(taken: list[tuple[int, ...]]) -> None:
    layer, x = layer_of(INPUTS, OUTPUTS), drawn(1, 1, INPUTS)
    layer.weight = torch.nn.Parameter(layer.weight.detach().T.contiguous().T, requires_grad=False)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert taken == []


def test_where_it_begins(taken: list[tuple[int, ...]]) -> None:
    assert (SMALL, PIECES) == (512 * 512, 8)
    with torch.no_grad():
        layer_of(512, 512)(drawn(1, 512))
    assert taken == [(1, 512)]


def test_a_pass_over_one_token_takes_it(taken: list[tuple[int, ...]]) -> None:
    model = random_model("llama", layers=2, width=64, feed_forward=4096)  # three matrices a layer at the threshold
    ids, cache = some_ids(1, 6), KeyValueCache(model.config, 6)
    with torch.no_grad():
        expected = model(ids)
        parts = [model(ids[:, :5], cache=cache)]
        assert taken == []
        parts.append(model(ids[:, 5:], cache=cache))
    assert taken == 2 * [(1, 1, 64), (1, 1, 64), (1, 1, 4096)]
    assert worst(torch.cat(parts, dim=1), expected) <= 1e-4


@pytest.mark.parametrize("shape", [(1, 1, 61), (2, 37, 61), (3, 5, 4, 61)])
def test_our_rms_norm_is_torchs(shape: tuple[int, ...]) -> None:
    ours, theirs = layers.RMSNorm(61, eps=1e-5), torch.nn.RMSNorm(61, eps=1e-5)
    weight, x = drawn(61, seed=2), 3.0 * drawn(*shape)
    with torch.no_grad():
        ours.weight.copy_(weight)
        theirs.weight.copy_(weight)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)
    assert ours(x.bfloat16()).dtype == torch.promote_types(torch.bfloat16, ours.weight.dtype)
    assert ours(x.double()).dtype == torch.float64
    gradients = []
    for norm in (ours, theirs):
        leaf = x.clone().requires_grad_(True)
        norm(leaf).square().sum().backward()
        gradients.append((leaf.grad, norm.weight.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)
