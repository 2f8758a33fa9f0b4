"""Routes: path knock-outs against a dense twin that holds keys for every edge, prices against finite differences, the
identities that must hold, the search, the tree, the graph, and every refusal."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from torch import Tensor, nn

import wherefrom
from command_line import finite_json, typed
from hf_small import made
from kinds import small_model
from wherefrom import InputError, LanguageModel, RouteTrace
from wherefrom.attention import Mask, attend
from wherefrom.evidence.ablations import leave_one_out
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.paths import Paths
from wherefrom.evidence.route_search import Search
from wherefrom.evidence.running import Runner, runner_of
from wherefrom.evidence.steps import Change, Keys, Reading, Rows
from wherefrom.passages import Passage
from wherefrom.views.routed import route_lines

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "routes.schema.json").read_text(encoding="utf-8"))
IDS = tuple(torch.randint(3, 90, (15,), generator=torch.Generator().manual_seed(5)).tolist())
FIRST = 13
CLOSE = 1e-6
"""In double precision, but for log-sum-exps of the kernel and norms of transformers, which are float32."""
PASSAGE = Passage(6, 8, "these")
RELAY, LATER, ANSWER = range(8, 9), range(10, 12), range(12, 14)
FACTS = "Anna lives in Oslo. Boris has a red car. Clara lives in Rome. David works as a baker."
QUESTION = "Question: Where does Clara live? Clara lives in"


# -- a dense twin: keys and values for every edge


@dataclass
class Edit:
    """What some rows read otherwise at some columns: `other` gives k, v [H, T, D] of each layer; None cuts."""

    rows: range
    columns: range
    other: list[tuple[Tensor, Tensor]] | None = None
    heads: dict[int, tuple[int, ...]] | None = None
    part: float = 1.0
    """Of the way from the outputs as they are to those with the edit."""


Twin = Callable[[Sequence[Edit]], tuple[Tensor, list[tuple[Tensor, Tensor]]]]
"""Gives logits [T, N] and the keys and values of a run with edits."""


def dense(
    q: Tensor, k: Tensor, v: Tensor, permitted: Tensor, scale: float, layer: int, edits: Sequence[Edit]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return outputs [H, T, V] of q, k, v [H or K, T, D], and k and v for each head."""
    heads, length = q.shape[:2]
    k, v = (x.repeat_interleave(heads // len(x), dim=0) for x in (k, v))
    keys, values = (x[:, None].expand(-1, length, -1, -1).clone() for x in (k, v))  # H T S D
    left = permitted.expand(heads, -1, -1).clone()

    def outputs() -> Tensor:
        scores = torch.einsum("htd,htsd->hts", q, keys) * scale
        return torch.einsum("hts,htsv->htv", torch.softmax(scores.masked_fill(~left, -torch.inf), dim=-1), values)

    before = outputs()
    for edit in edits:
        for head in range(heads) if edit.heads is None else edit.heads.get(layer, ()):
            rows, columns = (slice(own.start, own.stop) for own in (edit.rows, edit.columns))
            if edit.other is None:
                left[head, rows, columns] = False
            else:
                keys[head, rows, columns] = edit.other[layer][0][head, columns]
                values[head, rows, columns] = edit.other[layer][1][head, columns]
    part = min((edit.part for edit in edits), default=1.0)
    return before + part * (outputs() - before), (k, v)


def own_twin(model: LanguageModel, ids: Sequence[int] = IDS) -> Twin:
    @torch.no_grad()
    def run(edits: Sequence[Edit]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        kept = []

        def door(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Any) -> Tensor:
            permitted = torch.from_numpy(mask.dense(q.shape[2], k.shape[2]))
            y, keys = dense(q[0], k[0], v[0], permitted, scale, site.layer, edits)
            kept.append(keys)
            return y[None]

        transformer = model.transformer
        return transformer.logits(transformer.stream(torch.tensor([ids]), attention=door))[0], kept

    return run


def llama_twin(module: Any, ids: Sequence[int] = IDS) -> Twin:
    """A llama of transformers, written out by hand from its weights."""

    def norm(x: Tensor, own: Any) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + own.variance_epsilon) * own.weight

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    @torch.no_grad()
    def run(edits: Sequence[Edit]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        inner, kept, length = module.model, [], len(ids)
        x = inner.embed_tokens(torch.tensor(ids))
        cos, sin = (own[0].double() for own in inner.rotary_emb(x[None], torch.arange(length)[None]))
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        for number, layer in enumerate(inner.layers):
            a, own = layer.self_attn, norm(x, layer.input_layernorm)
            q, k, v = (f(own).reshape(length, -1, a.head_dim).transpose(0, 1) for f in (a.q_proj, a.k_proj, a.v_proj))
            q, k = turned(q, cos, sin), turned(k, cos, sin)
            y, keys = dense(q, k, v, causal, a.head_dim**-0.5, number, edits)
            kept.append(keys)
            x = x + a.o_proj(y.transpose(0, 1).flatten(1))
            own, m = norm(x, layer.post_attention_layernorm), layer.mlp
            x = x + m.down_proj(nn.functional.silu(m.gate_proj(own)) * m.up_proj(own))
        return module.lm_head(norm(x, inner.norm)), kept

    return run


def effect(twin: Twin, goal: AnswerGoal, chain: Sequence[range], last: Sequence[Edit] = ()) -> float:
    """Return what the goal loses by the route passage -> chain -> answer; or by edits of what the chain's first
    reads."""
    changed = list(last) or [Edit(chain[0] if chain else ANSWER, PASSAGE.positions)]
    for place, reader in pairwise([*chain, ANSWER]):
        changed = [Edit(reader, place, twin(changed)[1])]
    return value(twin, goal, []) - value(twin, goal, changed)


def value(twin: Twin, goal: AnswerGoal, edits: Sequence[Edit]) -> float:
    return float(goal.value(twin(edits)[0][list(goal.rows)][None])[0])


def in_double(model: LanguageModel) -> LanguageModel:
    return replace(model, transformer=copy.deepcopy(model.transformer).double())


OWN = ("llama", "gpt2", "qwen3", "mistral")
GOAL = AnswerGoal(IDS, FIRST)


def case(name: str) -> tuple[Runner, Twin]:
    """Return what runs a model, and its twin; mistral's window makes whole texts run."""
    if name in OWN:
        model = in_double(small_model(name))
        return runner_of(model), own_twin(model)
    module = made("llama")[0].double()
    return runner_of(module), llama_twin(module)


@pytest.fixture(params=[*OWN, "transformers"])
def both(request: pytest.FixtureRequest) -> tuple[Paths, Twin]:
    runner, twin = case(request.param)
    paths = Paths(runner, GOAL, PASSAGE)
    assert paths.alone == (request.param != "mistral")
    return paths, twin


def followed(paths: Paths, chain: Sequence[range], changes: Sequence[Change]) -> float:
    """Return the effect of changes of what the first of a chain reads."""
    for place in chain:
        [keys] = paths.keys([(place, changes)])
        changes = [Change(place, keys)]
    return paths.whole - paths.values([changes])[0]


@pytest.mark.parametrize("chain", [(), (RELAY,), (LATER,), (RELAY, LATER)])
def test_a_route_is_worth_what_the_twin_loses(both: tuple[Paths, Twin], chain: tuple[range, ...]) -> None:
    paths, twin = both
    assert paths.whole == pytest.approx(value(twin, GOAL, []), abs=CLOSE)
    found = followed(paths, chain, [Change(PASSAGE.positions)])
    assert found == pytest.approx(effect(twin, GOAL, chain), abs=CLOSE)
    layers = len(paths.knocked_out()[0].of)
    reached = paths.alone or LATER in chain  # the answer's window reaches no further
    assert (abs(found) > 1e-6) == (reached and len(chain) < layers)  # a step a layer at most


def test_a_step_may_go_by_some_heads(both: tuple[Paths, Twin]) -> None:
    paths, twin = both
    without = twin([Edit(range(PASSAGE.stop, FIRST + 1), PASSAGE.positions)])[1]
    keys, _ = paths.knocked_out()
    names = list(keys.of)
    heads = {1: (0, 3), 2: (1,)} if len(names) > 2 else {0: (2,), 1: (0, 3)}
    named = {names[layer]: own for layer, own in heads.items()}
    cut = [Edit(LATER, PASSAGE.positions, None, heads)]
    assert followed(paths, (LATER,), [Change(PASSAGE.positions, None, named)]) == pytest.approx(
        effect(twin, GOAL, (LATER,), cut), abs=CLOSE
    )
    read = [Edit(LATER, RELAY, without, heads)]
    assert followed(paths, (LATER,), [Change(RELAY, keys, named)]) == pytest.approx(
        effect(twin, GOAL, (LATER,), read), abs=CLOSE
    )


def test_many_readers_are_those_run_one_by_one(both: tuple[Paths, Twin]) -> None:
    paths, _ = both
    keys, _ = paths.knocked_out()
    changes = [[Change(PASSAGE.positions)], [Change(RELAY, keys)], []]
    readers = [(place, own) for own in changes for place in (LATER, range(9, 10), range(11, 12))]
    for (place, own), found in zip(readers, paths.keys(readers), strict=True):
        [alone] = paths.keys([(place, own)])
        for name, pair in found.of.items():
            for one, other in zip(pair, alone.of[name], strict=True):
                assert torch.allclose(one, other, atol=1e-12)
    assert paths.values(changes) == pytest.approx([paths.values([own])[0] for own in changes], abs=1e-12)


# -- what must hold of any model


EVERY = [*OWN, "transformers", "gemma2", "gpt_oss", "deepseek_v3"]
"""Softcaps, windows, sinks, latent keys."""


def runner_for(name: str) -> Runner:
    if name in (*OWN, "transformers"):
        return case(name)[0]
    return runner_of(made(name)[0])


@pytest.mark.parametrize("name", EVERY)
def test_all_routes_of_one_step_are_the_direct_knock_out(name: str) -> None:
    runner = runner_for(name)
    paths = Paths(runner, GOAL, PASSAGE)
    [direct] = leave_one_out(runner, GOAL, [PASSAGE], how="direct").effects
    assert followed(paths, (), [Change(PASSAGE.positions)]) == pytest.approx(direct, abs=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_all_routes_together_are_the_total_knock_out(name: str) -> None:
    runner = runner_for(name)
    paths = Paths(runner, GOAL, PASSAGE)
    without, lost = paths.knocked_out()
    [total] = leave_one_out(runner, GOAL, [PASSAGE], how="total").effects
    assert paths.whole - lost == pytest.approx(total, abs=1e-4)
    cut = Change(PASSAGE.positions)
    for place in (RELAY, LATER):  # each place, with all that it reads as it is there, is what it is there
        [keys] = paths.keys([(place, [cut, Change(range(PASSAGE.stop, place.start), without)])])
        for name_, (k, v) in keys.of.items():
            for one, other in zip((k, v), without.at(name_, place), strict=True):
                assert torch.allclose(one, other, atol=2e-5)
    assert paths.values([[cut, Change(range(PASSAGE.stop, ANSWER.start), without)]]) == pytest.approx([lost], abs=1e-4)


# -- prices


@pytest.mark.parametrize(
    ("name", "chain"),
    [("llama", ()), ("transformers", ()), ("llama", (LATER,)), ("mistral", (LATER,)), ("transformers", (LATER,))],
)
def test_a_price_is_the_slope_of_the_goal(name: str, chain: tuple[range, ...]) -> None:
    runner, twin = case(name)
    paths = Paths(runner, GOAL, PASSAGE)
    without, _ = paths.knocked_out()
    [reading] = paths.readings([paths.answer])
    if chain:
        [reading] = paths.readings(chain, [reading.toward(chain[0])])
    prices = reading.prices(PASSAGE.positions, [RELAY], without)
    assert prices.abs().max() > 1e-4
    other = twin([Edit(range(PASSAGE.stop, FIRST + 1), PASSAGE.positions)])[1]
    reader = chain[0] if chain else ANSWER
    for layer, head in ((0, 1), (1, 0), (1, 3)):
        for step, (columns, keys) in enumerate(((PASSAGE.positions, None), (RELAY, other))):
            slopes = []
            for part in (1e-3, -1e-3):
                edit = Edit(reader, columns, keys, {layer: (head,)}, part)
                slopes.append(slope_value(twin, chain, edit) / 1e-3)
            slope = (slopes[0] - slopes[1]) / 2
            assert -slope == pytest.approx(float(prices[layer, head, step]), rel=1e-4, abs=1e-7)


def slope_value(twin: Twin, chain: Sequence[range], edit: Edit) -> float:
    """Return the goal's value when the first of a chain has gone a part of the way, and it alone has."""
    edits = [Edit(ANSWER, chain[0], twin([edit])[1])] if chain else [edit]
    return value(twin, GOAL, edits)


@st.composite
def executions(draw: Any) -> tuple[Rows, Tensor]:
    """Rows in double precision: any grouping, softcap, bias, sinks and window, and a gradient."""
    group, kv_heads, rows, past = (draw(st.integers(low, 3)) for low in (1, 1, 1, 2))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    heads, size, value_size = group * kv_heads, 4, draw(st.sampled_from([3, 4]))
    mask = Mask(True, draw(st.sampled_from([None, 3])), past)
    permitted = torch.from_numpy(mask.permitted(range(rows), range(past + rows)))[None, None]
    one = Rows(
        ("here", 0),
        0,
        normal(2, heads, rows, size),
        normal(2, kv_heads, rows, size),
        normal(2, kv_heads, rows, value_size),
        normal(1, kv_heads, past, size),
        normal(1, kv_heads, past, value_size),
        permitted,
        0.7,
        draw(st.sampled_from([None, 1.5])),
        normal(1, heads, rows, past + rows) if draw(st.booleans()) else None,
        normal(heads) if draw(st.booleans()) else None,
    )
    return one, normal(heads, rows, value_size)


def page(rows: Rows, version: int, k: Tensor, v: Tensor, permitted: Tensor) -> Tensor:
    """Return the equations' outputs [H, R, V] over k, v [K, S, D] and who may read whom [H, R, S]."""
    extra = {name: None if x is None else x.numpy() for name, x in (("bias", rows.bias), ("sinks", rows.sinks))}
    extra["bias"] = None if extra["bias"] is None else extra["bias"][0]
    mask = Mask(causal=False, explicit=permitted.numpy())
    found = attend(rows.q[version].numpy(), k.numpy(), v.numpy(), mask, scale=rows.scale, softcap=rows.softcap, **extra)
    return torch.from_numpy(found.output.filled(0.0))


@settings(max_examples=60)
@given(executions(), st.booleans())
def test_changed_rows_are_those_of_the_equations(drawn: tuple[Rows, Tensor], some: bool) -> None:
    rows, _ = drawn
    heads, past = rows.q.shape[1], rows.before
    group = heads // rows.k.shape[1]
    random = torch.Generator().manual_seed(1)
    k, v = (torch.randn(x.shape[1:], dtype=torch.float64, generator=random) for x in (rows.past_k, rows.past_v))
    where = {("here", 0): (heads - 1,)} if some else None
    versions = [[Change(range(past - 1, past), Keys(0, {("here", 0): (k, v)}), where)], [Change(range(0, 1), None)]]
    found = rows.attend(versions)
    for version in range(2):
        permitted = rows.permitted[0].expand(heads, -1, -1).clone()
        whole = [
            torch.cat(pair, dim=1) for pair in ((rows.past_k[0], rows.k[version]), (rows.past_v[0], rows.v[version]))
        ]
        every = [x.repeat_interleave(group, dim=0) for x in whole]
        if version == 0:
            for head in where[("here", 0)] if where else range(heads):
                every[0][head, past - 1], every[1][head, past - 1] = k[head // group, -1], v[head // group, -1]
        else:
            permitted[:, :, 0] = False
        assert torch.allclose(found[version], page(rows, version, *every, permitted), atol=1e-10)


@settings(max_examples=60)
@given(executions())
def test_the_gradient_by_what_is_read_is_that_of_autograd(drawn: tuple[Rows, Tensor]) -> None:
    rows, g = drawn
    one = rows.version(0)
    past = [x.clone().requires_grad_() for x in (one.past_k, one.past_v)]
    leaf = Rows(**{**vars(one), "past_k": past[0], "past_v": past[1]})
    wanted = torch.autograd.grad((leaf.attend()[0] * g).sum(), past)
    place = range(1, rows.before)
    found = Reading(range(rows.before, rows.before + 1), ((one, g),)).toward(place).of["here", 0]
    for own, other in zip(found, wanted, strict=True):
        assert torch.allclose(own, other[0, :, 1:], atol=1e-10)


# -- the search


@pytest.fixture(scope="module")
def small_trace() -> RouteTrace:
    model = in_double(small_model("gpt2"))
    return wherefrom.trace_routes(model, "the cat sat on a mat", " kl", source="cat", relays="token", budget=60)


def test_what_is_told_of_routes_is_what_the_twin_says(small_trace: RouteTrace) -> None:
    found, ids = small_trace, small_trace.tokens.ids
    goal, twin = AnswerGoal(ids, found.first), own_twin(in_double(small_model("gpt2")), ids)
    answer = range(found.first - 1, len(ids) - 1)
    passage, total = found.passage.positions, None
    assert len(found.routes) >= 4
    assert any(len(route.places) == 4 for route in found.routes)
    assert {number for number, step in enumerate(found.steps) if step.source} - {
        step.then for step in found.steps if not step.source
    }
    without = twin([Edit(range(passage.stop, len(ids)), passage)])
    total = found.value - float(goal.value(without[0][list(goal.rows)][None])[0])
    assert found.total == pytest.approx(total, abs=CLOSE)

    def at(changed: list[Edit]) -> float:
        return found.value - float(goal.value(twin(changed)[0][list(goal.rows)][None])[0])

    def along(places: Sequence[int], changed: list[Edit]) -> float:
        for place, reader in pairwise(places):
            rows = answer if reader == len(found.places) - 1 else found.places[reader].positions
            changed = [Edit(rows, found.places[place].positions, twin(changed)[1])]
        return at(changed)

    for route in found.routes:
        reader = answer if route.places[1] == len(found.places) - 1 else found.places[route.places[1]].positions
        assert route.effect == pytest.approx(along(route.places[1:], [Edit(reader, passage)]), abs=CLOSE)
        assert found.steps[route.steps[0]].effect == route.effect
        assert [found.steps[number].source for number in route.steps] == list(route.places[:-1])
    for step in found.steps:  # through a relay: what its reader makes of it as it is without the passage
        if step.source == 0:
            continue
        places, then = [step.reader], step.then
        while then is not None:
            places.append(found.steps[then].reader)
            then = found.steps[then].then
        rows = answer if step.reader == len(found.places) - 1 else found.places[step.reader].positions
        edits = [Edit(rows, found.places[step.source].positions, without[1])]
        assert step.effect == pytest.approx(along(places, edits), abs=CLOSE)
        for head in step.heads:
            edits[0].heads = {head.layer: (head.head,)}
            assert head.effect == pytest.approx(along(places, edits), abs=CLOSE)
    for named, told in ((False, found.joint), (True, found.named)):
        assert told == pytest.approx(at(together(found, twin, answer, named)), abs=CLOSE)
    assert found.kept == pytest.approx(total - at(alone(found, twin, answer, without[1])), abs=CLOSE)
    assert found.share == pytest.approx(found.joint / total)


def read_by(found: RouteTrace, then: int | None) -> list[tuple[int, Any]]:
    return [(number, step) for number, step in enumerate(found.steps) if step.then == then]


def of(heads: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    layers: dict[int, tuple[int, ...]] = {}
    for own in heads:
        layers[own.layer] = (*layers.get(own.layer, ()), own.head)
    return layers


def together(found: RouteTrace, twin: Twin, rows: range, named: bool, then: int | None = None) -> list[Edit]:
    """Return what is read otherwise when all routes are knocked out at once."""
    edits = []
    for number, step in read_by(found, then):
        place = found.places[step.source].positions
        keys = None if step.source == 0 else twin(together(found, twin, place, named, number))[1]
        edits.append(Edit(rows, place, keys, of(step.heads) if named else None))
    return edits


def alone(found: RouteTrace, twin: Twin, rows: range, without: Any, then: int | None = None) -> list[Edit]:
    """Return what is read otherwise when they are all that is left of the passage."""
    edits = [Edit(rows, range(found.passage.stop, rows.start), without)]
    steps = read_by(found, then)
    if all(step.source for _, step in steps):
        edits.append(Edit(rows, found.passage.positions))
    for number, step in steps:
        if step.source:
            place = found.places[step.source].positions
            edits.append(Edit(rows, place, twin(alone(found, twin, place, without, number))[1]))
    return edits


@pytest.mark.long
def test_the_passage_with_the_largest_gate_is_found_where_none_is_given(smollm: LanguageModel) -> None:
    found = wherefrom.trace_routes(smollm, FACTS, "Rome", question=QUESTION)
    assert found.passage.label == "Clara lives in Rome."
    assert found.found_by == "gate"
    told = wherefrom.trace_routes(smollm, FACTS, "Rome", question=QUESTION, source="Clara lives in Rome.")
    assert told.total == pytest.approx(found.total, abs=1e-4)
    assert told.cost.passes == pytest.approx(found.cost.passes - 2, abs=1e-6)
    names = [found.places[step.source].label for step in found.steps]
    assert "Clara" in names  # of the question, who is looked up
    assert 0.8 < (found.share or 0.0) < 1.3
    assert found.cost.passes <= found.cost.budget == 12


def test_a_route_of_one_step_is_all_there_is_with_a_depth_of_one(smollm: LanguageModel) -> None:
    found = wherefrom.trace_routes(smollm, FACTS, "Rome", question=QUESTION, source="Clara lives in Rome.", depth=1)
    assert [route.places for route in found.routes] == [(0, 1)]
    assert found.measured == 1
    runner = runner_of(smollm)
    goal = AnswerGoal(found.tokens.ids, found.first)
    [direct] = leave_one_out(runner, goal, [found.passage], how="direct").effects
    assert found.joint == pytest.approx(direct, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_no_more_is_run_than_the_budget_allows_and_the_least_is_enough(name: str) -> None:
    model, told = small_model(name), {"source": "gh", "relays": "token", "unit": "log-probability"}
    with pytest.raises(InputError, match=r"the budget: expected at least [\d.]+ passes") as refused:
        wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=1.0, **told)
    least = refused.value.least
    found = wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=least, **told)
    assert found.measured == 1
    assert found.cost.passes <= least
    with pytest.raises(InputError, match=f"at least {least:g} passes.*Give {least:g} to follow no relay"):
        wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=least - 0.1, **told)
    assert (
        wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=np.float32(least + 1), **told).cost.budget > 1
    )
    more = wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=least + 12, **told)
    assert more.cost.passes <= least + 12
    assert more.measured > 1


def test_the_least_budget_holds_the_gates_that_find_the_passage() -> None:
    model, told = small_model("llama"), {"by": "word", "relays": "token", "unit": "log-probability"}
    with pytest.raises(InputError, match=r"the budget: expected at least .* for the gates that find the passage") as no:
        wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=3, **told)
    assert 3 < no.value.least < 6
    assert f"Give {no.value.least:g}" in str(no.value)
    assert "got 3." in str(no.value)
    found = wherefrom.trace_routes(model, "ab, cd ef; gh ij", " kl", budget=no.value.least, **told)
    assert found.cost.passes <= no.value.least


def test_a_depth_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[Any] = []
    candidates = Search._candidates

    def counted(self: Search, level: Any) -> Any:
        levels.append(level)
        assert len(levels) <= len("ab cd ef gh ij kl mn op")
        return candidates(self, level)

    monkeypatch.setattr(Search, "_candidates", counted)
    told = {"source": "ab", "unit": "log-probability", "budget": 30}
    found = wherefrom.trace_routes(small_model("llama"), "ab cd ef gh ij", " q", depth=10**6, **told)
    assert found.depth == 10**6
    assert found.measured >= 1


@pytest.mark.long
def test_a_model_of_transformers_has_the_same_routes(smollm: LanguageModel) -> None:
    from wherefrom.model.store import default_folder

    theirs = wherefrom.load(default_folder(), library="transformers")
    options = {"question": QUESTION, "source": "Clara lives in Rome."}
    ours, found = (wherefrom.trace_routes(own, FACTS, "Rome", **options) for own in (smollm, theirs))
    assert found.tokens.ids == ours.tokens.ids
    assert found.total == pytest.approx(ours.total, abs=1e-3)
    assert found.joint == pytest.approx(ours.joint, abs=1e-2)
    assert {route.places[1:-1] for route in found.routes[:2]} == {route.places[1:-1] for route in ours.routes[:2]}


def test_nothing_that_reaches_the_answer_is_said_to() -> None:
    """A window of 4 keys in 3 layers reaches 9 tokens back."""
    found = wherefrom.trace_routes(small_model("mistral"), "ab cd ef gh ij kl mn op", " q", source="ab", budget=30)
    assert not found.reached
    assert found.routes == ()
    assert found.share is None
    assert "Nothing of the passage reached the answer" in " ".join(line.plain for line in route_lines(found))
    assert "Nothing of the passage reached the answer" in str(found)
    written = found.to_json()
    jsonschema.validate(written, SCHEMA)
    assert written["share"] is written["joint"] is None


# -- how it is shown


def test_a_tree_is_drawn_within_its_columns(small_trace: RouteTrace) -> None:
    for width in (80, 60, 44):
        lines = [line.plain for line in route_lines(small_trace, width=width)]
        assert max(map(cell_len, lines)) <= width
    for width in (1, 10, 17, 18, 25):  # too narrow for a tree, which is drawn whole all the same
        lines = [line.plain for line in route_lines(small_trace, width=width)]
        start = next(number for number, line in enumerate(lines) if line.startswith("  effect  share"))
        drawn = lines[start + 1 : start + 1 + len(small_trace.steps)]
        assert [float(line.split()[0]) for line in drawn] == pytest.approx(
            [small_trace.steps[number].effect for _, number in small_trace.tree()], abs=0.006
        )
    lines = [line.plain for line in route_lines(small_trace)]
    start = next(number for number, line in enumerate(lines) if line.startswith("  effect  share"))
    drawn = lines[start + 1 : start + 1 + len(small_trace.steps)]
    for line, (deep, number) in zip(drawn, small_trace.tree(), strict=True):
        step = small_trace.steps[number]
        assert float(line.split()[0]) == pytest.approx(step.effect, abs=0.006)
        place = small_trace.places[step.source]
        wanted = "the passage" if step.source == 0 else f'{place.start} "'
        assert line[17 + 2 * deep :].startswith(wanted)
        assert line[17 : 17 + 2 * deep].strip(" │├└") == ""
        assert bool(deep) == (line[17:].lstrip(" │")[0] in "├└")
    text = " ".join(" ".join(lines).split())
    assert f"The {len(small_trace.routes)} routes knocked out together: {small_trace.joint:+.2f}, " in text
    assert f"Left alone they keep {small_trace.kept:+.2f}, " in text


def said(trace: RouteTrace) -> str:
    return " ".join(" ".join(line.plain for line in route_lines(trace)).split())


def test_one_route_is_spoken_of_as_one(smollm: LanguageModel) -> None:
    told = {"question": QUESTION, "source": "Clara lives in Rome.", "depth": 1}
    found = wherefrom.trace_routes(smollm, FACTS, "Rome", **told)
    assert ", 1 route, " in repr(found)
    assert "The one route knocked out: " in said(found)
    assert " of the total effect. Left alone it keeps " in said(found)
    assert "Knocked out in the named heads of each step alone: " in said(found)
    assert "measured by a path knock-out. heads:" in said(found)  # no relay, and none is spoken of
    assert "do not add up" not in said(found)
    assert "In all " in str(found)
    assert found.cost.reading == pytest.approx(2, abs=0.1)  # with and without a blank before the answer
    assert "1 other route measured, within ±0.01" in said(replace(found, measured=2, largest_left=0.01))


def test_the_most_routes_are_named_where_they_leave_others_out(small_trace: RouteTrace) -> None:
    shown = len(small_trace.routes)
    assert small_trace.most == 12 >= shown
    more, most = (
        replace(small_trace, measured=shown + 3, largest_left=0.5, most=shown + 1),
        f"{shown} are shown at most",
    )
    assert "3 other routes measured, each within ±0.50." in said(more)
    assert f"3 other routes measured, each within ±0.50; {most}." in said(replace(more, most=shown))
    assert most not in said(replace(more, most=shown, measured=shown))


def test_no_shares_are_told_of_a_total_that_is_small_beside_what_cancels(small_trace: RouteTrace) -> None:
    largest = max(abs(step.effect) for step in small_trace.steps)
    near, small = (replace(small_trace, total=largest / times) for times in (2.9, 3.1))
    assert not near.cancels
    assert near.share == pytest.approx(near.joint / near.total)
    assert "cancel" not in said(near)
    assert small.cancels
    assert small.share is None
    assert all(row["share"] is None for row in small.table())
    assert "small beside what single steps do, and these cancel: no share is told" in str(small)
    assert f"small beside what single steps do, up to {largest:.2f}, and these cancel" in said(small)
    assert "%" not in said(small).split("the answer reads")[1]
    assert "speaks against the answer. The total effect" in said(replace(small, total=-small.total))
    jsonschema.validate(small.to_json(), SCHEMA)
    assert {route["share"] for route in small.to_json()["routes"]} == {None}


def test_a_passage_that_speaks_against_the_answer_is_said_to(small_trace: RouteTrace) -> None:
    turned, text = replace(small_trace, total=-abs(small_trace.total)), "The passage speaks against the answer"
    assert text in " ".join(line.plain for line in route_lines(turned))
    assert text in str(turned)
    good = replace(small_trace, total=abs(small_trace.total))
    assert text not in " ".join(line.plain for line in route_lines(good)) + str(good)


def test_the_graph_holds_together(small_trace: RouteTrace) -> None:
    found = json.loads(json.dumps(small_trace.to_json(), allow_nan=False))
    jsonschema.validate(found, SCHEMA)
    assert [place["kind"] for place in found["places"]] == [
        "passage",
        *["relay"] * (len(found["places"]) - 2),
        "answer",
    ]
    assert [place["tokens"] for place in found["places"]] == sorted(place["tokens"] for place in found["places"])
    for step in found["steps"]:
        then = step["then"]
        assert step["source"] < step["reader"]
        assert step["reader"] == (found["places"][-1]["number"] if then is None else found["steps"][then]["source"])
    assert found["share"] == pytest.approx(found["joint"] / found["total"], abs=1e-5)
    rows = list(small_trace.table())
    assert [row["effect"] for row in rows] == [route.effect for route in small_trace.routes]
    assert rows[0]["route"].startswith("passage > ")


# -- refusals


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"source": "nobody"}, 'the marked text "nobody": expected a text that occurs once'),
        ({"source": "lives in"}, r'the marked text "lives in": expected .* got one that occurs 3 times'),
        ({"source": (60, 70)}, "a mark: expected a text, or tokens"),
        ({"source": "Clara lives in", "prompt": QUESTION, "question": None}, "before the row that predicts the answer"),
        ({"depth": 0}, "the depth: expected a whole number from 1 up, got 0"),
        ({"budget": 0.5}, "the budget: expected more than 1 pass"),
        ({"budget": 2, "source": None}, "the budget: expected more than 3 passes, .* gates"),
        ({"budget": "much"}, "the budget: expected more than 1 pass.*, got 'much'"),
        ({"budget": math.inf}, "the budget: expected a finite number, more than 1 pass.*, got inf"),
        ({"budget": math.nan}, "the budget: expected a finite number, more than 1 pass.*, got nan"),
        ({"budget": 10**400}, "the budget: expected more than 1 pass.*, got a whole number of more than 40 digits"),
        ({"budget": np.bool_(True)}, "the budget: expected more than 1 pass"),
        ({"budget": 2, "source": "Anna lives in Oslo."}, r"the budget: expected at least 2\.\d passes"),
        ({"relays": "syllable"}, 'the unit of passages: expected "token"'),
        ({"relays": ["Clara"]}, 'the relays: expected a unit, such as "word"'),
        ({"answer": ""}, "the answer"),
        ({"words": (7,)}, "the chosen tokens of the answer"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(smollm: LanguageModel, how: dict[str, Any], said: str) -> None:
    told = {"prompt": FACTS, "answer": "Rome", "question": QUESTION, "source": "Clara lives in Rome.", **how}
    with pytest.raises(InputError, match=said):
        wherefrom.trace_routes(smollm, told.pop("prompt"), told.pop("answer"), **told)


def test_log_odds_of_certainty_are_refused_by_name() -> None:
    paths = Paths(runner_of(small_model("llama")), GOAL, PASSAGE)
    logits = torch.full((len(GOAL.rows), 259), -1e9)
    for place, token in enumerate(GOAL.tokens):
        logits[place, token] = 1e9
    with pytest.raises(InputError, match=r'log-odds in a knock-out of "these": expected a probability between 0 and 1'):
        paths._worth(logits)


def test_a_search_refuses_what_leaves_nothing_to_read() -> None:
    """A window of one key but for the passage's: the relay may read nothing else."""
    rows = Rows(
        ("here", 0), 4, *(torch.ones(1, 1, 1, 2) for _ in range(3)), *(torch.ones(1, 1, 1, 2) for _ in range(2)),
        torch.tensor([[[[True, False]]]]), 1.0,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"a path knock-out: expected something left to read.* layer 4"):
        rows.attend([[Change(range(1))]])


@pytest.mark.long
def test_the_command_prints_what_python_gives(tmp_path: Path) -> None:
    options = ["--question", QUESTION, "--answer", "Rome", "--source", "Clara lives in Rome."]
    found = finite_json(typed(tmp_path, "routes", FACTS, *options, "--depth", 2, "--json"))
    jsonschema.validate(found, SCHEMA)
    assert found["depth"] == 2
    assert found["places"][0]["label"] == "Clara lives in Rome."
    drawn = typed(tmp_path, "routes", FACTS, *options, "--depth", 2)
    assert (drawn.code, drawn.err) == (0, "")
    assert drawn.widest <= 80
    assert f"{found['joint']:+.2f}" in drawn.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--answer", "Rome", "--write", 3], "the answer: expected one, got --answer and --write"),
        (["--source", "Clara", "--by", "word"], "the source: expected --source or --by, got both"),
        (["--depth", 0], "Invalid value for '--depth'"),
        (["--answer", "Rome", "--source", "nobody"], 'the marked text "nobody"'),
    ],
)
def test_the_command_refuses_in_a_sentence(tmp_path: Path, options: list[object], said: str) -> None:
    ended = typed(tmp_path, "routes", FACTS, *options)
    assert ended.code == 2
    assert said in ended.err
