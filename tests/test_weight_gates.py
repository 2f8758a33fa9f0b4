"""Gates on weights against a dense twin in double precision, both ways, and through whole models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import wherefrom
from gates_small import HF, HF_GOAL, HF_PARTS, Largest, in_double, spans
from hf_small import made
from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.evidence import weight_gates as module
from wherefrom.evidence.gated import Gates
from wherefrom.evidence.gates import gate_gradients
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.running import Executed, Runner, runner_of
from wherefrom.evidence.weight_gates import (
    attend_by_weights,
    attend_by_weights_fast,
    attend_by_weights_in_strips,
)

Ways: dict[str, Callable[..., Tensor]] = {
    "fast": attend_by_weights_fast,
    "strips": lambda one, gates, m: attend_by_weights_in_strips(one, gates, m, strip=5),
}
each_way = pytest.mark.parametrize("way", Ways.values(), ids=Ways)


# -- one call against its dense twin


@dataclass(frozen=True)
class Case:
    """One call, the gates of its passages and the gradient by its outputs."""

    one: Executed
    g: Tensor
    m: Tensor  # [1 or H, P]
    gates: Gates


def case(
    shape: tuple[int, int, int, int, int, int],
    ranges: Sequence[tuple[int, int]],
    *,
    m: float = 0.6,
    per_head: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **more: Any,
) -> Case:
    """A case of shape (B, H, K, T, D, V); the gates of a head are alike."""
    batch, heads, kv_heads, length, size, value_size = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)

    q, k = 2 * draw(batch, heads, length, size), draw(batch, kv_heads, length, size)
    v, g = draw(batch, kv_heads, length, value_size), draw(batch, heads, length, value_size)
    own = torch.linspace(m / 2, m, heads, dtype=torch.float64)[:, None] if per_head else torch.tensor([[m]]).double()
    one = Executed(0, "one", 0, q, k, v, more.pop("masks", (Mask(),)), size**-0.5, **more)
    return Case(one, g, own.expand(-1, len(ranges)).contiguous(), Gates(spans(*ranges), length))


def through(c: Case, way: Callable[..., Tensor]) -> list[Tensor]:
    """The outputs, and the gradients by q, k, v and m."""
    q, k, v, m = (x.detach().clone().requires_grad_() for x in (c.one.q, c.one.k, c.one.v, c.m))
    y = way(replace(c.one, q=q, k=k, v=v), c.gates, m)
    return [y.detach(), *torch.autograd.grad(y, (q, k, v, m), c.g)]


def rows_of(one: Executed, k: Tensor, removed: Tensor | None) -> Tensor:
    """The weights [B, H, T, S] of a causal call, or any other's, with some edges removed."""
    scores = one.scale * one.q @ k.transpose(-1, -2)
    scores = scores if one.softcap is None else one.softcap * torch.tanh(scores / one.softcap)
    scores = scores if one.bias is None else scores + one.bias
    readable = one.permitted() if removed is None else one.permitted() & ~removed
    e = torch.where(readable, torch.exp(scores), 0.0)
    sink = 0.0 if one.sinks is None else torch.exp(one.sinks)[None, :, None, None]
    total = e.sum(dim=-1, keepdim=True) + sink
    return e / torch.where(total == 0, 1.0, total)


def dense(c: Case) -> list[Tensor]:
    """The same by the equations, n x n, in double precision: y' = m y + (1 - m) z, and the sum over edges."""
    q, k, v = (x.detach().double().requires_grad_() for x in (c.one.q, c.one.k, c.one.v))
    group = q.shape[1] // k.shape[1]
    k_all, v_all = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    index = torch.from_numpy(c.gates.index.copy())
    outside = (index[:, None] != index) & (index >= 0)  # i outside the passage that j is in
    one = replace(c.one, q=q)
    m = c.m[:, 0][:, None, None]
    a, rest = rows_of(one, k_all, None), rows_of(one, k_all, outside)
    if one.sinks is None:  # a row that reads gated sources alone reads them as ever
        alone = ~(one.permitted() & ~outside).any(dim=-1, keepdim=True)
        rest, outside = torch.where(alone, a, rest), outside & ~alone
    y = m * (a @ v_all) + (1 - m) * (rest @ v_all)
    found = torch.autograd.grad(y, (q, k, v), c.g.double())
    with torch.no_grad():
        g = c.g.double()
        edges = a * (g @ v_all.transpose(-1, -2) - (g * y).sum(dim=-1, keepdim=True)) * outside
        columns = torch.where(index < 0, len(c.gates), index)
        by_head = torch.zeros(q.shape[1], len(c.gates) + 1, dtype=torch.float64)
        by_head.index_add_(1, columns, edges.sum(dim=(0, 2)))
        of_m = by_head[:, :-1] if len(c.m) > 1 else by_head[:, :-1].sum(dim=0, keepdim=True)
    return [y.detach(), *found, of_m]


def require_right(c: Case, way: Callable[..., Tensor], close: float = 1e-10) -> None:
    for name, found, expected in zip(("y", "q", "k", "v", "m"), through(c, way), dense(c), strict=True):
        assert found.shape == expected.shape, name
        size = max(1.0, float(expected.abs().max()))
        assert float((found.double() - expected).abs().max()) <= close * size, name


CASES: dict[str, Callable[..., Case]] = {
    "9 heads on 3": lambda **given: case((1, 9, 3, 40, 16, 16), [(20, 30), (3, 4), (5, 12), (12, 18)], **given),
    "odd sizes, two texts": lambda **given: case((2, 4, 2, 33, 7, 11), [(1, 9), (9, 33)], **given),
    "the first token in it": lambda **given: case((2, 4, 2, 33, 7, 11), [(0, 9), (9, 33)], **given),
    "small values": lambda **given: case((1, 2, 2, 12, 8, 3), [(2, 5)], **given),
    "each token": lambda **given: case((1, 3, 1, 9, 4, 4), [(i, i + 1) for i in range(1, 9)], **given),
    "one token": lambda **given: case((1, 2, 1, 1, 4, 4), [(0, 1)], **given),
}


@each_way
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("m", [0.6, 1.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_a_call_against_its_dense_twin(
    name: str, dtype: torch.dtype, m: float, per_head: bool, way: Callable[..., Tensor]
) -> None:
    close = 1e-10 if dtype == torch.float64 else 1e-4
    require_right(CASES[name](m=m, per_head=per_head, dtype=dtype), way, close)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    length = draw(st.integers(1, 40))
    cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=8))})
    ranges = [pair for pair in itertools.pairwise(cuts) if draw(st.booleans())] or [(0, length)]
    return case(
        (draw(st.integers(1, 2)), kv_heads * group, kv_heads, length, draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        draw(st.permutations(ranges)),
        m=draw(st.sampled_from([1.0, 0.9, 0.6, 0.01])),
        per_head=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60)
@given(cases())
def test_any_call_both_ways(c: Case) -> None:
    for way in Ways.values():
        require_right(c, way)


OTHERS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "a bias": {"bias": torch.linspace(-1, 1, 4 * 20 * 20, dtype=torch.float64).reshape(1, 4, 20, 20)},
    "a bias of each column": {"bias": torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(1, 1, 1, 20)},
    "a window": {"masks": (Mask(window=6),)},
    "both directions": {"masks": (Mask.bidirectional(),)},
    "heads of their own": {
        "masks": (Mask(explicit=np.random.default_rng(0).random((4, 20, 20)) < 0.3),),  # some rows read nothing
        "softcap": 2.0,
    },
    "texts of two lengths": {
        "masks": tuple(Mask(padding=np.arange(20) < real) for real in (20, 13)),
        "sinks": torch.zeros(4, dtype=torch.float64),
    },
}


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_any_other_call_in_strips(name: str, per_head: bool) -> None:
    c = case((2, 4, 2, 20, 6, 6), [(1, 5), (5, 6), (8, 15)], per_head=per_head, **OTHERS[name])
    assert not module.is_fast(c.one)
    require_right(c, Ways["strips"])
    assert torch.equal(attend_by_weights(c.one, c.gates, c.m), attend_by_weights_in_strips(c.one, c.gates, c.m))


def test_gates_that_differ_go_in_strips_and_sum_to_one() -> None:
    """Of three passages with gates 1, 0.5 and 0.1, values of one: whatever the gates, a row's weights sum to one."""
    c = case((1, 2, 1, 12, 4, 4), [(1, 3), (4, 7), (7, 10)])
    one = replace(c.one, v=torch.ones_like(c.one.v))
    y = attend_by_weights(one, c.gates, torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-12, atol=0)
    a = rows_of(c.one, c.one.k.repeat_interleave(2, 1), None)
    index = torch.from_numpy(c.gates.index.copy())
    values = torch.zeros_like(c.one.v)
    values[:, :, 4:7] = 1.0  # y is then what is read of the second passage
    y = attend_by_weights(replace(c.one, v=values), c.gates, torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))
    outside = index != 1
    torch.testing.assert_close(y[:, :, outside, 0], 0.5 * a[:, :, outside, 4:7].sum(-1), rtol=1e-12, atol=1e-15)


def test_nothing_grows_with_the_square_of_the_length() -> None:
    lengths = 7, 15, 30, 90
    starts = np.cumsum([1, *(lengths[i % 4] for i in range(55))])
    ranges = [(int(a), int(b)) for a, b in itertools.pairwise(starts) if b <= 2048]
    for per_head in (False, True):
        c = case((1, 4, 2, 2048, 8, 8), ranges, per_head=per_head, dtype=torch.float32)
        with Largest() as fast:
            through(c, attend_by_weights_fast)
        assert fast.size <= 2 * 4 * 2048 * 16  # q with its coordinate, once more for rows behind shorter passages


# -- through whole models


def value(runner: Runner, factors: Sequence[float], m: float) -> float:
    """The goal where every row's weights on passages are m of what they are, times the factors, over their sum."""
    index = torch.from_numpy(np.where(Gates(HF_PARTS, len(HF_GOAL.ids)).index < 0, 3, 0).copy())
    for place, one in enumerate(HF_PARTS):
        index[max(1, one.start) : one.stop] = place
    index[0] = 3
    outside = (index[:, None] != index) & (index < 3)
    factor = torch.tensor([*factors, 1.0], dtype=torch.float64)[index]

    def attention(one: Executed) -> Tensor:
        if one.kind == "cross":
            return one.attend().output
        q, k, v = (x.double() for x in (one.q, one.k, one.v))
        group = q.shape[1] // k.shape[1]
        own = replace(one, q=q, sinks=None if one.sinks is None else one.sinks.double())
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        a, rest = rows_of(own, k, None), rows_of(own, k, outside)
        through = torch.where(outside, m * a, 0.0)
        shares = through + (1 - through.sum(dim=-1, keepdim=True)) * rest
        sink = 1 - shares.sum(dim=-1, keepdim=True) if one.sinks is not None else 0.0
        shares = shares * torch.where(outside, factor, 1.0)
        return (shares @ v / (shares.sum(dim=-1, keepdim=True) + sink)).to(one.q.dtype)

    with torch.no_grad():
        logits = runner.logits(torch.tensor([HF_GOAL.ids]), HF_GOAL.rows, attention=attention)
        return float(HF_GOAL.value(logits)[0])


@pytest.mark.parametrize("name", HF)
def test_a_model_against_finite_differences(name: str) -> None:
    runner, m, step = runner_of(in_double(name)), 0.6, 1e-3
    found = gate_gradients(runner, HF_GOAL, HF_PARTS, per_head=True)
    assert (found.kind, found.at) == ("weights", (m,))
    assert found.values[0] == pytest.approx(value(runner, [1, 1, 1], m), rel=1e-5)
    for place in range(3):
        ends = [value(runner, [1 + sign * step * (p == place) for p in range(3)], m) for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * step) / m
        assert found.scores[place] == pytest.approx(expected, abs=2e-5 * max(1.0, abs(expected)))
    assert found.per_call is not None
    np.testing.assert_allclose(found.per_call.sum(axis=(0, 1)), found.scores, rtol=1e-9, atol=1e-12)


def test_with_gates_open_both_kinds_are_the_score_gradient(small: wherefrom.LanguageModel) -> None:
    runner = runner_of(small)
    goal = AnswerGoal(tuple(b"A cat sat. Two dogs ran far off. Who sat? A cat"), 43)
    parts = spans((1, 10), (11, 20), (20, 32))
    one, other = (gate_gradients(runner, goal, parts, at=(1.0,), kind=kind) for kind in ("weights", "scores"))
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-4 * np.abs(one.scores).max())


def test_the_first_token_has_no_gate(small: wherefrom.LanguageModel) -> None:
    runner = runner_of(small)
    goal = AnswerGoal(tuple(b"A cat sat. Two dogs ran far off. Who sat? A cat"), 43)
    with_it, without = (gate_gradients(runner, goal, spans((start, 10), (11, 20))) for start in (0, 1))
    assert with_it.passages[0].start == 0
    np.testing.assert_array_equal(with_it.scores, without.scores)
    alone = gate_gradients(runner, goal, spans((11, 20), (0, 1)), per_head=True)
    assert np.isnan(alone.scores).tolist() == [False, True]
    assert alone.per_call is not None
    assert np.isnan(alone.per_call[..., 1]).all()
    assert alone.order == (0, 1)


def test_the_fast_way_is_the_slow_one(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(small)
    goal = AnswerGoal(tuple(b"A cat sat. Two dogs ran far off. Who sat? A cat"), 43)
    parts = spans((0, 10), (11, 20), (20, 32))
    fast = gate_gradients(runner, goal, parts, at=(1.0, 0.6, 0.1), per_head=True)
    monkeypatch.setattr(module, "is_fast", lambda one: False)
    slow = gate_gradients(runner, goal, parts, at=(1.0, 0.6, 0.1), per_head=True)
    assert fast.per_call is not None
    assert slow.per_call is not None
    np.testing.assert_allclose(fast.values, slow.values, rtol=1e-4)
    np.testing.assert_allclose(fast.per_call, slow.per_call, atol=1e-4 * np.abs(slow.per_call).max())


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match='the kind of gates: expected "weights" or "scores", got \'doors\''):
        gate_gradients(runner_of(made("llama")[0]), HF_GOAL, HF_PARTS, kind="doors")  # type: ignore[arg-type]
