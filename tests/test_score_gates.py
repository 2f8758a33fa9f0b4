"""Gates on scores against a dense twin in double precision, against finite differences, and the fast way against the
slow one."""

from __future__ import annotations

import copy
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
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import wherefrom
from gates_small import HF, HF_GOAL, HF_PARTS, Largest, in_double, spans
from hf_small import made
from wherefrom.attention import Mask
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence import score_gates as module
from wherefrom.evidence.gated import Gates
from wherefrom.evidence.gates import gate_gradients
from wherefrom.evidence.goal import AnswerGoal, Goal
from wherefrom.evidence.running import Executed, Runner, runner_of
from wherefrom.evidence.score_gates import attend_by_scores, attend_by_scores_fast, attend_by_scores_in_strips
from wherefrom.passages import Passage

Ways = {
    "fast": attend_by_scores_fast,
    "strips": lambda one, gates, logs: attend_by_scores_in_strips(one, gates, logs, strip=5),
}
each_way = pytest.mark.parametrize("way", Ways.values(), ids=Ways)


# -- one call against its dense twin


@dataclass(frozen=True)
class Case:
    """One causal call, the gates of its passages and the gradient by its outputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    m: Tensor  # [1 or H, P]
    gates: Gates

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5


def case(
    shape: tuple[int, int, int, int, int, int],
    ranges: Sequence[tuple[int, int]],
    *,
    m: float = 0.15,
    per_head: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """A case of shape (B, H, K, T, D, V); gates differ a little from passage to passage, but for m = 1."""
    batch, heads, kv_heads, length, size, value_size = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)

    q, k = 2 * draw(batch, heads, length, size), draw(batch, kv_heads, length, size)
    v, g = draw(batch, kv_heads, length, value_size), draw(batch, heads, length, value_size)
    spread = torch.rand(heads if per_head else 1, len(ranges), generator=generator, dtype=torch.float64)
    gates = Gates(spans(*ranges), length)
    return Case(q, k, v, g, torch.full_like(spread, m) if m == 1 else m * (1 - 0.2 * spread), gates)


def through(c: Case, way: Callable[..., Tensor]) -> list[Tensor]:
    """The outputs, and the gradients by q, k, v and m."""
    q, k, v, m = (x.detach().clone().requires_grad_() for x in (c.q, c.k, c.v, c.m))
    y = way(Executed(0, "one", 0, q, k, v, (Mask(),), c.scale), c.gates, torch.log(m))
    return [y.detach(), *torch.autograd.grad(y, (q, k, v, m), c.g)]


def dense(c: Case) -> tuple[list[Tensor], list[Tensor]]:
    """The same in double precision by the equations, n x n; and beside each number the sum of its terms' sizes."""
    q, k, v, g = (x.double() for x in (c.q, c.k, c.v, c.g))
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k_all, v_all = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    index = torch.from_numpy(c.gates.index.copy())
    outside = (index[:, None] != index) & (index >= 0)  # i outside the passage that j is in
    gate = F.pad(c.m, (0, 1), value=1.0)[:, index][None, :, None]  # 1 H|1 1 S
    later = torch.ones(length, length, dtype=torch.bool).tril()
    e = torch.exp(c.scale * q @ k_all.transpose(-1, -2)) * torch.where(outside, gate, 1.0) * later
    a = e / e.sum(dim=-1, keepdim=True)  # B H T S
    y = a @ v_all
    slope = a * (g @ v_all.transpose(-1, -2) - (g * y).sum(-1, keepdim=True))  # of the goal by each score
    sizes = a * (g.abs() @ v_all.abs().transpose(-1, -2) + (g.abs() * y.abs()).sum(-1, keepdim=True))

    def shared(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, group)).sum(dim=2)

    def by_gate(x: Tensor) -> Tensor:
        columns = torch.where(index < 0, len(c.gates), index)
        summed = x.sum(dim=(0, 2)).new_zeros(x.shape[1], len(c.gates) + 1).index_add_(1, columns, x.sum(dim=(0, 2)))
        return (summed if len(c.m) > 1 else summed.sum(dim=0, keepdim=True))[:, :-1] / c.m

    def all_of(of_scores: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, kept: Tensor) -> list[Tensor]:
        of_q, of_k = c.scale * of_scores @ k, shared(c.scale * of_scores.transpose(-1, -2) @ q)
        return [a @ v, of_q, of_k, shared(a.transpose(-1, -2) @ g), by_gate(of_scores * kept)]

    right = all_of(slope, q, k_all, v_all, g, outside)
    return right, all_of(sizes, q.abs(), k_all.abs(), v_all.abs(), g.abs(), torch.ones(()))


def require_right(c: Case, way: Callable[..., Tensor]) -> None:
    """No further from the twin than rounding takes a sum.

    A score is a sum of D + 1 products, so the relative error of a weight is (D + 4) roundings of the largest score (the
    gate's logarithm among them); a sum of T or V terms adds as many roundings, of the sum of the terms' sizes.
    """
    right, sizes = dense(c)
    length, size, value_size = c.q.shape[2], c.q.shape[3], c.v.shape[3]
    group = c.q.shape[1] // c.k.shape[1]
    score = float((c.scale * c.q.double().abs() @ c.k.double().abs().repeat_interleave(group, 1).mT).max())
    score += float(-torch.log(c.m).min()) + 1
    steps = (size + 4) * score + 2 * length * group * len(c.q) + value_size
    eps = torch.finfo(c.q.dtype).eps
    for name, found, expected, terms in zip(("y", "q", "k", "v", "m"), through(c, way), right, sizes, strict=True):
        assert found.shape == expected.shape, name
        assert bool(((found.double() - expected).abs() <= steps * eps * terms + 1e-300).all()), name


CASES: dict[str, Callable[..., Case]] = {
    "9 heads on 3": lambda **given: case((1, 9, 3, 40, 16, 16), [(20, 30), (3, 4), (5, 12), (12, 18)], **given),
    "odd sizes, two texts": lambda **given: case((2, 4, 2, 33, 7, 11), [(0, 9), (9, 33)], **given),
    "small values": lambda **given: case((1, 2, 2, 12, 8, 3), [(2, 5)], **given),
    "each token": lambda **given: case((1, 3, 1, 9, 4, 4), [(i, i + 1) for i in range(9)], **given),
    "the whole text": lambda **given: case((1, 2, 1, 8, 4, 4), [(0, 8)], **given),
    "one token": lambda **given: case((1, 2, 1, 1, 4, 4), [(0, 1)], **given),
}


@each_way
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("m", [0.15, 1.0, 1e-4, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_a_call_against_its_dense_twin(
    name: str, dtype: torch.dtype, m: float, per_head: bool, way: Callable[..., Tensor]
) -> None:
    require_right(CASES[name](m=m, per_head=per_head, dtype=dtype), way)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    length = draw(st.integers(1, 40))
    cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=8))})
    ranges = [pair for pair in itertools.pairwise(cuts) if draw(st.booleans())] or [(0, length)]
    return case(
        (draw(st.integers(1, 2)), kv_heads * group, kv_heads, length, draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        draw(st.permutations(ranges)),
        m=draw(st.sampled_from([1.0, 0.9, 0.15, 0.01])),
        per_head=draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60)
@given(cases())
def test_any_call_both_ways(c: Case) -> None:
    for way in Ways.values():
        require_right(c, way)


def test_gradients_are_those_of_the_function_itself() -> None:
    c = CASES["odd sizes, two texts"](dtype=torch.float64, per_head=True)

    def outputs(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return attend_by_scores(Executed(0, "one", 0, q, k, v, (Mask(),), c.scale), c.gates, m)

    inputs = tuple(x.clone().requires_grad_() for x in (c.q, c.k, c.v, c.m))
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    c = CASES["9 heads on 3"](dtype=dtype)
    found = through(c, attend_by_scores_fast)
    single = through(replace(c, q=c.q.float(), k=c.k.float(), v=c.v.float(), g=c.g.float()), attend_by_scores_fast)
    assert [x.dtype for x in found] == [dtype] * 4 + [torch.float64]
    for half, wide in zip(found[:4], single[:4], strict=True):
        assert torch.equal(half, wide.to(dtype))
    assert torch.equal(found[4], single[4])


@each_way
def test_a_gate_of_one_changes_nothing_and_one_near_zero_cuts(way: Callable[..., Tensor]) -> None:
    c = CASES["9 heads on 3"](dtype=torch.float64)
    one = Executed(0, "one", 0, c.q, c.k, c.v, (Mask(),), c.scale)
    open_gates, shut = (torch.log(torch.full_like(c.m, m)) for m in (1.0, 1e-100))
    torch.testing.assert_close(way(one, c.gates, open_gates), one.attend().output, rtol=1e-12, atol=1e-13)
    index = torch.from_numpy(c.gates.index.copy())
    removed = (index[:, None] != index) & (index >= 0)
    cut = one.attend(removed=removed[None, None]).output
    torch.testing.assert_close(way(one, c.gates, shut), cut, rtol=1e-12, atol=1e-13)


OTHERS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)},
    "a bias": {"bias": torch.linspace(-1, 1, 4 * 20 * 20, dtype=torch.float64).reshape(1, 4, 20, 20)},
    "a bias of each column": {"bias": torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(1, 1, 1, 20)},
    "a window": {"masks": (Mask(window=6),)},
    "both directions": {"masks": (Mask.bidirectional(),)},
    "heads of their own": {
        "masks": (Mask(explicit=np.random.default_rng(0).random((4, 20, 20)) < 0.6),),  # some rows read nothing
        "softcap": 2.0,
    },
    "texts of two lengths": {
        "masks": tuple(Mask(padding=np.arange(20) < real) for real in (20, 13)),
        "sinks": torch.zeros(4, dtype=torch.float64),
    },
}


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_any_other_call_is_the_whole_map_with_its_bias(name: str, per_head: bool) -> None:
    c = case((2, 4, 2, 20, 6, 6), [(1, 5), (5, 6), (8, 15)], dtype=torch.float64, per_head=per_head)
    one = replace(Executed(0, "one", 0, c.q, c.k, c.v, (Mask(),), c.scale), **OTHERS[name])
    assert not module.is_fast(one)
    index = torch.from_numpy(c.gates.index.copy())
    inside = (index[:, None] == index) & (index >= 0)

    def whole(m: Tensor) -> Tensor:
        added = F.pad(torch.log(m), (0, 1))[:, index][None, :, None].masked_fill(inside, 0.0)
        return one.attend(added=added).output

    def strips(m: Tensor) -> Tensor:
        return attend_by_scores_in_strips(one, c.gates, torch.log(m), strip=7)

    (y, m), (right, m_right) = ((way(m), m) for way in (strips, whole) for m in [c.m.clone().requires_grad_()])
    torch.testing.assert_close(y, right, rtol=1e-12, atol=1e-13)
    found, expected = (torch.autograd.grad(y, m, c.g)[0] for y, m in ((y, m), (right, m_right)))
    assert expected.abs().min() > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_nothing_grows_with_the_square_of_the_length() -> None:
    lengths = 7, 15, 30, 90
    starts = np.cumsum([0, *(lengths[i % 4] for i in range(55))])
    ranges = [(int(a), int(b)) for a, b in itertools.pairwise(starts) if b <= 2048]
    for per_head in (False, True):
        c = case((1, 4, 2, 2048, 8, 8), ranges, per_head=per_head)
        with Largest() as fast:
            through(c, attend_by_scores_fast)
        assert fast.size <= 2 * 4 * 2048 * 16  # q with its coordinate, once more for rows behind shorter passages
        with Largest() as slow:
            through(c, attend_by_scores_in_strips)
        assert slow.size <= 4 * 2048 * module.STRIP  # a strip's scores


# -- through a whole model


@pytest.fixture(scope="module")
def double(small: wherefrom.LanguageModel) -> Runner:
    """The small model in double precision."""
    return runner_of(replace(small, transformer=copy.deepcopy(small.transformer).double()))


TEXT = tuple(b"A cat sat. Two dogs ran far off. Who sat? A cat")
GOAL = AnswerGoal(TEXT, len(TEXT) - 4)
PARTS = spans((0, 10), (11, 20), (20, 32))


def value(runner: Runner, goal: Goal, passages: Sequence[Passage], m: Sequence[float]) -> float:
    gates, given = Gates(tuple(passages), len(goal.ids)), torch.tensor(m, dtype=torch.float64)
    with torch.no_grad():
        logits = runner.logits(
            torch.tensor([goal.ids]), goal.rows, attention=lambda one: attend_by_scores(one, gates, given)
        )
        return float(goal.value(logits)[0])


def slopes(runner: Runner, goal: Goal, passages: Sequence[Passage], m: float, step: float) -> np.ndarray:
    """Central differences by each gate, or backward ones where m is 1; their error is O(step^4)."""
    if m + 2 * step <= 1:
        nodes = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    else:
        nodes = {0: 25 / 12, -1: -4.0, -2: 3.0, -3: -4 / 3, -4: 1 / 4}
    found = []
    for place in range(len(passages)):
        total = 0.0
        for node, weight in nodes.items():
            gates = [m + step * node * (p == place) for p in range(len(passages))]
            total += weight * value(runner, goal, passages, gates)
        found.append(total / step)
    return np.array(found)


@pytest.mark.parametrize("way", ["fast", "strips"])
@pytest.mark.parametrize("m", [0.15, 0.7, 1.0])
def test_every_passage_against_finite_differences(
    double: Runner, m: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "strips":
        monkeypatch.setattr(module, "is_fast", lambda one: False)
    found = gate_gradients(double, GOAL, PARTS, at=(m,), kind="scores")
    step = 1e-3 * min(1.0, 4 * m)
    expected = slopes(double, GOAL, PARTS, m, step)
    # The differences' own error: of fourth order in the step, as half the step shows; and rounding over the step.
    finer = slopes(double, GOAL, PARTS, m, step / 2)
    allowed = 2 * np.abs(expected - finer) + 1e-13 * abs(found.values[0]) / step + 1e-8 * np.abs(finer).max()
    assert np.abs(finer).min() > 1e-3
    assert np.all(np.abs(found.gradients[0] - finer) <= allowed)


def test_the_fast_way_is_the_slow_one(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(small)
    fast = gate_gradients(runner, GOAL, PARTS, at=(1.0, 0.3, 0.1), per_head=True, kind="scores")
    monkeypatch.setattr(module, "is_fast", lambda one: False)
    slow = gate_gradients(runner, GOAL, PARTS, at=(1.0, 0.3, 0.1), per_head=True, kind="scores")
    assert fast.per_call is not None
    assert slow.per_call is not None
    np.testing.assert_allclose(fast.values, slow.values, rtol=1e-4)
    np.testing.assert_allclose(fast.per_call, slow.per_call, atol=1e-4 * np.abs(slow.per_call).max())


def test_heads_add_up_and_gates_add_up(double: Runner) -> None:
    told: list[tuple[int, int]] = []
    together = gate_gradients(
        double,
        GOAL,
        PARTS,
        at=(1, 0.2),
        per_head=True,
        progress=lambda done, total: told.append((done, total)),
        kind="scores",
    )
    alone = [gate_gradients(double, GOAL, PARTS, at=(m,), kind="scores") for m in (1, 0.2)]
    assert told == [(1, 2), (2, 2)]
    assert together.per_call is not None
    assert together.per_call.shape == (3, 6, 3)
    assert [layer for layer, _, _ in together.calls] == [0, 1, 2]
    np.testing.assert_allclose(together.gradients, [one.gradients[0] for one in alone], rtol=1e-10)
    np.testing.assert_allclose(together.scores, together.gradients.sum(axis=0), rtol=1e-10)
    np.testing.assert_allclose(together.per_call.sum(axis=(0, 1)), together.scores, rtol=1e-9, atol=1e-12)
    assert together.cost == (2, 2)
    assert str(together.cost) == "2 forward + 2 backward"
    assert alone[0].per_call is None
    assert alone[0].values[0] == pytest.approx(value(double, GOAL, PARTS, [1, 1, 1]), rel=1e-12)


def test_what_is_printed(double: Runner) -> None:
    found = gate_gradients(double, GOAL, [replace(one, label=f"part {one.start}") for one in PARTS], kind="scores")
    lines = str(found).splitlines()
    assert len(found) == 3
    assert found.order[0] == int(np.argmax(found.scores))
    assert (
        lines[0]
        == "gate gradients, log-odds per unit of gate, all gates on scores at 0.15; positive: the passage helps"
    )
    assert lines[1].startswith(f"{found.scores[found.order[0]]:+10.4f}  ")
    assert "part " in lines[1]
    assert lines[4].startswith("estimated, to first order; 1 forward + 1 backward, ")
    many = gate_gradients(double, GOAL, [Passage(i, i + 1, str(i)) for i in range(30)], kind="scores")
    assert "20 between" in str(many)


# -- models of transformers, by the slow way


@pytest.mark.parametrize("name", HF)
def test_a_model_of_transformers_against_finite_differences(name: str) -> None:
    runner = runner_of(in_double(name))
    found = gate_gradients(runner, HF_GOAL, HF_PARTS, at=(0.2,), per_head=True, kind="scores")
    expected = slopes(runner, HF_GOAL, HF_PARTS, 0.2, 2e-3)
    # What is left of single precision in the models (angles of positions are constants; tables of experts, softmaxes).
    assert np.abs(found.scores - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
    assert found.per_call is not None
    np.testing.assert_allclose(found.per_call.sum(axis=(0, 1)), found.scores, rtol=1e-9, atol=1e-12)


def test_which_calls_go_which_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[bool]] = {}
    whole = module.is_fast
    for name in HF:
        ways = seen[name] = []
        monkeypatch.setattr(module, "is_fast", lambda one, ways=ways: (ways.append(whole(one)), ways[-1])[1])
        gate_gradients(runner_of(made(name)[0]), HF_GOAL, HF_PARTS, kind="scores")
    assert seen["llama"] == seen["gpt2"] == seen["deepseek_v3"] == [True, True]
    assert seen["gemma2"] == seen["gpt_oss"] == seen["mistral"] == [False, False]


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_weights_stay_as_they_are(name: str) -> None:
    model = made(name)[0]
    parameters = dict(model.named_parameters())
    first = next(iter(parameters.values()))
    first.requires_grad_(False)
    last = list(parameters.values())[-1]
    last.grad = torch.ones_like(last)
    flags = {name: one.requires_grad for name, one in parameters.items()}
    with torch.inference_mode():
        gate_gradients(runner_of(model), HF_GOAL, HF_PARTS, kind="scores")
    assert {name: one.requires_grad for name, one in parameters.items()} == flags
    assert all(one.grad is None for one in parameters.values() if one is not last)
    assert torch.equal(last.grad, torch.ones_like(last))


def test_no_gradient_is_computed_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product for a weight's gradient would have that weight's shape; none is formed."""
    model = made("llama")[0]
    shapes = {tuple(one.shape) for one in model.parameters() if one.ndim == 2}
    formed: list[tuple[int, ...]] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mm.default:
                formed.append(tuple(result.shape))
            return result

    runner = runner_of(model)
    with Products():
        gate_gradients(runner, HF_GOAL, HF_PARTS, kind="scores")
    assert formed
    assert not {*formed, *(shape[::-1] for shape in formed)} & (shapes - {(32, 32)})


# -- bad input


def test_the_passage_of_each_token() -> None:
    gates = Gates(spans((4, 6), (0, 3)), 7)
    assert len(gates) == 2
    assert gates.index.tolist() == [1, 1, 1, -1, 0, 0, -1]
    assert not gates.index.flags.writeable


def test_passages_of_about_one_length_stand_side_by_side() -> None:
    gates = Gates(spans((0, 1), (1, 11), (11, 26), (26, 27), (27, 60)), 60)
    assert [block.places.tolist() for block in gates.blocks] == [[0, 3], [1, 2], [4]]
    assert gates.blocks[1].rows[0].tolist() == [*range(1, 11), 10, 10, 10, 10, 10]
    assert gates.blocks[1].real.sum(dim=1).tolist() == [10, 15]


@pytest.mark.parametrize(
    ("passages", "says"),
    [
        ((), "at least one, got none"),
        (spans((0, 3), (5, 9), (2, 4)), "do not overlap, as a token has one gate, got tokens 0 to 2 and 2 to 3"),
        (spans((3, 10)), "of the 9 of the text, got tokens 3 to 9"),
        (((0, 3),), "expected a Passage"),
        (3, "expected passages of the text, got 3"),
    ],
)
def test_passages_that_cannot_have_gates(passages: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Gates(passages, 9)


@pytest.mark.parametrize("at", [(0.0,), (0.5, 1.01), (-1,), (float("nan"),), (True,), ("0.1",), (), 0.15, "0.1"])
def test_gates_out_of_range(double: Runner, at: Any) -> None:
    with pytest.raises(InputError, match=r"from 1e-30 to 1"):
        gate_gradients(double, GOAL, PARTS, at=at, kind="scores")


def test_a_call_that_cannot_have_gates() -> None:
    c = CASES["small values"]()
    one = Executed(0, "one", 0, c.q, c.k, c.v, (Mask(),), c.scale)
    for m in (0.0, 1.5, torch.tensor([[0.5], [2.0]])):
        with pytest.raises(InputError, match="from 1e-30 to 1"):
            attend_by_scores(one, c.gates, m)
    with pytest.raises(InputError, match=r"one a passage, 1, or that for each head, got shape \(3,\)"):
        attend_by_scores(one, c.gates, torch.ones(3))
    with pytest.raises(InputError, match="7 tokens that read one another, as many as the text has, got 12"):
        attend_by_scores(one, Gates(spans((2, 5)), 7), 0.5)
    crossed = replace(one, kind="cross")
    assert torch.equal(attend_by_scores(crossed, Gates(spans((2, 5)), 7), 0.5), one.attend().output)


def test_a_passage_in_the_answer_and_a_text_that_is_too_long(double: Runner) -> None:
    with pytest.raises(InputError, match=f"sources are tokens 0 to {GOAL.prompt - 1}, got tokens 40 to {GOAL.prompt}"):
        gate_gradients(double, GOAL, spans((40, GOAL.prompt + 1)), kind="scores")
    long = AnswerGoal(TEXT * 8, 10)
    with pytest.raises(InputError, match="at most 300 tokens"):
        gate_gradients(double, long, spans((0, 5)), kind="scores")


def test_numbers_that_overflow(double: Runner) -> None:
    class Overflowing(AnswerGoal):
        def value(self, logits: Tensor) -> Tensor:
            return super().value(logits) * torch.inf

    with pytest.raises(RecordingError, match="finite numbers"):
        gate_gradients(double, Overflowing(GOAL.ids, GOAL.first), PARTS, kind="scores")
