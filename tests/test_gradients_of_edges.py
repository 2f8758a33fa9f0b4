"""The prices of edges: against the equations, against finite differences, and against one another."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from hf_small import made
from kinds import small_model
from wherefrom import InputError, Target
from wherefrom.attention import Mask, attend
from wherefrom.errors import RecordingError
from wherefrom.evidence import edges, running
from wherefrom.evidence.edges import PricedCall
from wherefrom.evidence.goal import AnswerGoal, TokenGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.running import Executed, Runner, runner_of
from wherefrom.model.initial import draw
from wherefrom.model.language import LanguageModel
from wherefrom.model.store import default_folder

TEXT = "To be, or not to be"
HOWS = ("closed form", "score gradient", "direct", "weight", "moved")
FIRST_ORDER = ("closed form", "score gradient")


# -- one execution, made by the page of equations


@st.composite
def calls(draw_: Any) -> PricedCall:
    """An execution in double precision: any grouping, mask, softcap, bias and sinks, and any gradient."""
    group, kv_heads = draw_(st.integers(1, 3)), draw_(st.integers(1, 2))
    rows, past = draw_(st.integers(1, 7)), draw_(st.integers(0, 3))
    rng = np.random.default_rng(draw_(st.integers(0, 2**32)))
    heads, columns, size, value_size = group * kv_heads, rows + past, 3, draw_(st.sampled_from([2, 3, 5]))
    q, k, v, g = (
        rng.normal(size=shape) * factor
        for shape, factor in (
            ((heads, rows, size), draw_(st.sampled_from([0.5, 2.0]))),
            ((kv_heads, columns, size), 1.0),
            ((kv_heads, columns, value_size), 1.0),
            ((heads, rows, value_size), 1.0),
        )
    )
    explicit = padding = None
    if draw_(st.booleans()):
        explicit = rng.random((heads, rows, columns) if draw_(st.booleans()) else (rows, columns)) < 0.7
    if draw_(st.booleans()):
        padding = rng.random(columns) < 0.8
    window = draw_(st.sampled_from([None, 1, 2, 4]))
    mask = Mask(draw_(st.booleans()), window, past, padding, explicit)
    softcap = draw_(st.sampled_from([None, 1.5]))
    sinks = rng.normal(size=heads) if draw_(st.booleans()) else None
    bias = rng.normal(size=(draw_(st.sampled_from([1, heads])), rows, columns)) if draw_(st.booleans()) else None
    return of_page(q, k, v, g, mask, softcap, sinks, bias)


def of_page(q, k, v, g, mask, softcap=None, sinks=None, bias=None, scale=0.7) -> PricedCall:
    found = attend(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks, bias=bias)
    arrays = (q, k, v, found.lse.filled(-np.inf), found.output.filled(0.0), g)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
    projection = torch.from_numpy(np.random.default_rng(1).normal(size=(4, len(q) * v.shape[-1])))
    extra = [None if x is None else torch.from_numpy(x) for x in (bias, sinks)]
    return PricedCall(0, "here", *tensors, mask, scale, softcap, *extra, projection)


def prices_of(call: PricedCall, how: str) -> np.ndarray:
    """Every price of a call [H, T, S], a row at a time."""
    found = np.zeros((call.heads, call.q.shape[1], call.sources))
    every = list(range(call.heads))
    lengths = call.lengths(every) if how == "moved" else None
    direct = call.g if how == "direct" else None
    for row in range(call.q.shape[1]):
        own = None if direct is None else direct[:, [row]]
        reach = call.reach([row])
        found[:, row, reach.start : reach.stop] = call.prices(how, [row], every, lengths, own)[:, 0].numpy()
    return found


def page_of(call: PricedCall, removed: tuple[int, int] | None = None):
    """The equations, with one edge of every head cut."""
    rows, columns = call.q.shape[1], call.sources
    permitted = np.broadcast_to(call.mask.dense(rows, columns), (call.heads, rows, columns)).copy()
    if removed is not None:
        permitted[:, removed[0], removed[1]] = False
    extra = {name: None if x is None else x.numpy() for name, x in (("bias", call.bias), ("sinks", call.sinks))}
    mask = Mask(causal=False, explicit=permitted)
    q, k, v = (x.double().numpy() for x in (call.q, call.k, call.v))
    return attend(q, k, v, mask, scale=call.scale, softcap=call.softcap, **extra)


@settings(max_examples=60)
@given(calls())
def test_the_closed_form_is_what_the_output_loses_when_the_edge_is_cut(call: PricedCall) -> None:
    found, before = prices_of(call, "closed form"), page_of(call)
    y = before.output.filled(0.0)
    for row in range(call.q.shape[1]):
        for column in range(call.sources):
            after = page_of(call, (row, column))
            lost = (call.g[:, row].numpy() * (y - after.output.filled(0.0))[:, row]).sum(axis=-1)  # of an empty row 0
            was = before.permitted[:, row, column]
            if call.sinks is None:
                lost[was & after.empty[:, row]] = np.nan  # nothing would be left
            lost[~was] = 0.0
            np.testing.assert_allclose(found[:, row, column], lost, rtol=1e-5, atol=1e-9)


@settings(max_examples=60)
@given(calls())
def test_every_other_price_is_its_equation(call: PricedCall) -> None:
    page = page_of(call)
    weights, y = page.weights.filled(0.0), page.output.filled(0.0)
    v = np.repeat(call.v.numpy(), call.heads // len(call.v), axis=0)  # H S V
    g = call.g.numpy()
    worth = g @ v.transpose(0, 2, 1)  # H T S
    own = call.projection.numpy().reshape(4, call.heads, -1)
    moved = np.linalg.norm(np.einsum("mhv,hsv->hsm", own, v), axis=-1)[:, None] * weights
    np.testing.assert_allclose(prices_of(call, "weight"), weights, atol=1e-9)
    np.testing.assert_allclose(prices_of(call, "moved"), moved, atol=1e-9)
    np.testing.assert_allclose(prices_of(call, "direct"), weights * worth, atol=1e-9)
    expected = weights * (worth - (g * y).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(prices_of(call, "score gradient"), expected, atol=1e-9)


@settings(max_examples=60)
@given(calls(), st.floats(-3, 3))
def test_rows_sum_to_what_they_must_and_prices_are_linear_in_the_gradient(call: PricedCall, factor: float) -> None:
    page = page_of(call)
    of_row = (call.g * call.y).sum(dim=-1).numpy()  # H T
    share = np.zeros_like(of_row) if page.sink_share is None else page.sink_share.filled(0.0)
    np.testing.assert_allclose(prices_of(call, "score gradient").sum(axis=-1), share * of_row, atol=1e-9)
    np.testing.assert_allclose(prices_of(call, "direct").sum(axis=-1), of_row, atol=1e-9)
    np.testing.assert_allclose(prices_of(call, "weight").sum(axis=-1) + share, ~page.empty, atol=1e-9)
    other = torch.randn(call.g.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for how in FIRST_ORDER:
        one, two = prices_of(call, how), prices_of(replace(call, g=other), how)
        both = prices_of(replace(call, g=call.g + factor * other), how)
        np.testing.assert_allclose(both, one + factor * two, atol=1e-9)


@pytest.mark.parametrize("sharpness", [1.0, 4.0, 30.0, 300.0])
@pytest.mark.parametrize("sink", [None, -3.0])
def test_an_edge_with_nearly_all_of_its_row_keeps_its_digits(sharpness: float, sink: float | None) -> None:
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.normal(size=(2, 9, 4)).astype(np.float32) for _ in range(4))
    q *= sharpness
    sinks = None if sink is None else np.full(2, sink)
    whole = of_page(q.astype(float), k.astype(float), v.astype(float), g.astype(float), Mask(), None, sinks)
    names = ("q", "k", "v", "lse", "y", "g", "sinks")
    single = {name: None if (x := getattr(whole, name)) is None else x.float() for name in names}
    call = replace(whole, **single)
    weights = prices_of(whole, "weight")
    assert sharpness < 30 or (1 - weights.max(axis=-1)[:, 1:]).min() < 1e-4
    near = 1e-5 * (1 + sharpness)  # a score is off by some eps |q| |k|, and a price relatively by as much
    for how in FIRST_ORDER:
        found, right = prices_of(call, how), prices_of(whole, how)
        np.testing.assert_allclose(found, right, rtol=near, atol=near * 1e-2)
    small = prices_of(whole, "closed form") != 0
    page = page_of(whole)
    for head, row, column in np.argwhere(small & (weights > 0.9))[:20]:
        if row or sink is not None:
            lost = page.output.filled(0.0) - page_of(whole, (row, column)).output.filled(0.0)
            expected = whole.g[head, row].numpy() @ lost[head, row]
            assert prices_of(call, "closed form")[head, row, column] == pytest.approx(expected, rel=20 * near)


# -- whole models


def in_double(model: LanguageModel) -> LanguageModel:
    return replace(model, transformer=copy.deepcopy(model.transformer).double())


def answer(model: LanguageModel, text: str = TEXT, tokens: int = 3, unit: Any = "log-odds") -> AnswerGoal:
    ids = model.tokenizer.encode(text).ids
    return AnswerGoal(tuple(ids), len(ids) - tokens, unit)


class Changed:
    """The model's attention, but one edge of one head of one layer has its exponential scaled by exp(added)."""

    def __init__(self, place: int, head: int, row: int, column: int, added: float) -> None:
        self.at, self.added, self.place, self.done = (0, head, row, column), added, place, 0

    def __call__(self, one: Executed) -> Tensor:
        self.done += 1
        if self.done - 1 != self.place:
            return one.attend().output
        added = torch.zeros(1, *one.q.shape[1:3], one.k.shape[2], dtype=one.q.dtype)
        added[self.at] = self.added
        return one.attend(added=added).output


@torch.no_grad()
def value(runner: Runner, goal: Any, attention: Any = None) -> float:
    return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention))[0])


def check_against_differences(
    runner: Runner, goal: Any, priced: Priced, step: float = 1e-3, within: float = 1e-4
) -> None:
    """Some edges of every call: the largest, and some at random."""
    rng = np.random.default_rng(2)
    for place, call in enumerate(priced.calls):
        head = int(rng.integers(call.heads))
        for row in (len(priced) // 2, goal.rows[0]):
            prices = priced.row(call.layer, head, row, "score gradient")
            reach = np.flatnonzero(priced.row(call.layer, head, row, "weight"))
            for column in {int(np.abs(prices).argmax()), int(rng.choice(reach))}:
                up, down = (value(runner, goal, Changed(place, head, row, column, added)) for added in (step, -step))
                slope = (up - down) / (2 * step)
                near = within * max(abs(slope), 1e-2 * np.abs(prices).max()) + 1e-9
                assert abs(slope - prices[column]) <= near


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "qwen3"])
@pytest.mark.parametrize("unit", ["log-odds", "log-probability"])
def test_the_score_gradient_is_the_slope_of_the_goal(kind: str, unit: str) -> None:
    model = in_double(small_model(kind))
    goal = answer(model, unit=unit)
    runner = runner_of(model)
    priced = price(runner, goal)
    assert priced.calls[0].q.dtype == torch.float64
    assert priced.value == pytest.approx(value(runner, goal))
    check_against_differences(runner, goal, priced)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "deepseek_v3", "jamba"])
def test_the_score_gradient_of_a_transformers_model_is_the_slope_of_the_goal(name: str) -> None:
    module, inputs = made(name)
    step, within = 0.02, 1e-2  # of models that compute in float32, whatever they are made of
    if name == "gpt2":
        module, step, within = module.double(), 1e-3, 1e-4
    ids = tuple(inputs["input_ids"][0].tolist())
    goal, runner = AnswerGoal(ids, len(ids) - 2, "log-probability"), runner_of(module)
    priced = price(runner, goal)
    assert (name == "gpt_oss") == (priced.calls[0].sinks is not None)
    assert (name == "gemma2") == (priced.calls[0].softcap is not None)
    check_against_differences(runner, goal, priced, step, within)


def cut_direction(runner: Runner, goal: Any, call: PricedCall, place: int, head: int, row: int, column: int) -> float:
    """What the goal loses to first order when the edge is really cut: the way to the output without it, begun."""

    def attention(one: Executed, step: float, seen: list[int]) -> Tensor:
        y = one.attend().output
        seen.append(1)
        if len(seen) - 1 != place:
            return y
        removed = torch.zeros(1, *one.q.shape[1:3], one.k.shape[2], dtype=torch.bool)
        removed[0, head, row, column] = True
        return y + step * (one.attend(removed=removed).output - y)

    up, down = (value(runner, goal, lambda one, s=s, seen=[]: attention(one, s, seen)) for s in (1e-3, -1e-3))
    return -(up - down) / 2e-3


def test_the_closed_form_is_the_slope_toward_the_cut(small: LanguageModel) -> None:
    model = in_double(small)
    goal, runner = answer(model), runner_of(model)
    priced = price(runner, goal)
    for place, head, row in ((0, 5, 7), (1, 2, goal.rows[0]), (2, 0, goal.rows[1])):
        prices = priced.row(place, head, row)
        for column in (0, int(np.abs(prices).argmax()), row):
            found = cut_direction(runner, goal, priced.calls[place], place, head, row, column)
            assert found == pytest.approx(prices[column], rel=1e-5, abs=1e-5 * np.abs(prices).max())


def test_positive_is_help(smollm: LanguageModel) -> None:
    text = smollm.tokenizer.encode("The capital of France is Paris. The capital of Italy is Rome")
    priced = price(runner_of(smollm), AnswerGoal(tuple(text.ids), len(text) - 1))
    labels = [token.label for token in text]
    sources = priced.sources()
    assert labels[int(sources.argmax())] == " Italy"
    assert priced.unit() == "log-odds"
    assert "first order" in priced.exactness()


def same(one: np.ndarray, other: np.ndarray, near: float = 1e-4) -> None:
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=near, atol=near * max(1e-12, np.nanmax(np.abs(other))))


def test_transformers_gives_the_same_prices(small: LanguageModel, small_folder: Path) -> None:
    goal = answer(small)
    ours, theirs = (price(runner_of(m), goal) for m in (small, LlamaForCausalLM.from_pretrained(small_folder)))
    for how in HOWS:
        same(theirs.sources(how), ours.sources(how))
        same(theirs.heads(how, passages=[range(2, 5)]), ours.heads(how, passages=[range(2, 5)]))


def test_smollm_has_the_same_prices_through_transformers(smollm: LanguageModel) -> None:
    module = AutoModelForCausalLM.from_pretrained(default_folder(), dtype=torch.float32).eval()
    goal = answer(smollm, "When Mary and John went to the store, John gave a drink to Mary", 1)
    ours, theirs = price(runner_of(smollm), goal), price(runner_of(module), goal)
    assert theirs.value == pytest.approx(ours.value, abs=1e-3)
    for how in HOWS:
        same(theirs.sources(how), ours.sources(how), 2e-3)


@pytest.fixture(scope="module")
def priced(small: LanguageModel) -> Priced:
    return price(runner_of(small), answer(small))


@pytest.mark.parametrize("how", HOWS)
def test_sums_are_sums_of_edges(priced: Priced, how: Any) -> None:
    length, rows = len(priced), priced.goal.rows if how == "direct" else range(len(priced))
    maps = np.stack([
        [[priced.row(layer, head, row, how) for row in rows] for head in range(6)] for layer in range(3)
    ])  # L H R S  # fmt: skip
    assert np.isnan(maps).sum() == (18 if how == "closed form" else 0)  # what position 0 reads, itself alone
    maps = np.nan_to_num(maps)
    near = 1e-6 * np.abs(maps).sum()
    np.testing.assert_allclose(priced.sources(how), maps.sum(axis=(0, 1, 2)), atol=near)
    chosen = maps[[0, 2]][:, [1, 5]][:, :, [-2, -1]].sum(axis=(0, 1, 2))
    found = priced.sources(how, rows=[rows[-1], rows[-2]], layers=[2, 0], heads=(1, 5))
    np.testing.assert_allclose(found, chosen, atol=near)
    np.testing.assert_allclose(priced.heads(how), np.abs(maps).sum(axis=(2, 3)), atol=near)
    stretches = [range(3, 7), range(0, 2), range(9, length)]
    inside = np.array([[row in one for row in rows] for one in stretches])  # P R
    split = np.stack([
        maps[:, :, ~within][..., one.start : one.stop].sum(axis=(2, 3))
        for one, within in zip(stretches, inside, strict=True)
    ], axis=-1)  # L H P  # fmt: skip
    np.testing.assert_allclose(priced.passages(stretches, how), split.sum(axis=(0, 1)), atol=near)
    np.testing.assert_allclose(priced.heads(how, passages=stretches), split, atol=near)
    window = priced.window(1, 4, range(rows[0], rows[-1] + 1), range(2, 8), how)
    np.testing.assert_allclose(np.nan_to_num(window), maps[1, 4][:, 2:8], atol=near)
    turned = priced.window(1, 4, range(rows[0], rows[-1] + 1)[::-1], range(2, 8)[::-1], how)
    np.testing.assert_array_equal(turned, window[::-1, ::-1])
    assert priced.edge(1, 4, rows[-1], 3, how) == pytest.approx(maps[1, 4, -1, 3], abs=near)


@pytest.mark.parametrize("how", HOWS)
def test_a_passage_costs_what_its_tokens_cost(priced: Priced, how: Any) -> None:
    passage = range(3, 7)
    outside = [row for row in (priced.goal.rows if how == "direct" else range(len(priced))) if row not in passage]
    tokens = priced.sources(how, rows=outside)[passage.start : passage.stop]
    assert priced.passages([passage], how)[0] == pytest.approx(tokens.sum(), rel=1e-9)


@pytest.mark.parametrize("how", HOWS)
def test_the_size_of_strips_changes_nothing(priced: Priced, how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, by_passage = priced.sources(how), priced.passages([range(2, 6), range(6, 9)], how)
    for size in (1, 300):
        monkeypatch.setattr(edges, "NUMBERS_AT_ONCE", size)
        same(priced.sources(how), whole, 1e-5)
        same(priced.passages([range(2, 6), range(6, 9)], how), by_passage, 1e-5)


def test_the_model_is_left_as_it_was(small_folder: Path) -> None:
    module = LlamaForCausalLM.from_pretrained(small_folder)
    one = module.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    module.lm_head.weight.grad = torch.ones_like(module.lm_head.weight)
    goal = AnswerGoal(tuple(range(3, 12)), 6)
    with torch.no_grad():
        found = price(runner_of(module), goal)
    found.sources("direct")
    assert [p for p in module.parameters() if not p.requires_grad] == [one]
    assert [p for p in module.parameters() if p.grad is not None] == [module.lm_head.weight]
    assert bool((module.lm_head.weight.grad == 1).all())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    with pytest.raises(InputError, match="a probability of 1"):  # it is so after an error, too
        price(runner_of(module), Certain(goal.ids, 6))
    assert [p for p in module.parameters() if not p.requires_grad] == [one]


class Certain(AnswerGoal):
    """A goal that is reached for certain."""

    def value(self, logits: Tensor) -> Tensor:
        return super().value(logits + 1e6 * torch.nn.functional.one_hot(torch.tensor(self.tokens), logits.shape[-1]))


@torch.inference_mode()
def test_prices_are_found_in_inference_mode(small: LanguageModel, priced: Priced) -> None:
    seen: list[tuple[int, int]] = []
    again = price(runner_of(small), priced.goal, progress=lambda done, of: seen.append((done, of)))
    same(again.sources(), priced.sources(), 1e-6)
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("wrong", [np.log(2), -1.0])
def test_a_wrong_lse_prices_nothing(small: LanguageModel, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    right = running.attend_masked

    def off(*args: Any, **how: Any) -> Any:
        found = right(*args, **how)
        return found._replace(lse=found.lse + wrong)

    monkeypatch.setattr(running, "attend_masked", off)
    with pytest.raises(RecordingError, match="self-check of layer 0"):
        price(runner_of(small), answer(small))


# -- along the residual stream


def test_direct_prices_are_what_the_held_final_norm_makes_of_what_was_moved(small: LanguageModel) -> None:
    model = in_double(small)
    ids = tuple(model.tokenizer.encode(TEXT).ids)
    goal, transformer = TokenGoal(ids, Target(40, 77)), model.transformer
    found, last = price(runner_of(model), goal), len(ids) - 1
    assert goal.rows == (last,)
    with torch.no_grad():
        x = transformer.stream(torch.tensor([ids]))[0, last]
        r = (x.square().mean() + transformer.norm.eps).rsqrt() * transformer.norm.weight
        matrix = transformer.vocabulary_head.weight
        for layer, head, source in ((0, 3, 5), (2, 5, 0), (1, 0, last)):
            call = found.calls[layer]
            own = call.projection[:, 10 * head : 10 * head + 10]
            moved = own @ call.v[head // 3, source] * found.edge(layer, head, last, source, "weight")
            lead = (matrix[40] - matrix[77]) @ (r * moved)
            assert found.edge(layer, head, last, source, "direct") == pytest.approx(float(lead), rel=1e-6, abs=1e-12)
            length = float(torch.linalg.vector_norm(moved))
            assert found.edge(layer, head, last, source, "moved") == pytest.approx(length, rel=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "qwen3"])
def test_all_that_reaches_the_stream_makes_the_logits(kind: str) -> None:
    """What attention moved, what feed-forwards and biases added, and the embedding: their shares are the lead."""
    model = in_double(small_model(kind))
    ids = tuple(model.tokenizer.encode(TEXT).ids)
    goal, transformer = TokenGoal(ids, Target(40, 77)), model.transformer
    found, others = price(runner_of(model), goal), []
    hooks = [transformer.blocks[0].register_forward_pre_hook(lambda _, args: others.append(args[0][0, -1]))]
    for block in transformer.blocks:
        hooks.append(block.feed_forward.register_forward_hook(lambda _, __, out: others.append(out[0, -1])))
        if block.attention.output.bias is not None:
            others.append(block.attention.output.bias)
    with torch.no_grad():
        x = transformer.stream(torch.tensor([ids]))[0, -1]
    for hook in hooks:
        hook.remove()
    matrix = transformer.vocabulary_head.weight
    direction = (matrix[40] - matrix[77]) * transformer.norm.weight
    rest = torch.stack(others).sum(dim=0)
    if kind == "gpt2":
        rest, scale = rest - rest.mean(), (x.var(unbiased=False) + transformer.norm.eps).rsqrt()
        constant = (matrix[40] - matrix[77]) @ transformer.norm.bias
    else:
        scale, constant = (x.square().mean() + transformer.norm.eps).rsqrt(), torch.zeros(())
    total = found.sources("direct").sum() + float(direction @ rest * scale + constant)
    assert total == pytest.approx(found.value, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "mistral", "gpt_oss", "mixtral", "jamba"])
def test_transformers_models_whose_final_norm_is_found_have_direct_prices(name: str) -> None:
    module, inputs = made(name)
    ids = tuple(inputs["input_ids"][0].tolist())
    found = price(runner_of(module), AnswerGoal(ids, len(ids) - 2, "log-probability"))
    assert np.abs(found.sources("direct")).max() > 0


@pytest.mark.parametrize(("name", "why"), [("gemma2", "not added to the stream"), ("bert cross", "norm")])
def test_models_of_another_build_have_none(name: str, why: str) -> None:
    module, inputs = made(name)
    ids = tuple(inputs["input_ids"][0].tolist())
    found = price(runner_of(module), AnswerGoal(ids, len(ids) - 2, "log-probability"))
    with pytest.raises(InputError, match=why):
        found.sources("direct")


def test_post_norm_models_have_none(small: LanguageModel) -> None:
    config = replace(small.config, norm_first=False, final_norm=False)
    transformer = draw(config, seed=3)
    model = replace(small, transformer=transformer, checkpoint=replace(small.checkpoint, config=config))
    found = price(runner_of(model), answer(model))
    with pytest.raises(InputError, match="it is post-norm"):
        found.sources("direct")


def test_a_model_that_changed_since_has_no_direct_prices(small: LanguageModel) -> None:
    model = replace(small, transformer=copy.deepcopy(small.transformer))
    found = price(runner_of(model), answer(model))
    model.transformer.blocks[1].feed_forward.down.weight.mul_(1.01)
    with pytest.raises(InputError, match="unchanged"):
        found.sources("direct")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda p: p.sources("sums"), "one of 'closed form'"),
        (lambda p: p.edge(3, 0, 5, 1), "one that has attention, of 0 to 2"),
        (lambda p: p.edge(0, 6, 5, 1), "from 0 to 5"),
        (lambda p: p.edge(0, 0, 19, 1), "from 0 to 18"),
        (lambda p: p.edge(0, 0, 5, -1), "from 0 to 18"),
        (lambda p: p.row(0, 0, 5, "direct"), "one that predicts the goal, of 15 to 17"),
        (lambda p: p.sources(rows=[]), "at least one"),
        (lambda p: p.sources(layers=[7]), "from 0 to 2"),
        (lambda p: p.passages([]), "at least one"),
        (lambda p: p.passages([range(0, 3), range(2, 5)]), "do not overlap"),
        (lambda p: p.passages([range(15, 20)]), "tokens 0 to 18"),
        (lambda p: p.passages([range(3, 3)]), "tokens 0 to 18"),
        (lambda p: replace(p, calls=tuple(replace(c, projection=None) for c in p.calls)).sources("moved"), "a single"),
    ],
)
def test_questions_that_have_no_answer_are_refused(priced: Priced, ask: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(priced)
    assert words in str(caught.value)
