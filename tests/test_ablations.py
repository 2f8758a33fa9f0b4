"""Measured effects of passages: against texts really built again, and whole texts with the cut in a dense mask."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

import wherefrom
from wherefrom import Cut, Destination, InputError, RecordingError, Scope, Target, knock_out, knock_out_heads
from wherefrom.attention import Mask
from wherefrom.evidence import ablations, removal
from wherefrom.evidence.ablations import Ablator, ablate, knock_out_edges, leave_one_out, noise_floor, subsets
from wherefrom.evidence.goal import AnswerGoal, TokenGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.huggingface import TransformersDestination
from wherefrom.evidence.prefix import Piece, Prefix
from wherefrom.evidence.running import Executed, Runner, runner_of
from wherefrom.evidence.where import Where, sizes_of
from wherefrom.model.attention_function import plain

CLOSE = 1e-4  # nats
IDS = tuple(torch.randint(3, 90, (26,), generator=torch.Generator().manual_seed(5)).tolist())
MEANINGS = ("deletion", "total", "direct")


@dataclass(frozen=True)
class Part:
    """A passage."""

    start: int
    stop: int
    label: str = "some words"


PARTS = (Part(1, 4), Part(4, 5), Part(7, 12), Part(12, 17), Part(17, 20))  # 0, 5 and 6 are in none; 19 is the last
GOALS = {
    "log-odds": AnswerGoal(IDS, 20),
    "log-probability": AnswerGoal(IDS, 20, "log-probability"),
    "chosen": AnswerGoal(IDS, 20, "log-odds", (1, 3)),
    "the last prompt token stays": AnswerGoal(IDS, 22),
    "token": TokenGoal(IDS, Target(33)),
    "lead": TokenGoal(IDS, Target(33, 44)),
}
KEPT = np.array(
    [
        [1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1],
        [1, 0, 1, 0, 1],
        [1, 1, 0, 0, 1],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0],
    ],
    dtype=bool,
)


@pytest.fixture(scope="module")
def own(small) -> Runner:
    return runner_of(small)


def llama(**changes) -> torch.nn.Module:
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 101,
        "max_position_embeddings": 64,
    }
    kind = changes.pop("kind", "Llama")
    model = getattr(hf, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(
        getattr(hf, f"{kind}Config")(**{**sizes, **changes})
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)  # so that the weights of attention are far from even
    return model


@pytest.fixture(scope="module")
def foreign() -> Runner:
    return runner_of(llama())


@pytest.fixture(params=["own", "foreign"])
def runner(request) -> Runner:
    return request.getfixturevalue(request.param)


def edges(goal, parts, kept, how):
    """Which edges a choice removes, bool [T, T], in plain loops."""
    length = len(goal.ids)
    passage = [next((n for n, part in enumerate(parts) if part.start <= i < part.stop), -1) for i in range(length)]
    removed = np.zeros((length, length), dtype=bool)
    for i in range(length):
        for j in range(i):
            dropped = passage[j] >= 0 and not kept[passage[j]]
            removed[i, j] = dropped and passage[i] != passage[j] and (how == "total" or i >= goal.rows[0])
    return removed


def twin(runner, goal, parts, kept, how, layers=None, heads=None):
    """The same by a whole text run again, all edges in a dense mask; or by a text really built again."""
    if how == "deletion":
        ids = [
            token
            for i, token in enumerate(goal.ids)
            if not any(part.start <= i < part.stop and not own for part, own in zip(parts, kept, strict=True))
        ]
        rows = [row - (len(goal.ids) - len(ids)) for row in goal.rows]
        return float(goal.value(runner.logits(torch.tensor([ids]), rows))[0])
    removed = torch.from_numpy(edges(goal, parts, kept, how))

    def attention(one):
        inside = layers is None or one.layer in layers
        own = [
            head if heads is None or isinstance(heads[0], int) else (one.layer, head) for head in range(len(one.q[0]))
        ]
        of_heads = torch.tensor([inside and (heads is None or head in heads) for head in own])
        permitted = one.permitted() & ~(removed & of_heads[:, None, None])
        explicit = Mask(causal=False, explicit=permitted[0].numpy())
        return plain(one.q, one.k, one.v, mask=explicit, scale=one.scale, site=None)

    with torch.no_grad():
        return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention))[0])


def twins(runner, goal, parts, kept, how, **scope):
    with torch.no_grad():
        return np.array([twin(runner, goal, parts, choice, how, **scope) for choice in kept])


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("how", MEANINGS)
def test_values_are_those_of_the_slow_twin(runner, how, name):
    goal = GOALS[name]
    found = ablate(runner, goal, PARTS, KEPT, how=how)
    expected = twins(runner, goal, PARTS, KEPT, how)
    assert np.abs(found.values - expected).max() <= CLOSE
    assert found.whole == found.values[0]
    assert np.abs(found.effects).max() > 100 * CLOSE  # so that the comparison says something
    assert (found.how, found.unit) == (how, goal.unit)
    assert found.values.dtype == np.float64
    assert found.alone > 0


@pytest.mark.parametrize("how", ["total", "direct"])
@pytest.mark.parametrize(
    "scope",
    [{"layers": (1,)}, {"heads": (0, 3)}, {"layers": (0,), "heads": (1,)}, {"heads": [(1, 3), (0, 1), (1, 0)]}],
    ids=str,
)
def test_scopes(runner, how, scope):
    goal = GOALS["log-odds"]
    found = ablate(runner, goal, PARTS, KEPT, how=how, **scope)
    assert np.abs(found.values - twins(runner, goal, PARTS, KEPT, how, **scope)).max() <= CLOSE
    assert np.abs(found.effects).max() > 10 * CLOSE
    assert found.alone > 0
    assert found.where != "all layers and heads"


@pytest.mark.parametrize("how", ["total", "direct"])
def test_scopes_of_whole_texts(runner, how, monkeypatch):
    monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    goal, heads = GOALS["log-odds"], [(1, 3), (0, 1)]
    found = ablate(runner, goal, PARTS, KEPT, how=how, heads=heads)
    assert np.abs(found.values - twins(runner, goal, PARTS, KEPT, how, heads=heads)).max() <= CLOSE


@pytest.mark.parametrize("how", MEANINGS)
def test_whole_texts_run_again_give_the_same(runner, how, monkeypatch):
    goal = GOALS["log-odds"]
    alone = ablate(runner, goal, PARTS, KEPT, how=how)
    monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    whole = ablate(runner, goal, PARTS, KEPT, how=how)
    assert np.abs(alone.values - whole.values).max() <= CLOSE / 3
    assert whole.alone == 0 < alone.alone
    assert whole.cost > alone.cost


def test_a_total_cut_is_what_rerun_says(small, own):
    goal = GOALS["token"]
    found = leave_one_out(own, goal, PARTS, how="total")
    for part, value in zip(PARTS, found.values, strict=True):
        cut = Cut(tuple(range(part.stop, len(IDS))), tuple(range(part.start, part.stop)))
        assert value == pytest.approx(float(goal.value(wherefrom.rerun(small, IDS, cut)[None])[0]), abs=CLOSE)


@pytest.mark.parametrize("scope", [Scope(), Scope((0, 2)), Scope(None, (1, 4)), Scope((1,), (2,))], ids=str)
@pytest.mark.parametrize("name", ["token", "lead"])
def test_a_direct_cut_of_a_token_is_a_knock_out(small, own, scope, name):
    goal = GOALS[name]
    parts = [Part(i, i + 1) for i in range(len(IDS) - 1)]
    recording = recorded(small)
    expected = knock_out(Destination(small, recording), goal.target, [(i,) for i in range(len(parts))], scope=scope)
    found = leave_one_out(own, goal, parts, how="direct", layers=scope.layers, heads=scope.heads)
    assert np.abs(found.effects - expected.nats).max() <= 1e-5
    assert found.alone == len(parts)


def recorded(small):
    text = "".join(small.tokenizer.decode([token]) for token in IDS)
    recording = wherefrom.record(small, text)
    assert recording.tokens.ids == IDS
    return recording


def test_a_direct_cut_of_a_token_is_a_knock_out_in_transformers_too():
    model, goal = llama(), GOALS["token"]
    parts = [Part(i, i + 1) for i in range(len(IDS) - 1)]
    recording = wherefrom.record(model, input_ids=torch.tensor([IDS]))
    at = TransformersDestination(model, recording)
    expected = knock_out(at, goal.target, [(i,) for i in range(len(parts))])
    assert np.abs(leave_one_out(runner_of(model), goal, parts, how="direct").effects - expected.nats).max() <= 1e-5


ODD = {
    "a window": {"kind": "Mistral", "sliding_window": 5},
    "softcaps": {"kind": "Gemma2", "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0},
    "sinks": {"kind": "GptOss", "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 6},
    "learned positions": {"kind": "GPT2"},
}


@pytest.mark.parametrize("how", MEANINGS)
@pytest.mark.parametrize("name", ODD)
def test_models_whose_calls_are_not_plain(name, how):
    runner, goal = runner_of(llama(**ODD[name])), AnswerGoal(IDS, 20, "log-probability")
    found = ablate(runner, goal, PARTS, KEPT, how=how)
    assert np.isfinite(found.values).all()
    plain_calls = name == "learned positions"
    assert (found.alone > 0) == plain_calls
    if how == "deletion" or plain_calls or name == "a window":
        assert np.abs(found.values - twins(runner, goal, PARTS, KEPT, how)).max() <= CLOSE
    else:

        def attention(one):
            return one.attend(removed=cut).output

        for choice, value in zip(KEPT, found.values, strict=True):
            cut = torch.from_numpy(edges(goal, PARTS, choice, how))
            with torch.no_grad():
                logits = runner.logits(torch.tensor([IDS]), goal.rows, attention=attention)
            assert value == pytest.approx(float(goal.value(logits)[0]), abs=CLOSE)


def test_a_model_that_mixes_tokens_by_other_ways_is_run_whole():
    from hf_small import _jamba

    torch.manual_seed(1)
    runner = runner_of(_jamba()[0].eval())
    goal = AnswerGoal(IDS, 20, "log-probability")
    for how in MEANINGS:
        found = ablate(runner, goal, PARTS, KEPT, how=how)
        assert found.alone == 0
        assert np.abs(found.values - twins(runner, goal, PARTS, KEPT, how)).max() <= CLOSE


def test_angles_that_grow_with_the_text_are_not_reused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert ablate(runner_of(llama(rope_parameters=rope)), GOALS["token"], PARTS, KEPT).alone == 0


@pytest.mark.parametrize("how", MEANINGS)
@pytest.mark.parametrize("alone", [True, False])
def test_no_map_of_all_pairs_is_formed(own, how, alone, monkeypatch):
    def never(self):
        raise AssertionError("a map of T x S")

    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    monkeypatch.setattr(Executed, "permitted", never)
    assert np.isfinite(ablate(own, GOALS["log-odds"], PARTS, KEPT, how=how).values).all()


@settings(max_examples=25)
@given(data=st.data())
def test_any_passages_and_choices(small, data):
    runner, length = runner_of(small), data.draw(st.integers(6, 26))
    first = data.draw(st.integers(3, length - 1))
    goal = AnswerGoal(IDS[:length], first, "log-probability")
    marks = sorted(data.draw(st.sets(st.integers(1, first), min_size=2, max_size=6)))
    parts = [Part(start, stop) for start, stop in pairwise(marks)]
    kept = np.array([data.draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))])
    how = data.draw(st.sampled_from(MEANINGS))
    found = ablate(runner, goal, parts, kept, how=how)
    assert np.abs(found.values - twins(runner, goal, parts, kept, how)).max() <= CLOSE


# -- sets of edges

LATE = tuple(range(15, 26))
EDGES = (
    Cut((22,), (3, 8)),
    Cut(None, (5,)),
    Cut(LATE, tuple(range(1, 4)), Scope((1,))),
    Cut(LATE, tuple(range(15)), Scope(None, (1, 3))),
    [Cut(tuple(range(10, 26)), (2, 3), Scope((0,), (1,))), Cut(LATE, (9,), Scope((1,), (3,))), Cut((20,), (20,))],
    [Cut((13,), tuple(range(1, 14)))],
)
NOTHING = (Cut((), ()), Cut((3,), (9,)), Cut((25,), (0,)), [])  # row 25 writes nothing that is asked about


def cut_twin(runner, goal, cuts):
    """The same by a whole text run again, its edges left out one by one of a dense mask."""

    def attention(one):
        heads, destinations, sources = one.q.shape[1], one.q.shape[2], one.k.shape[2]
        permitted = one.permitted()[0].expand(heads, -1, -1).clone()
        for cut in [cuts] if isinstance(cuts, Cut) else cuts:
            inside = cut.scope.layers is None or one.layer in cut.scope.layers
            for head in range(heads) if inside else ():
                for i in range(destinations) if cut.destinations is None else cut.destinations:
                    for j in range(sources) if cut.sources is None else cut.sources:
                        permitted[head, i, j] &= cut.scope.heads is not None and head not in cut.scope.heads
        explicit = Mask(causal=False, explicit=permitted.numpy())
        return plain(one.q, one.k, one.v, mask=explicit, scale=one.scale, site=None)

    with torch.no_grad():
        return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention))[0])


@pytest.mark.parametrize("alone", [True, False])
def test_any_edges_can_be_cut(runner, alone, monkeypatch):
    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    goal = GOALS["log-odds"]
    found = knock_out_edges(runner, goal, [*EDGES, *NOTHING])
    expected = [cut_twin(runner, goal, cuts) for cuts in EDGES] + [found.whole] * len(NOTHING)
    assert np.abs(found.values - expected).max() <= CLOSE
    assert np.abs(found.effects[: len(EDGES)]).min() > 10 * CLOSE  # so that the comparison says something
    assert (found.how, found.alone) == ("cut", len(EDGES) if alone else 0)
    starts = [19, 5, 15, 15, 10, 13]  # from the first row that reads less, or the first that is asked about, up to 24
    assert found.cost * 26 == pytest.approx(26 + 6 + sum(25 - start for start in starts) if alone else 26 * 7)
    assert found.kept.tolist() == (~np.eye(10, dtype=bool)).tolist()
    assert "10 runs of 10 sets of edges" in repr(found)


def test_edges_of_calls_that_are_not_plain():
    runner, goal = runner_of(llama(kind="Mistral", sliding_window=5)), AnswerGoal(IDS, 20, "log-probability")
    found = knock_out_edges(runner, goal, EDGES[1:4])
    assert np.abs(found.values - [cut_twin(runner, goal, cuts) for cuts in EDGES[1:4]]).max() <= CLOSE
    assert found.alone == 0


def test_a_cut_of_one_edge_is_a_knock_out_of_a_head(small, own):
    goal = GOALS["token"]
    expected = knock_out_heads(Destination(small, recorded(small)), goal.target, (3, 17))
    each = [(source, layer, head) for source in (3, 17) for layer in range(3) for head in range(6)]
    cuts = [Cut((25,), (source,), Scope((layer,), (head,))) for source, layer, head in each]
    found = Ablator(own, goal).cut(cuts)
    assert np.abs(found.effects - expected.nats.flatten()).max() <= 1e-5
    assert found.alone == len(cuts)


def test_a_cut_of_any_positions_is_what_rerun_says(small, own):
    goal, cut = GOALS["token"], Cut(None, (5, 6), Scope((0, 2), (1,)))
    (value,) = Ablator(own, goal).cut([cut]).values
    assert value == pytest.approx(float(goal.value(wherefrom.rerun(small, IDS, cut)[None])[0]), abs=CLOSE)


@pytest.mark.parametrize("alone", [True, False])
def test_every_set_of_edges_is_proven(runner, alone, monkeypatch):
    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    seen, true_prove = [], removal._prove
    monkeypatch.setattr(removal, "_prove", lambda name, sums, *rest: seen.extend([name] * len(sums)))
    cuts = [Cut((22,), (source,), Scope((0,))) for source in range(12)]
    Ablator(runner, GOALS["log-odds"]).cut(cuts)
    assert len(seen) == 12
    monkeypatch.setattr(removal, "_prove", true_prove)
    monkeypatch.setattr(removal.Limits, "of_permitted", lambda permitted, like, added=None: removal.Limits())
    with pytest.raises(RecordingError, match="the proof of a cut in"):
        Ablator(runner, GOALS["log-odds"]).cut(cuts[3:4])


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("alone", [True, False])
def test_a_cut_that_leaves_nothing_to_read_is_refused(window, alone, monkeypatch):
    runner = runner_of(llama() if window is None else llama(kind="Mistral", sliding_window=window))
    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    one, other = Cut((20, 21), range(16, 19), Scope((1,), (2,))), Cut((21, 20), (0, *range(1, 16), 19, 20))
    measurer = Ablator(runner, AnswerGoal(IDS, 20, "log-probability"))
    said = r"a cut: expected something left to read for destination 20, in layer 1 and head 2 too, got all of it cut"
    with pytest.raises(InputError, match=said) as refused:
        measurer.cut([one, [one, other]])
    assert (refused.value.destination, refused.value.layer) == (20, 1)
    with pytest.raises(InputError, match="left to read for destination 0, in layer 0"):
        measurer.cut([Cut(None, None)])


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        ([], "the cuts: expected at least one, got none"),
        (5, "the cuts: expected sets of edges"),
        ([5], "a set of edges: expected a Cut or several, got 5"),
        ([[5]], "a cut: expected a Cut, got 5"),
        ([Cut((26,), (1,))], "the position: expected a whole number from 0 to 25, got 26"),
        ([Cut((1,), (1,), Scope((3,)))], "the layer: expected a whole number from 0 to 2, got 3"),
        ([Cut((1,), (1,), Scope(None, (6,)))], "the head: expected a whole number from 0 to 5, got 6"),
        ([Cut((1,), (1,), Scope(kind="cross"))], "the scope of a cut: expected self-attention of the decoder"),
    ],
)
def test_edges_that_are_not_there(own, cuts, says):
    with pytest.raises(InputError, match=says):
        Ablator(own, GOALS["log-odds"]).cut(cuts)


def test_a_budget_of_edges_says_the_least(runner):
    goal = GOALS["log-odds"]
    with pytest.raises(InputError, match="the budget: expected at least") as refused:
        knock_out_edges(runner, goal, EDGES, budget=1.1)
    some = knock_out_edges(runner, goal, EDGES, budget=refused.value.least)
    assert len(some.values) == 1
    assert some.cost <= refused.value.least + 1e-9


def test_where(runner):
    layers, heads = (3, 6) if "Own" in type(runner).__name__ else (2, 4)
    sizes = sizes_of(runner)
    assert sizes == dict.fromkeys(range(layers), heads)
    assert Where.of(None, None, sizes).everywhere
    assert str(Where.of(None, [(1, 3), (0, 2)], sizes)) == "layer 0 head 2, layer 1 head 3"
    assert str(Where.of((1,), (2, 0), sizes)) == "heads 0, 2 of layer 1"
    assert Where.of(None, [(1, 3)], sizes).mask(1, heads).tolist() == [head == 3 for head in range(heads)]
    assert not Where.of(None, [(1, 3)], sizes).mask(0, heads).any()
    assert not Where.of((1,), None, sizes).mask(0, heads).any()
    for asked, says in [
        (((0,), [(1, 3)]), r"the layers: expected none beside pairs \(layer, head\)"),
        ((None, [(1, 3), 2]), "the heads to keep: expected whole numbers, or pairs"),
        ((None, [(1, 3, 2)]), r"expected whole numbers, or pairs \(layer, head\), got \(1, 3, 2\) among them"),
        ((None, [(layers, 0)]), "the layer: expected a whole number"),
        ((None, [(0, heads)]), "the head: expected a whole number"),
        (([], None), "the layers to keep: expected at least one"),
    ]:
        with pytest.raises(InputError, match=says):
            Where.of(*asked, sizes)
    with pytest.raises(InputError, match=r"layers with attention that is seen, got 1\. They are 0, 2"):
        Where.of((1,), None, {0: 4, 2: 4})


# -- costs


def test_costs_are_counted_in_tokens(runner):
    goal, tokens = GOALS["log-odds"], []
    logits = runner.logits(torch.tensor([IDS]), [25])
    assert logits.shape[1] == 1
    counted = counting(runner, tokens)
    found = ablate(counted, goal, PARTS, KEPT)
    assert found.alone == 0  # such a runner is none that runs rows alone
    deleted = [sum(len_of(part) for part, own in zip(PARTS, choice, strict=True) if not own) for choice in KEPT]
    assert sum(tokens) == 26 + sum(26 - gone for gone in deleted[1:])
    assert found.cost == pytest.approx(sum(tokens) / 26, abs=1e-12)


def len_of(part):
    return part.stop - part.start


def counting(runner, tokens):
    class Counting(Runner):
        name, fingerprint, format = runner.name, runner.fingerprint, runner.format
        vocabulary, context = runner.vocabulary, runner.context

        def logits(self, ids, rows, *, attention=None, padding=None):
            tokens.append(ids.numel())
            return runner.logits(ids, rows, attention=attention, padding=padding)

        def projection(self, name):
            return runner.projection(name)

        def label(self, token):
            return runner.label(token)

    return Counting()


def test_rows_run_alone_cost_what_they_are(runner):
    goal, length = GOALS["log-odds"], len(IDS)  # its rows are 19 to 24
    direct = leave_one_out(runner, goal, PARTS, how="direct")
    assert direct.cost * length == pytest.approx(length + 6 + 5 * 6)
    # Each begins at its passage and ends at row 24. The last holds row 19, which predicts: all from 17, or from 16.
    total = leave_one_out(runner, goal, PARTS, how="total")
    assert total.cost * length == pytest.approx(length + 6 + (24 - 3) + (21 - 1) + (18 - 5) + (13 - 5) + 8)
    deleted = leave_one_out(runner, goal, PARTS)
    assert deleted.cost * length == pytest.approx(length + 6 + (24 - 3) + (21 - 1) + (18 - 5) + (13 - 5) + (9 - 3))
    assert (direct.alone, total.alone, deleted.alone) == (5, 5, 5)
    measurer = Ablator(runner, goal, PARTS)
    assert measurer.costs(~np.eye(5, dtype=bool)).sum() * length == pytest.approx(68)
    assert measurer.costs(np.ones((2, 5), dtype=bool)).tolist() == [0, 0]


def test_a_budget_takes_the_first_choices(runner):
    goal = GOALS["log-odds"]
    every = ablate(runner, goal, PARTS, KEPT)
    some = ablate(runner, goal, PARTS, KEPT, budget=3.0)
    count = len(some.values)
    assert 1 < count < len(KEPT)
    assert some.cost <= 3.0
    assert (some.kept == KEPT[:count]).all()
    assert np.abs(some.values - every.values[:count]).max() <= CLOSE
    with pytest.raises(InputError, match=r"the budget: expected at least 2\.\d\d forward passes' worth") as refused:
        ablate(runner, goal, PARTS, KEPT[1:], budget=1.5)
    assert len(ablate(runner, goal, PARTS, KEPT[1:2], budget=refused.value.least).values) == 1


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), "x", pytest.param(10**400, id="large"), True])
def test_a_budget_is_a_number(own, budget):
    with pytest.raises(InputError, match=r"the budget: expected .*1 or more forward passes' worth, got"):
        ablate(own, GOALS["log-odds"], PARTS, KEPT, budget=budget)
    with pytest.raises(InputError, match=r"the budget: expected .*1 or more forward passes' worth, got"):
        knock_out_edges(own, GOALS["log-odds"], EDGES, budget=budget)
    with pytest.raises(InputError, match=r"the budget: expected .*0 or more forward passes' worth, got"):
        Ablator(own, GOALS["log-odds"], PARTS).measure(KEPT, budget=budget)


def test_a_budget_may_be_a_number_of_numpy(own):
    least = ablate(own, GOALS["log-odds"], PARTS, KEPT).cost
    assert len(ablate(own, GOALS["log-odds"], PARTS, KEPT, budget=np.float64(least)).values) == len(KEPT)


def test_layers_may_have_differing_numbers_of_heads():
    sizes = {0: 4, 1: 2}
    with pytest.raises(InputError, match="the head: expected a whole number from 0 to 1, got 3"):
        Where.of((1,), (3,), sizes)
    with pytest.raises(InputError, match="the head: expected a whole number from 0 to 1, got 3"):
        Where.of((0, 1), (3,), sizes)
    assert Where.of((0,), (3,), sizes).mask(0, 4).tolist() == [False, False, False, True]
    assert not Where.of(None, (3,), sizes).mask(1, 2).any()


@pytest.mark.parametrize("scope", [{"heads": (0,)}, {"layers": (0, 1), "heads": (1,)}])
def test_rows_run_alone_are_cut_in_layers_of_differing_numbers_of_heads(scope):
    where, rows = Where.of(scope.get("layers"), scope["heads"], {0: 4, 1: 2}), torch.arange(3, 5)
    cut = removal.Removal(torch.tensor([-1, 0, 0, -1, -1]), torch.ones(1, 1, dtype=torch.bool), 0, where)
    torch.manual_seed(0)

    def piece(layer, heads):
        own, past = (torch.randn(1, heads, size, 4) for size in (2, 5))
        return Piece(layer, str(layer), own, own, own, past, past, 0.5)

    alone = removal.AloneWithout(cut, rows, 3)
    for layer, heads in ((0, 4), (1, 2)):
        one = piece(layer, heads)
        expected = removal.AloneWithout(cut, rows, 3)(one)
        assert torch.equal(alone(one), expected)


def test_one_ablator_measures_many_things(runner):
    measurer = Ablator(runner, GOALS["log-odds"], PARTS)
    assert measurer.cost == 1
    first = measurer.measure(KEPT, how="direct")
    again = measurer.measure(KEPT, how="direct")
    assert (first.values == again.values).all()
    assert again.cost * 26 == pytest.approx(6 * 6)  # the check is not made again
    assert measurer.cost == pytest.approx(1 + first.cost + again.cost)


@pytest.mark.parametrize("how", MEANINGS)
def test_a_text_that_was_priced_is_not_run_again(runner, how):
    goal = GOALS["log-odds"]
    measurer = Ablator(runner, goal, PARTS, priced=price(runner, goal))
    assert measurer.cost == 0
    assert measurer.upfront * 26 == pytest.approx(6)
    found, expected = measurer.measure(KEPT, how=how), ablate(runner, goal, PARTS, KEPT, how=how)
    assert np.abs(found.values - expected.values).max() <= CLOSE / 10
    assert found.alone == expected.alone > 0
    assert measurer.cost == pytest.approx(expected.cost - 1)
    assert measurer.upfront == 0


def test_prices_of_calls_that_are_not_plain_are_taken_too():
    runner, goal = runner_of(llama(**ODD["a window"])), AnswerGoal(IDS, 20, "log-probability")
    found = Ablator(runner, goal, PARTS, priced=price(runner, goal)).measure(KEPT, how="total")
    assert found.alone == 0
    assert np.abs(found.values - ablate(runner, goal, PARTS, KEPT, how="total").values).max() <= CLOSE / 10


def test_prices_of_another_text_are_refused(own):
    with pytest.raises(InputError, match="the prices: expected those of the same text and goal"):
        Ablator(own, GOALS["log-odds"], PARTS, priced=price(own, GOALS["token"]))


def test_progress_and_no_runs(runner):
    told = []
    ablate(runner, GOALS["log-odds"], PARTS, KEPT, progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (7, 7)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    nothing = ablate(runner, GOALS["log-odds"], PARTS, np.zeros((0, 5), dtype=bool))
    assert nothing.values.shape == (0,)
    assert nothing.cost >= 1
    assert ablate(runner, GOALS["log-odds"], PARTS, []).kept.shape == (0, 5)
    assert "Ablations(deletion, 0 runs of 5 passages" in repr(nothing)


# -- proofs


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("how", ["total", "direct"])
def test_a_cut_that_takes_no_effect_is_found_out(runner, how, alone, monkeypatch):
    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    true_scores = removal.scores_of

    def wrong(q, k, scale, softcap=None):
        return true_scores(q, k, scale, softcap) + 0.1

    monkeypatch.setattr(removal, "scores_of", wrong)
    with pytest.raises(RecordingError, match="the proof of a cut in"):
        ablate(runner, GOALS["log-odds"], PARTS, KEPT, how=how)


@pytest.mark.parametrize("alone", [True, False])
def test_an_edge_that_is_read_all_the_same_is_found_out(runner, alone, monkeypatch):
    if not alone:
        monkeypatch.setattr(Ablator, "_runs_alone", lambda self: False)
    monkeypatch.setattr(removal.Limits, "of_permitted", lambda permitted, like, added=None: removal.Limits())
    with pytest.raises(RecordingError, match="the proof of a cut in"):
        ablate(runner, GOALS["log-odds"], PARTS, KEPT, how="direct")


def test_every_call_is_proven(runner, monkeypatch):
    seen = []
    monkeypatch.setattr(removal, "_prove", lambda name, *rest: seen.append(name))
    layers = 3 if runner.format == "float32" and "Own" in type(runner).__name__ else 2
    ablate(runner, GOALS["log-odds"], PARTS, KEPT, how="total")
    assert len(seen) == len(set(seen)) == layers


# -- refusals


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "the passages: expected at least one, got none"),
        ((Part(3, 3),), "expected at least one token, got none"),
        ((Part(-1, 3),), "expected at least one token"),
        ((Part(18, 22),), "expected one before the answer, of tokens 0 to 19, got tokens 18 to 21"),
        ((Part(1, 5), Part(4, 8)), "expected no overlap, got tokens 4 to 7, and another up to token 4"),
        (5, "the passages: expected passages of the prompt"),
    ],
)
def test_passages_that_cannot_be_taken_away(own, parts, says):
    with pytest.raises(InputError, match=says):
        Ablator(own, GOALS["log-odds"], parts)


@pytest.mark.parametrize(
    ("kept", "more", "says"),
    [
        (
            np.ones((2, 4), dtype=bool),
            {},
            r"expected a bool array \[n, 5\], a row for each run, got bool of shape \(2, 4\)",
        ),
        (np.ones(5, dtype=bool), {}, "expected a bool array"),
        (np.ones((2, 5)), {}, "got float64 of shape"),
        (KEPT, {"how": "softly"}, 'expected "deletion" or "total" or "direct"'),
        (KEPT, {"layers": (0,)}, "the layers and heads of a deletion"),
        (KEPT, {"how": "total", "layers": (9,)}, "the layer"),
        (KEPT, {"how": "direct", "heads": (6,)}, "the head"),
        (KEPT, {"how": "direct", "heads": ()}, "the heads to keep"),
    ],
)
def test_choices_that_cannot_be_made(own, kept, more, says):
    with pytest.raises(InputError, match=says):
        ablate(own, GOALS["log-odds"], PARTS, kept, **more)


def test_nothing_left_of_the_prompt(runner):
    parts = (Part(0, 10, "first"), Part(10, 20, "second"))
    with pytest.raises(InputError, match=r'expected something left of the prompt.*\("first", "second"\)'):
        ablate(runner, GOALS["log-odds"], parts, [[False, False]])
    for how in ("total", "direct"):  # a passage reads itself
        found = ablate(runner, GOALS["log-odds"], parts, [[False, False]], how=how)
        assert np.abs(found.values - twins(runner, GOALS["log-odds"], parts, found.kept, how)).max() <= CLOSE


def test_a_destination_that_loses_all_it_reads(monkeypatch):
    runner = runner_of(llama(kind="Mistral", sliding_window=5))
    monkeypatch.setattr(Removal := removal.Removal, "edges", lambda self, rows, columns: columns >= -rows[:, None] * 0)
    assert Removal is removal.Removal
    with pytest.raises(InputError, match="expected something left to read for destination 0"):
        ablate(runner, AnswerGoal(IDS, 20, "log-probability"), PARTS, KEPT, how="total")


def test_infinite_log_odds_name_the_ablation(own):
    goal = GOALS["log-odds"]

    class Certain(AnswerGoal):
        calls = 0

        def value(self, logits):
            type(self).calls += 1
            return super().value(
                logits if type(self).calls < 4 else logits + 1e6 * torch.eye(logits.shape[-1])[list(self.tokens)]
            )

    with pytest.raises(InputError, match=r"the answer's log-odds in the deletion of \"some words\".*log-probability"):
        ablate(own, Certain(goal.ids, goal.first), PARTS, KEPT)


# -- rounding


def test_noise_in_single_precision(runner):
    goal = GOALS["log-odds"]
    floor = noise_floor(runner, goal)
    assert 0 < floor < 1e-4
    found = ablate(runner, goal, PARTS, KEPT)
    assert found.noise == pytest.approx(1e-5)
    assert found.within_noise.tolist() == [True] + [False] * 6
    assert found.exactness.startswith("exact: ")


@pytest.mark.parametrize("how", ["total", "direct"])
def test_what_rows_run_alone_differ_by_is_noise(how, monkeypatch):
    """A head whose output nothing reads may be cut without any effect, but for the rounding of rows run alone."""
    model, goal, run = llama(), GOALS["log-odds"], Prefix.run
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight[:, :8] = 0

    def rounded(self, ids, positions, rows, attend):
        logits = run(self, ids, positions, rows, attend)
        return logits + 1e-4 * torch.eye(logits.shape[-1])[list(goal.tokens)][-len(rows) :]

    monkeypatch.setattr(Prefix, "run", rounded)
    found = ablate(runner_of(model), goal, PARTS, KEPT, how=how, layers=(0,), heads=(0,))
    assert found.alone == 6
    assert np.abs(found.effects[1:]).min() > 1e-4
    assert found.within_noise.all()
    assert found.noise < 3e-3


def test_half_precision_says_what_is_noise():
    runner, goal = runner_of(llama().to(torch.bfloat16)), AnswerGoal(IDS, 20, "log-probability")
    found = ablate(runner, goal, PARTS, KEPT)
    assert found.noise > 100 * noise_floor(runner_of(llama()), goal)
    assert "bfloat16, in which a difference below" in found.exactness
    assert not found.exactness.startswith("exact")
    assert found.within_noise[0]
    single = ablate(runner_of(llama()), goal, PARTS, KEPT)
    assert np.abs(found.effects - single.effects).max() < 20 * found.noise


# -- choices


@settings(max_examples=60)
@given(count=st.integers(2, 40), n=st.integers(0, 40), share=st.floats(0.05, 0.95), seed=st.integers(0, 5))
def test_subsets(count, n, share, seed):
    drawn = subsets(count, n, share=share, seed=seed)
    assert drawn.shape == (n, count)
    assert drawn.dtype == bool
    assert ((drawn.sum(axis=1) > 0) & (drawn.sum(axis=1) < count)).all()
    possible = 2**count - 2
    if count <= 12 or 0.3 < share < 0.7:
        assert len({row.tobytes() for row in drawn}) == min(n, possible)
    assert (subsets(count, n, share=share, seed=seed) == drawn).all()
    assert (subsets(count, n + 3, share=share, seed=seed)[:n] == drawn).all()


def test_subsets_of_few_and_of_one():
    assert subsets(1, 3).tolist() == [[False]] * 3
    assert sorted(subsets(2, 4)[:2].tolist()) == [[False, True], [True, False]]
    assert subsets(PARTS, 2).shape == (2, 5)
    assert abs(subsets(30, 400, share=0.3).mean() - 0.3) < 0.02
    for wrong in ({"share": 1.0}, {"share": 0.0}):
        with pytest.raises(InputError, match="between 0 and 1"):
            subsets(3, 2, **wrong)
    with pytest.raises(InputError, match="the number of passages"):
        subsets(0, 2)
    with pytest.raises(InputError, match="the number of choices"):
        subsets(3, -1)
    with pytest.raises(InputError, match="the seed: expected a whole number from 0 up, got -1"):
        subsets(3, 2, seed=-1)
    with pytest.raises(InputError, match="between 0 and 1, got 'x'"):
        subsets(3, 2, share="x")
    assert (subsets(3, 2, share=np.float32(0.5), seed=np.int64(1)) == subsets(3, 2, seed=1)).all()


def test_batches_stay_small(own, monkeypatch):
    goal, expected = GOALS["log-odds"], ablate(own, GOALS["log-odds"], PARTS, KEPT, how="direct")
    monkeypatch.setattr(ablations, "MAP_AT_ONCE", 1)
    found = ablate(own, goal, PARTS, KEPT, how="direct")
    assert np.abs(found.values - expected.values).max() <= CLOSE / 10
