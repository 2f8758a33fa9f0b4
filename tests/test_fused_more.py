"""The kernels beyond the plain case: softcap, finite biases, sinks, batches, dead rows, and all their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wherefrom import attention as page
from wherefrom.attention import Mask
from wherefrom.capture.fused import Attended, Limits, attend, attend_in_strips, attend_masked
from wherefrom.errors import InputError

FORMATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FLASH, STRIPS = "torch flash, CPU", "plain strips, cpu"


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Case:
    """One call of attention; permitted is bool [B or 1, H or 1, T or 1, S], added the finite bias of its shape."""

    q: Tensor
    k: Tensor
    v: Tensor
    permitted: Tensor | None = None
    added: Tensor | None = None
    causal: bool = False
    scale: float = 0.6
    softcap: float | None = None
    sinks: Tensor | None = None

    def limits(self) -> Limits:
        if self.permitted is None:
            return Limits(bias=self.added, causal=self.causal)
        permitted, added = self.permitted, self.added
        if self.causal:
            permitted = permitted & torch.ones(self.q.shape[2], self.k.shape[2], dtype=torch.bool).tril()
        return Limits.of_permitted(permitted, self.q, added=added)

    def attend(self) -> Attended:
        return attend(
            self.q, self.k, self.v, limits=self.limits(), scale=self.scale, softcap=self.softcap, sinks=self.sinks
        )

    def in_strips(self, strip: int) -> tuple[Tensor, Tensor]:
        return attend_in_strips(
            self.q,
            self.k,
            self.v,
            limits=self.limits(),
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            strip=strip,
        )

    def trained(self) -> dict[str, Tensor]:
        every = {"q": self.q, "k": self.k, "v": self.v, "added": self.added, "sinks": self.sinks}
        return {name: x for name, x in every.items() if x is not None and x.requires_grad}

    @property
    def batch(self) -> int:
        return max(len(x) for x in (self.q, self.k, self.v))


def case(
    sizes: Sequence[int] = (2, 4, 2, 7, 9, 5, 5),
    *,
    dtype: torch.dtype = torch.float64,
    share: float | None = None,
    added: tuple[int, ...] | None = None,
    sinks: bool = False,
    wanted: Sequence[str] = (),
    seed: int = 0,
    **fields: object,
) -> Case:
    """A case of sizes B H K T S D V; share: how much is permitted at random; wanted: what needs a gradient."""
    batch, heads, kv_heads, rows, sources, size, value_size = sizes
    shapes = {
        "q": (batch, heads, rows, size),
        "k": (batch, kv_heads, sources, size),
        "v": (batch, kv_heads, sources, value_size),
    }
    arrays = {name: drawn(*shape, seed=10 * seed + i, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    if added is not None:
        arrays["added"] = drawn(*added, seed=10 * seed + 4, dtype=dtype)
    if sinks:
        arrays["sinks"] = drawn(heads, seed=10 * seed + 5, dtype=dtype)
    for name in wanted:
        arrays[name].requires_grad_()
    if share is not None:
        generator = np.random.default_rng(seed)
        arrays["permitted"] = torch.from_numpy(generator.random((batch, heads, rows, sources)) < share)
    return Case(**arrays, **fields)


def dense(c: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, lse and the empty rows by the formula, in double precision and with all gradients.

    A sink is a column of its own. An empty row has weights 0, sink or not, and lse -inf.
    """
    heads, rows, sources = c.q.shape[1], c.q.shape[2], c.k.shape[2]
    k, v = (x.double().repeat_interleave(heads // c.k.shape[1], dim=1) for x in (c.k, c.v))
    scores = c.scale * (c.q.double() @ k.transpose(-1, -2))
    if c.softcap is not None:
        scores = c.softcap * torch.tanh(scores / c.softcap)
    if c.added is not None:
        scores = scores + c.added.double()
    allowed = torch.ones(c.batch, heads, rows, sources, dtype=torch.bool)
    allowed = allowed if c.permitted is None else allowed & c.permitted
    allowed = allowed.tril() if c.causal else allowed
    empty = ~allowed.any(dim=-1)
    scores = scores.masked_fill(~allowed, -1e30)
    column = torch.full((heads,), -torch.inf, dtype=torch.float64) if c.sinks is None else c.sinks.double()
    scores = torch.cat([scores, column[:, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :-1].masked_fill(~allowed, 0.0)
    lse = torch.logsumexp(scores, dim=-1).masked_fill(empty, -torch.inf)
    return weights @ v, lse, empty


def far(found: Tensor, right: Tensor) -> float:
    assert found.shape == right.shape
    marked = right == -torch.inf
    assert torch.equal(found == -torch.inf, marked)
    return float((found.detach().double() - right.detach()).masked_fill(marked, 0.0).abs().max())


def precision(dtype: torch.dtype) -> float:
    """How far a result may be from the dense one: some roundings of numbers of about 1 to 8."""
    return {torch.float64: 1e-13, torch.float32: 6e-6}.get(dtype, 16 * torch.finfo(dtype).eps)


CASES: dict[str, tuple[str, Callable[[torch.dtype], Case]]] = {
    "sinks": (FLASH, lambda dtype: case(sinks=True, dtype=dtype)),
    "sinks, causal": (FLASH, lambda dtype: case((1, 4, 1, 65, 65, 8, 8), sinks=True, causal=True, dtype=dtype)),
    "sinks, dead rows": (FLASH, lambda dtype: case(sinks=True, share=0.15, dtype=dtype)),
    "sinks, small values": (FLASH, lambda dtype: case((2, 4, 2, 7, 9, 5, 3), sinks=True, share=0.3, dtype=dtype)),
    "sinks, large values": (FLASH, lambda dtype: case((2, 4, 2, 7, 9, 5, 8), sinks=True, dtype=dtype)),
    "softcap": (STRIPS, lambda dtype: case(softcap=0.7, dtype=dtype)),
    "softcap, causal": (STRIPS, lambda dtype: case((1, 4, 2, 150, 150, 5, 5), softcap=0.7, causal=True, dtype=dtype)),
    "softcap, more rows than keys": (
        STRIPS,
        lambda dtype: case((1, 2, 2, 9, 3, 5, 5), softcap=2.0, causal=True, dtype=dtype),
    ),
    "softcap, dead rows, sinks, bias": (
        STRIPS,
        lambda dtype: case(softcap=2.0, share=0.15, sinks=True, added=(1, 4, 7, 9), dtype=dtype),
    ),
    "bias of all": (FLASH, lambda dtype: case(added=(2, 4, 7, 9), dtype=dtype)),
    "bias of heads": (FLASH, lambda dtype: case(added=(1, 4, 1, 9), share=0.5, dtype=dtype)),
    "bias of texts": (FLASH, lambda dtype: case(added=(2, 1, 1, 9), dtype=dtype)),
    "bias of pairs, causal": (FLASH, lambda dtype: case(added=(1, 1, 7, 9), causal=True, dtype=dtype)),
    "bias that is trained": (STRIPS, lambda dtype: case(added=(1, 4, 7, 9), share=0.5, dtype=dtype, wanted=["added"])),
    "bias, dead rows, sinks": (FLASH, lambda dtype: case(added=(1, 4, 7, 9), share=0.1, sinks=True, dtype=dtype)),
    "small values": (FLASH, lambda dtype: case((2, 4, 2, 7, 9, 5, 1), causal=True, dtype=dtype)),
    "large values": (FLASH, lambda dtype: case((2, 4, 2, 7, 9, 5, 17), share=0.5, dtype=dtype)),
    "no rows": (STRIPS, lambda dtype: case((2, 4, 2, 0, 9, 5, 3), sinks=True, dtype=dtype)),
    "no rows, causal": (STRIPS, lambda dtype: case((2, 4, 2, 0, 9, 5, 3), causal=True, dtype=dtype)),
    "no texts": (STRIPS, lambda dtype: case((0, 4, 2, 7, 9, 5, 3), dtype=dtype)),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_the_formula(name: str, dtype: torch.dtype) -> None:
    kernel, make = CASES[name]
    c = make(dtype)
    right_output, right_lse, _ = dense(c)
    found = c.attend()
    assert (found.kernel, found.output.dtype, found.lse.dtype) == (kernel, dtype, torch.float32)
    assert found.output.shape == right_output.shape
    assert not found.lse.requires_grad
    if right_output.numel() == 0:
        return
    assert far(found.output, right_output) <= precision(dtype)
    assert far(found.lse, right_lse) <= max(precision(dtype), 1e-6)
    for strip in (1, 3, 128):
        output, lse = c.in_strips(strip)
        assert far(output, right_output) <= precision(dtype)
        assert far(lse, right_lse) <= precision(dtype)


def test_the_formula_is_the_page() -> None:
    """What the tests of this file compare with, against the project's own definition."""
    c = case(softcap=1.5, share=0.3, sinks=True, added=(1, 4, 7, 9))
    output, lse, empty = dense(c)
    assert bool(empty.any())
    assert not bool(empty.all())
    assert c.permitted is not None
    assert c.added is not None
    assert c.sinks is not None
    for text in range(2):
        mask = Mask.bidirectional(explicit=c.permitted[text].numpy())
        right = page.attend(
            *(x[text].numpy() for x in (c.q, c.k, c.v)),
            mask,
            scale=c.scale,
            softcap=c.softcap,
            bias=c.added[0].numpy(),
            sinks=c.sinks.numpy(),
        )
        assert np.abs(output[text].numpy() - right.output.filled(0.0)).max() <= 1e-14
        assert torch.equal(empty[text], torch.from_numpy(np.asarray(right.empty)))
        assert far(lse[text], torch.from_numpy(right.lse.filled(-np.inf))) <= 1e-14


ALL = ("q", "k", "v")
GRADIENTS: dict[str, Callable[[torch.dtype], Case]] = {
    "plain": lambda dtype: case(wanted=ALL, causal=True, dtype=dtype),
    "dead rows": lambda dtype: case(wanted=ALL, share=0.15, dtype=dtype),
    "small values": lambda dtype: case((2, 4, 2, 7, 9, 5, 2), wanted=ALL, share=0.3, dtype=dtype),
    "large values": lambda dtype: case((2, 4, 2, 7, 9, 5, 11), wanted=ALL, causal=True, dtype=dtype),
    "sinks": lambda dtype: case(wanted=(*ALL, "sinks"), sinks=True, causal=True, dtype=dtype),
    "sinks alone": lambda dtype: case(wanted=("sinks",), sinks=True, share=0.5, dtype=dtype),
    "sinks, not trained": lambda dtype: case(wanted=ALL, sinks=True, dtype=dtype),
    "sinks, dead rows": lambda dtype: case(wanted=(*ALL, "sinks"), sinks=True, share=0.12, dtype=dtype),
    "sinks, bias, small values": lambda dtype: case(
        (2, 4, 2, 7, 9, 5, 2), wanted=(*ALL, "sinks"), sinks=True, added=(1, 4, 7, 9), dtype=dtype
    ),
    "softcap": lambda dtype: case(wanted=ALL, softcap=0.8, causal=True, dtype=dtype),
    "softcap, sinks, dead rows, bias": lambda dtype: case(
        wanted=(*ALL, "sinks", "added"), softcap=0.8, sinks=True, share=0.12, added=(2, 1, 7, 9), dtype=dtype
    ),
    "bias": lambda dtype: case(wanted=(*ALL, "added"), added=(1, 4, 7, 9), share=0.12, dtype=dtype),
    "bias alone": lambda dtype: case(wanted=("added",), added=(1, 4, 1, 9), causal=True, dtype=dtype),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradients_against_the_formula(name: str, dtype: torch.dtype) -> None:
    c = GRADIENTS[name](dtype)
    right_output, _, empty = dense(c)
    given = drawn(*right_output.shape, seed=99)
    right = torch.autograd.grad(right_output, list(c.trained().values()), given)
    found_output = c.attend().output
    assert not found_output.detach()[empty].any()
    for output in (found_output, c.in_strips(3)[0], c.in_strips(128)[0]):
        found = torch.autograd.grad(output, list(c.trained().values()), given.to(dtype))
        for (key, x), one, other in zip(c.trained().items(), found, right, strict=True):
            assert one.dtype == x.dtype
            size = max(1.0, float(other.abs().max()))
            assert float((one.double() - other).abs().max()) <= 4 * size * precision(dtype), key


SMALL = (1, 2, 1, 3, 4, 2, 3)
DIFFERENCES: dict[str, Case] = {
    "sinks, dead rows": case(SMALL, wanted=(*ALL, "sinks"), sinks=True, share=0.3),
    "sinks, causal, bias": case(SMALL, wanted=(*ALL, "sinks"), sinks=True, added=(1, 2, 1, 4), causal=True),
    "all at once": case(
        SMALL, wanted=(*ALL, "sinks", "added"), softcap=0.8, sinks=True, share=0.3, added=(1, 2, 3, 4), seed=1
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_gradients_against_finite_differences(name: str) -> None:
    c = DIFFERENCES[name]
    names = list(c.trained())

    def output(*arrays: Tensor) -> Tensor:
        return replace(c, **dict(zip(names, arrays, strict=True))).attend().output

    assert "causal" in name or 0 < int(dense(c)[2].sum()) < 6
    assert torch.autograd.gradcheck(output, tuple(c.trained().values()))


def test_a_gradient_of_one_number_for_all() -> None:
    """What `output.sum()` gives back has no strides of its own."""
    c = GRADIENTS["sinks"](torch.float64)
    found = torch.autograd.grad(c.attend().output.sum(), list(c.trained().values()))
    right = torch.autograd.grad(dense(c)[0].sum(), list(c.trained().values()))
    assert max(float((one - other).abs().max()) for one, other in zip(found, right, strict=True)) <= 1e-13


def test_a_gradient_through_strips_keeps_nothing_square() -> None:
    c = case((1, 2, 1, 600, 600, 4, 4), softcap=1.0, causal=True, wanted=ALL)
    kept = 0

    def keep(x: Tensor) -> Tensor:
        nonlocal kept
        kept += x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = c.attend().output
    assert kept < 600 * 600 / 4
    assert bool(torch.autograd.grad(output.sum(), [c.q])[0].any())


@pytest.mark.parametrize("one", ["q", "k", "v", "kv"])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.0])
def test_a_batch_of_one_serves_all(one: str, sinks: bool, softcap: float | None) -> None:
    c = case((3, 4, 2, 7, 9, 5, 5), sinks=sinks, softcap=softcap, share=0.4)
    c = replace(c, **{name: getattr(c, name)[:1].requires_grad_() for name in one})
    right_output, right_lse, _ = dense(c)
    output, lse, _ = c.attend()
    assert far(output, right_output) <= 1e-13
    assert far(lse, right_lse) <= 1e-6
    given = drawn(*output.shape, seed=3)
    found = torch.autograd.grad(output, list(c.trained().values()), given)
    for mine, other in zip(found, torch.autograd.grad(right_output, list(c.trained().values()), given), strict=True):
        assert float((mine - other).abs().max()) <= 1e-12


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("bias", [*FORMATS, torch.bool], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_another_format(dtype: torch.dtype, bias: torch.dtype, causal: bool) -> None:
    permitted = torch.from_numpy(np.random.default_rng(5).random((2, 1, 7, 9)) < 0.5)
    permitted[:, :, 2, :] = False
    permitted[:, :, 4, :5] = False  # dead with the causal rule alone
    c = case(dtype=dtype, causal=causal, permitted=permitted)
    right_output, right_lse, empty = dense(c)
    assert bool(empty.any())
    own = (
        permitted
        if bias == torch.bool
        else torch.zeros(permitted.shape, dtype=bias).masked_fill(~permitted, -torch.inf)
    )
    limits = Limits(bias=own, causal=causal, dead=empty[:, :1])
    output, lse, _ = attend(c.q, c.k, c.v, limits=limits, scale=c.scale)
    assert far(output, right_output) <= precision(dtype)
    assert far(lse, right_lse) <= max(precision(dtype), 1e-6)


def test_a_bool_bias_finds_its_own_dead_rows() -> None:
    permitted = torch.ones(1, 1, 7, 9, dtype=torch.bool)
    permitted[0, 0, 4, :5] = False
    c = case(causal=True, permitted=permitted)
    output, lse, _ = attend(c.q, c.k, c.v, limits=Limits(bias=permitted, causal=True), scale=c.scale)
    assert torch.equal((lse == -torch.inf).any(dim=1)[0].nonzero()[:, 0], torch.tensor([4]))
    assert far(output, dense(c)[0]) <= 1e-13


def test_a_bias_that_requires_a_gradient_which_nobody_wants() -> None:
    c = case(added=(1, 4, 7, 9), wanted=["added"])
    with torch.no_grad():
        found = c.attend()
    assert found.kernel == FLASH
    assert far(found.output, dense(c)[0]) <= 1e-13


def test_a_row_that_may_read_nothing_but_has_a_sink_is_still_empty() -> None:
    """The definition of `wherefrom.attention.weights`: it is marked, whatever the sink."""
    c = case(
        sinks=True,
        softcap=None,
        permitted=(torch.arange(7) != 3)[None, None, :, None].expand(1, 1, 7, 9),
        wanted=["sinks"],
    )
    for output, lse in (c.attend()[:2], c.in_strips(2)):
        assert torch.equal((lse == -torch.inf)[0, 0], torch.arange(7) == 3)
        assert not output.detach()[:, :, 3].any()
        (by_sink,) = torch.autograd.grad(output[:, :, 3].sum(), [c.sinks])
        assert by_sink.tolist() == [0.0] * 4


@pytest.mark.parametrize("sink", [-torch.inf, -1e4, 1e4])
def test_extreme_sinks(sink: float) -> None:
    c = case(sinks=True, share=0.15, dtype=torch.float32, wanted=ALL)
    c = replace(c, sinks=torch.full((4,), sink).requires_grad_())
    right_output, _, empty = dense(c)
    for output, lse in (c.attend()[:2], c.in_strips(3)):
        assert far(output, right_output) <= 6e-6
        assert torch.equal(lse == -torch.inf, empty)
        for one in torch.autograd.grad(output.sum(), list(c.trained().values())):
            assert bool(torch.isfinite(one).all())


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("mask", [Mask(window=30), Mask.bidirectional(window=20), Mask(), Mask(window=9, offset=100)])
def test_a_mask_rule(mask: Mask, sinks: bool, softcap: float | None) -> None:
    rows = 700 - mask.offset
    c = case((1, 2, 1, rows, 700, 4, 3), sinks=sinks, softcap=softcap, wanted=(*ALL, "sinks") if sinks else ALL)
    c = replace(c, permitted=torch.from_numpy(mask.dense(rows, 700))[None, None])
    right_output, right_lse, _ = dense(c)
    output, lse, kernel = attend_masked(c.q, c.k, c.v, mask=mask, scale=c.scale, softcap=c.softcap, sinks=c.sinks)
    assert kernel == (FLASH if softcap is None else STRIPS)
    assert far(output, right_output) <= 1e-13
    assert far(lse, right_lse) <= 1e-6
    given = drawn(*output.shape, seed=3)
    found = torch.autograd.grad(output, list(c.trained().values()), given)
    for mine, other in zip(found, torch.autograd.grad(right_output, list(c.trained().values()), given), strict=True):
        assert float((mine - other).abs().max()) <= 1e-11


@pytest.mark.parametrize("explicit", [False, True])
def test_a_batch_of_texts_with_padding_of_their_own(explicit: bool) -> None:
    padding = np.ones((2, 9), dtype=bool)
    padding[0, :4] = padding[1, 7:] = False
    heads = np.random.default_rng(2).random((4, 7, 9)) < 0.7 if explicit else None
    mask = Mask(padding=padding, explicit=heads)
    c = case(permitted=torch.from_numpy(mask.permitted(range(7), range(9))))
    right_output, right_lse, empty = dense(c)
    assert bool(empty[0].any())
    output, lse, _ = attend_masked(c.q, c.k, c.v, mask=mask, scale=c.scale)
    assert far(output, right_output) <= 1e-13
    assert far(lse, right_lse) <= 1e-6


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.tuples(*[st.integers(1, most) for most in (3, 3, 3, 20, 30, 9, 9)]),
    dtype=st.sampled_from(FORMATS),
    share=st.sampled_from([None, 0.1, 0.5]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    bias=st.sampled_from([None, "b", "h", "t", "bht"]),
    strip=st.integers(1, 25),
)
def test_any_combination(
    seed: int,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    share: float | None,
    softcap: float | None,
    sinks: bool,
    bias: str | None,
    strip: int,
) -> None:
    batch, group, kv_heads, rows, sources, size, value_size = sizes
    full = dict(zip("bht", (batch, group * kv_heads, rows), strict=True))
    added = None if bias is None else (*(full[x] if x in bias else 1 for x in "bht"), sources)
    c = case(
        (batch, group * kv_heads, kv_heads, rows, sources, size, value_size),
        dtype=dtype,
        share=share,
        added=added,
        sinks=sinks,
        softcap=softcap,
        seed=seed,
        scale=size**-0.5,
    )
    right_output, right_lse, _ = dense(c)
    for output, lse in (c.attend()[:2], c.in_strips(strip)):
        assert far(output, right_output) <= precision(dtype)
        assert far(lse, right_lse) <= max(precision(dtype), 1e-6)


def test_inputs_are_left_alone() -> None:
    for name in ("sinks, causal", "softcap, dead rows, sinks, bias", "small values"):
        c = CASES[name][1](torch.float32)
        arrays = {
            key: x for key in ("q", "k", "v", "permitted", "added", "sinks") if (x := getattr(c, key)) is not None
        }
        before = {key: x.clone() for key, x in arrays.items()}
        limits = c.limits()
        bias = None if limits.bias is None else limits.bias.clone()
        for call in (attend, attend_in_strips):
            call(c.q, c.k, c.v, limits=limits, scale=c.scale, softcap=c.softcap, sinks=c.sinks)
        assert all(torch.equal(x, before[key]) for key, x in arrays.items())
        assert bias is None or torch.equal(bias, limits.bias)


@pytest.mark.parametrize("shape", [(7, 9), (3, 1, 7, 9), (1, 2, 7, 9), (1, 4, 6, 9), (2, 4, 7, 1), (2, 4, 7, 10)])
def test_a_bias_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="the bias of an attention call: expected the shape of its scores") as caught:
        replace(case(), added=torch.zeros(shape)).attend()
    assert f"got shape {shape}." in str(caught.value)


@pytest.mark.parametrize("shape", [(1,), (2,), (4, 1), ()])
def test_sinks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"the sinks: expected one logit a query head, \(4,\)"):
        replace(case(), sinks=torch.zeros(shape)).attend()
