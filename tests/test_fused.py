"""The kernels against the page: `attend` and its slow twin, every number format, every trap that was seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from wherefrom import attention as page
from wherefrom.attention import Mask
from wherefrom.capture.fused import Limits, attend, attend_in_strips, merge
from wherefrom.errors import InputError

FORMATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FLOAT32_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Case:
    """One call of attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    scale: float

    @property
    def limits(self) -> Limits:
        return Limits.of_mask(self.mask, self.q.shape[2], self.k.shape[2], self.q)


def case(
    batch: int,
    heads: int,
    kv_heads: int,
    destinations: int,
    sources: int,
    size: int,
    mask: Mask,
    *,
    value_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    scale: float | None = None,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    shapes = (heads, destinations, size), (kv_heads, sources, size), (kv_heads, sources, value_size or size)
    q, k, v = (torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return Case(q, k, v, mask, size**-0.5 if scale is None else scale)


def explicit(heads: int, destinations: int, sources: int, *, seed: int = 1, share: float = 0.4) -> Mask:
    """A mask of its own for each head, drawn at random; some rows may come out dead."""
    drawn = np.random.default_rng(seed).random((heads, destinations, sources)) < share
    return Mask.bidirectional(explicit=drawn)


def exact(c: Case) -> tuple[Tensor, Tensor]:
    """Outputs and lse by the page, in double precision from the very numbers that the kernel gets."""
    each = [
        page.attend(*(x[row].double().numpy() for x in (c.q, c.k, c.v)), c.mask, scale=c.scale)
        for row in range(len(c.q))
    ]
    outputs = torch.from_numpy(np.stack([one.output.filled(0.0) for one in each]))
    return outputs, torch.from_numpy(np.stack([one.lse.filled(-np.inf) for one in each]))


def usual(c: Case) -> tuple[Tensor, Tensor]:
    """Outputs and lse in plain lines, every step in the inputs' own number format."""
    group = c.q.shape[1] // c.k.shape[1]
    k, v = c.k.repeat_interleave(group, dim=1), c.v.repeat_interleave(group, dim=1)
    allowed = torch.from_numpy(c.mask.dense(c.q.shape[2], k.shape[2]))
    scores = (c.scale * (c.q @ k.transpose(-1, -2))).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v, torch.logsumexp(scores, dim=-1)


def off(found: Tensor, right: Tensor) -> float:
    """The largest distance; rows that are marked must be marked in both, and alike."""
    assert found.shape == right.shape
    found = found.double()
    marked = right == -torch.inf
    assert torch.equal(found == -torch.inf, marked)
    return float((found - right).masked_fill(marked, 0.0).abs().max())


def require_right(c: Case, output: Tensor, lse: Tensor) -> None:
    """At most thrice as far from the page as a plain run in the same format, and one rounding of the result.

    An error of a score is the relative error of its weight, and scores are as large as their lse: one step there.
    """
    right_output, right_lse = exact(c)
    plain_output, plain_lse = usual(c)
    eps = torch.finfo(c.q.dtype).eps
    finite = right_lse[right_lse > -torch.inf].abs()
    size = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    rounding = eps * size * float(c.v.double().abs().max())
    assert off(output, right_output) <= 3 * off(plain_output, right_output) + rounding
    rounding = max(eps, FLOAT32_EPS) * size
    assert off(lse, right_lse) <= 3 * off(plain_lse, right_lse) + rounding


CASES = {
    "causal": lambda dtype: case(1, 6, 2, 37, 37, 10, Mask(), dtype=dtype),
    "causal, longer than a block of the kernel": lambda dtype: case(1, 3, 1, 701, 701, 64, Mask(), dtype=dtype),
    "a cache before it": lambda dtype: case(2, 4, 2, 5, 29, 8, Mask(offset=24), dtype=dtype),
    "no cache, and yet an offset": lambda dtype: case(1, 2, 1, 11, 11, 8, Mask(offset=4), dtype=dtype),
    "one query": lambda dtype: case(1, 9, 3, 1, 97, 64, Mask(offset=96), dtype=dtype),
    "one key": lambda dtype: case(2, 5, 1, 1, 1, 3, Mask(), dtype=dtype),
    "one key, many queries": lambda dtype: case(1, 2, 2, 13, 1, 7, Mask.bidirectional(), dtype=dtype),
    "everything": lambda dtype: case(1, 4, 4, 23, 31, 16, Mask.bidirectional(), dtype=dtype),
    "a window": lambda dtype: case(1, 4, 2, 300, 300, 16, Mask(window=5), dtype=dtype),
    "heads with masks of their own": lambda dtype: case(2, 6, 3, 19, 41, 11, explicit(6, 19, 41), dtype=dtype),
    "dead rows": lambda dtype: case(1, 6, 2, 43, 3, 11, explicit(6, 43, 3), dtype=dtype),
    "only dead rows": lambda dtype: case(1, 2, 1, 5, 7, 4, explicit(2, 5, 7, share=0.0), dtype=dtype),
    "only the last of many keys": lambda dtype: case(
        1, 2, 1, 3, 1031, 8, Mask.bidirectional(explicit=np.tile(np.arange(1031) >= 1030, (3, 1))), dtype=dtype
    ),
    "another scale": lambda dtype: case(1, 2, 1, 17, 17, 8, Mask(), dtype=dtype, scale=3.0),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right(name: str, dtype: torch.dtype) -> None:
    c = CASES[name](dtype)
    output, lse, kernel = attend(c.q, c.k, c.v, limits=c.limits, scale=c.scale)
    assert kernel == "torch flash, CPU"
    assert (output.dtype, lse.dtype) == (dtype, torch.float32)
    require_right(c, output, lse)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strip", [1, 7, 128])
def test_the_slow_twin_is_right(name: str, dtype: torch.dtype, strip: int) -> None:
    c = CASES[name](dtype)
    if c.q.shape[2] > 100:
        strip += 90  # so that a long text is not a test of patience
    output, lse = attend_in_strips(c.q, c.k, c.v, limits=c.limits, scale=c.scale, strip=strip)
    assert (output.dtype, lse.dtype) == (dtype, torch.float64 if dtype == torch.float64 else torch.float32)
    require_right(c, output, lse)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(*[st.integers(1, most) for most in (2, 3, 3, 40, 70, 13)]),
    strip=st.integers(1, 50),
    dtype=st.sampled_from(FORMATS),
    kind=st.sampled_from(["bidirectional", "causal", "explicit"]),
)
def test_any_shape(seed: int, sizes: tuple[int, ...], strip: int, dtype: torch.dtype, kind: str) -> None:
    batch, group, kv_heads, destinations, sources, size = sizes
    masks = {
        "bidirectional": Mask.bidirectional(),
        "causal": Mask(offset=max(0, sources - destinations)),
        "explicit": explicit(group * kv_heads, destinations, sources, seed=seed),
    }
    c = case(batch, group * kv_heads, kv_heads, destinations, sources, size, masks[kind], dtype=dtype, seed=seed)
    require_right(c, *attend(c.q, c.k, c.v, limits=c.limits, scale=c.scale)[:2])
    require_right(c, *attend_in_strips(c.q, c.k, c.v, limits=c.limits, scale=c.scale, strip=strip))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_two_keys_and_e(dtype: torch.dtype) -> None:
    """Scores 0 and 1 give the weights 1/(1 + e) and e/(1 + e), and lse = ln(1 + e)."""
    numbers = [[1.0, 0.0]], [[0.0, 9.0], [1.0, 9.0]], [[0.0, 8.0], [8.0, 0.0]]
    q, k, v = (torch.tensor(x, dtype=dtype)[None, None] for x in numbers)
    output, lse, _ = attend(q, k, v, limits=Limits(), scale=1.0)
    right = [8 * math.e / (1 + math.e), 8 / (1 + math.e)]
    assert output[0, 0, 0].tolist() == pytest.approx(right, rel=2 * torch.finfo(dtype).eps)
    assert lse[0, 0].tolist() == pytest.approx([math.log(1 + math.e)], rel=4 * FLOAT32_EPS)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_dead_row_is_marked(dtype: torch.dtype) -> None:
    drawn = np.ones((4, 5, 6), dtype=bool)
    drawn[1, 2] = drawn[3, 4] = False
    c = case(2, 4, 2, 5, 6, 8, Mask.bidirectional(explicit=drawn), dtype=dtype)
    for output, lse in (
        attend(c.q, c.k, c.v, limits=c.limits, scale=c.scale)[:2],
        attend_in_strips(c.q, c.k, c.v, limits=c.limits, scale=c.scale, strip=2),
    ):
        dead = torch.zeros(2, 4, 5, dtype=torch.bool)
        dead[:, 1, 2] = dead[:, 3, 4] = True
        assert torch.equal(lse == -torch.inf, dead)
        assert not output[dead].any()
        assert bool((output[~dead] != 0).any(dim=-1).all())
        assert bool(torch.isfinite(lse[~dead]).all())


@pytest.mark.parametrize("which", ["q", "k", "v", "all"])
def test_a_last_stride_other_than_one(which: str) -> None:
    c = case(1, 6, 2, 31, 31, 10, Mask())
    strided = [
        x.transpose(-1, -2).contiguous().transpose(-1, -2) if which in (name, "all") else x
        for name, x in zip("qkv", (c.q, c.k, c.v), strict=True)
    ]
    assert any(x.stride(-1) != 1 for x in strided)
    require_right(c, *attend(*strided, limits=c.limits, scale=c.scale)[:2])


def test_views_of_a_larger_buffer() -> None:
    """What a cache hands over: keys and values with room behind them, filled with NaN."""
    c = case(1, 6, 2, 3, 17, 10, Mask(offset=14))
    buffers = torch.full((2, 1, 2, 40, 10), torch.nan)
    k, v = buffers[0, :, :, :17].copy_(c.k), buffers[1, :, :, :17].copy_(c.v)
    require_right(c, *attend(c.q, k, v, limits=c.limits, scale=c.scale)[:2])


@pytest.mark.parametrize("value_size", [1, 5, 17])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_values_of_another_size_than_keys(value_size: int, dtype: torch.dtype) -> None:
    for mask in (Mask(), explicit(6, 19, 19)):
        c = case(2, 6, 3, 19, 19, 7, mask, value_size=value_size, dtype=dtype)
        output, lse, kernel = attend(c.q, c.k, c.v, limits=c.limits, scale=c.scale)
        assert kernel == "torch flash, CPU"
        assert (output.dtype, lse.dtype) == (dtype, torch.float32)
        require_right(c, output, lse)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 4)),  # no keys: the kernel itself would end the process
        ((1, 2, 3, 4), (1, 2, 5, 6), (1, 2, 5, 4)),
        ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 6, 4)),
        ((1, 3, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
        ((1, 4, 3, 4), (1, 2, 5, 4), (1, 4, 5, 4)),
        ((2, 2, 3, 4), (3, 2, 5, 4), (3, 2, 5, 4)),
        ((1, 2, 3, 4), (2, 2, 5, 4), (3, 2, 5, 4)),
        ((2, 3, 4), (2, 5, 4), (2, 5, 4)),
        ((1, 2, 3, 4), (1, 0, 5, 4), (1, 0, 5, 4)),
    ],
)
def test_shapes_that_do_not_belong_together(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="the arrays of an attention call") as caught:
        attend(torch.ones(q), torch.ones(k), torch.ones(v), limits=Limits(), scale=1.0)
    assert f"got q {q}, k {k}, v {v}." in str(caught.value)


def test_inputs_are_left_alone() -> None:
    c = case(1, 6, 2, 19, 19, 10, explicit(6, 19, 19))
    before = [x.clone() for x in (c.q, c.k, c.v, c.limits.bias)]
    limits = c.limits
    attend(c.q, c.k, c.v, limits=limits, scale=c.scale)
    attend_in_strips(c.q, c.k, c.v, limits=limits, scale=c.scale)
    for now, then in zip((c.q, c.k, c.v, limits.bias), before, strict=True):
        assert torch.equal(now, then)


def test_the_causal_rule_needs_no_array() -> None:
    like = torch.ones(1)
    assert Limits.of_mask(Mask(), 9, 9, like) == Limits(causal=True)
    assert Limits.of_mask(Mask(), 1, 1, like) == Limits()
    assert Limits.of_mask(Mask(offset=8), 1, 9, like) == Limits()
    assert Limits.of_mask(Mask.bidirectional(), 4, 9, like) == Limits()
    bias = Limits.of_mask(Mask(offset=2), 3, 5, like).bias
    assert bias is not None
    assert bias.shape == (1, 1, 3, 5)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sources=st.integers(2, 60),
    share=st.sampled_from([0.02, 0.3, 1.0]),
    data=st.data(),
)
def test_splitting_the_sources_anywhere_and_merging(seed: int, sources: int, share: float, data: st.DataObject) -> None:
    mask = explicit(4, 7, sources, seed=seed, share=share)
    c = case(2, 4, 2, 7, sources, 5, mask, dtype=torch.float64, seed=seed)
    cuts = data.draw(st.lists(st.integers(1, sources - 1), min_size=1, max_size=4, unique=True).map(sorted))
    joined: tuple[Tensor, Tensor] | None = None
    for first, last in zip([0, *cuts], [*cuts, sources], strict=True):
        permitted = torch.from_numpy(mask.dense(7, sources)[:, :, first:last].copy())
        part = attend_in_strips(
            c.q, c.k[:, :, first:last], c.v[:, :, first:last], limits=Limits.of_permitted(permitted, c.q), scale=c.scale
        )
        joined = part if joined is None else merge(joined, part)
    assert joined is not None
    right_output, right_lse = exact(c)
    assert off(joined[0], right_output) <= 1e-13
    assert off(joined[1], right_lse) <= 1e-13


def test_merging_in_either_order() -> None:
    c = case(1, 4, 2, 7, 20, 5, explicit(4, 7, 20, share=0.05), dtype=torch.float64)
    permitted = torch.from_numpy(c.mask.dense(7, 20).copy())
    parts = [
        attend_in_strips(
            c.q, c.k[:, :, part], c.v[:, :, part], limits=Limits.of_permitted(permitted[..., part], c.q), scale=c.scale
        )
        for part in (slice(0, 9), slice(9, 20))
    ]
    one, other = merge(*parts), merge(*parts[::-1])
    assert off(one[0], other[0]) <= 1e-14
    assert off(one[1], other[1]) <= 1e-14
    assert bool((one[1] == -torch.inf).any())  # some rows may read nothing in either part


@given(first=st.floats(-1e4, 1e4), second=st.floats(-1e4, 1e4))
@example(first=0.0, second=0.0)
@example(first=-1e4, second=1e4)
def test_merging_weighs_by_the_two_sums(first: float, second: float) -> None:
    y, lse = merge(
        (torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([first], dtype=torch.float64)),
        (torch.tensor([[5.0]], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)),
    )
    with np.errstate(over="ignore"):
        share = 1.0 / (1.0 + np.exp(np.float64(first - second)))  # of the second part
    assert float(y[0, 0]) == pytest.approx(3.0 + 2.0 * share, rel=1e-11)
    assert float(lse[0]) == pytest.approx(np.logaddexp(first, second), rel=1e-13)


def test_merging_two_parts_that_read_nothing() -> None:
    nothing = torch.zeros(1, 3), torch.full((1,), -torch.inf)
    y, lse = merge(nothing, nothing)
    assert lse.tolist() == [-torch.inf]
    assert y.tolist() == [[0.0, 0.0, 0.0]]
    something = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([7.0])
    for pair in ((nothing, something), (something, nothing)):
        y, lse = merge(*pair)
        assert (y.tolist(), lse.tolist()) == ([[1.0, 2.0, 4.0]], [7.0])
