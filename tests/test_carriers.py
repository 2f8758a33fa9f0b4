"""Heads that carry: a model whose retrieval head is known, dense twins of every score and knock-out, and refusals."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import wherefrom
from command_line import finite_json, typed
from wherefrom import Case, InputError, RecordingError, find_carriers, retrieval_cases
from wherefrom.evidence import head_scores, removal
from wherefrom.evidence.carried import Carriers, Together
from wherefrom.evidence.carriers import Plan, measure_carriers, ordinary_case, others
from wherefrom.evidence.cases import read_cases
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.head_scores import Scores, induction, score_heads
from wherefrom.evidence.running import OwnRunner, Runner, runner_of
from wherefrom.evidence.without_heads import without_heads
from wherefrom.model.config import Config
from wherefrom.passages import passages
from wherefrom.tokens import Tokenizer
from wherefrom.views.carriers import _times, carrier_lines

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "carriers.schema.json").read_text(encoding="utf-8"))
CLOSE = 1e-4
WORDS = "Some words that are short. And a few more of them, in a row."
HOWS = ("zero", "mean", "reads")

# -- a model made by hand: head 0 of layer 0 reads the token before, head 2 of layer 1 what followed its token before

SIGNS = "abcdefgh01234567 "
PLACES = 34
ORDINARY = "abc4 defgh012356"
PLANTED = (1, 2)


def planted(folder: Path) -> wherefrom.LanguageModel:
    """A token's sign, the sign before it and the sign to write are 17 numbers of the stream each, its position 34."""
    signs = len(SIGNS)
    tok, before, out, at = range(0, 17), range(17, 34), range(34, 51), range(51, 85)
    sizes = {"layers": 2, "width": 85, "heads": 4, "head_size": 34, "vocabulary": signs, "context": PLACES}
    config = Config.decoder(**sizes, architecture="wherefrom", positions="learned", tied=False)
    model = wherefrom.draw(config, seed=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.1)  # what is not planted hardly speaks
        model.embedding.weight[:, tok] += torch.eye(signs)
        model.position_embedding.weight[:, at] += torch.eye(PLACES)
        first, second = (block.attention for block in model.blocks)
        first.query.weight[0:34, at] += 3 * torch.eye(34)
        first.key.weight[1:34, at[:-1]] += 3 * torch.eye(33)  # position p is found by p + 1
        first.value.weight[0:17, tok] += torch.eye(17)
        first.output.weight[before, 0:17] += 0.5 * torch.eye(17)
        own = 34 * PLANTED[1]
        second.query.weight[own : own + 17, tok] += 3 * torch.eye(17)
        second.key.weight[own : own + 17, before] += 3 * torch.eye(17)
        second.value.weight[own : own + 17, tok] += torch.eye(17)
        second.output.weight[out, own : own + 17] += torch.eye(17)
        model.head.weight[:, out] += 2 * torch.eye(17)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={_letter(x): i for i, x in enumerate(SIGNS)}, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    wherefrom.write_folder(folder, model, Tokenizer(inner))
    return wherefrom.load(folder)


def _letter(sign: str) -> str:
    return "Ġ" if sign == " " else sign


def planted_cases() -> list[Case]:
    """Pairs such as a4b2c7, then one of the letters again, of which the first is never asked."""
    draw = np.random.default_rng(3)
    found = []
    for number in range(12):
        letters, digits = draw.permutation(list("abcdefgh"))[:5], draw.permutation(list("01234567"))[:5]
        pairs = [f"{a}{b}" for a, b in zip(letters, digits, strict=True)]
        asked = 1 + number % 4
        found.append(Case("".join(pairs) + letters[asked], digits[asked], pairs[asked]))
    return found


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> wherefrom.LanguageModel:
    return planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def found(by_hand: wherefrom.LanguageModel) -> Carriers:
    return find_carriers(by_hand, planted_cases(), count=1, ordinary=ORDINARY, draws=3)


def test_the_planted_head_is_found_by_every_score(found: Carriers) -> None:
    assert [own.by for own in found.sets] == ["first order", "retrieval", "induction"]
    assert {own.heads for own in found.sets} == {(PLANTED,)}
    place = found.heads.index(PLANTED)
    assert len(found.heads) == 8
    assert found.scores["retrieval"][place] == 1.0
    assert found.scores["weight"][place] > 0.9
    assert found.scores["induction"][place] > 0.8
    rest = np.arange(8) != place
    for name in ("first order", "induction", "weight"):
        assert found.scores[name][place] > 3 * found.scores[name][rest].max()


def test_without_the_planted_head_the_answer_goes_and_random_ones_do_nothing(found: Carriers) -> None:
    own = found.first
    assert found.answered.all()
    assert own.answered.sum() <= 2
    assert own.others_answered.all()
    assert own.effect.low > 3
    assert np.abs(own.others_lost).max() < 0.3
    assert own.ratio.low > 5
    assert own.ordinary < 0.1
    assert all(head[0] == PLANTED[0] for heads in own.others for head in heads)


@pytest.mark.parametrize("how", HOWS)
def test_every_way_of_knocking_it_out_shows_it(by_hand: wherefrom.LanguageModel, how: Any) -> None:
    own = find_carriers(by_hand, planted_cases(), count=1, ordinary=ORDINARY, how=how, by="retrieval").first
    assert own.effect.value > 3
    assert own.ratio.value > 5


# -- dense twins


def llama(**changes: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 128}
    kind = changes.pop("kind", "Llama")
    model = getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)  # so that the weights of attention are far from even
    return model


MODELS = {
    "own": {},
    "llama": {},
    "window and softcap": {"kind": "Gemma2", "head_dim": 8, "sliding_window": 9, "attn_logit_softcapping": 5.0},
    "sinks": {"kind": "GptOss", "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64},
}
IDS = torch.randint(3, 90, (3, 24), generator=torch.Generator().manual_seed(5)).tolist()
PLACE = (9, 15)
FIRST = 20


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("small") if request.param == "own" else llama(**MODELS[request.param])


def made_cases(ids: list[list[int]] = IDS) -> list[Any]:
    """Cases of given tokens, in which the answer's second token stands in the place."""
    from wherefrom.evidence.cases import Asked
    from wherefrom.passages import Passage

    cases = []
    for number, own in enumerate(ids, start=1):
        own = [*own]
        own[FIRST + 1] = own[PLACE[0] + number]
        goal = AnswerGoal(tuple(own), FIRST, "log-probability")
        cases.append(Asked(goal, Passage(*PLACE, "a place"), "", f"case {number}"))
    return cases


def dense(one: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [H, T, S] with what is not permitted at -inf, values [H, S, V] and sinks [H, 1, 1], of the first text."""
    group = one.q.shape[1] // one.k.shape[1]
    q, k, v = one.q[0], one.k[0].repeat_interleave(group, 0), one.v[0].repeat_interleave(group, 0)
    scores = one.scale * (q @ k.transpose(-1, -2))
    if one.softcap is not None:
        scores = one.softcap * torch.tanh(scores / one.softcap)
    rows, columns = np.indices((q.shape[1], k.shape[1]))
    allowed = columns <= rows
    if one.masks[0].window is not None:
        allowed &= columns > rows - one.masks[0].window
    sinks = torch.full((len(q), 1, 1), -math.inf) if one.sinks is None else one.sinks.reshape(-1, 1, 1)
    return scores.masked_fill(~torch.from_numpy(allowed), -math.inf), v, sinks


def softmax(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Weights of rows that a sink takes its share of."""
    whole = torch.cat([scores, sinks.expand(-1, scores.shape[1], -1)], dim=-1)
    return torch.softmax(whole, dim=-1)[..., :-1]


def dense_scores(runner: Runner, asked: Any) -> dict[tuple[int, int], tuple[float, float, float, torch.Tensor]]:
    """Retrieval, weight and first order of every head, and its mean output, by dense attention and autograd."""
    seen: list[tuple[int, Any, Any, Any]] = []

    def attention(one: Any) -> torch.Tensor:
        scores, v, sinks = dense(one)
        y = softmax(scores, sinks) @ v
        y = y if y.requires_grad else y.detach().requires_grad_()
        without = scores.clone()
        without[:, PLACE[1] :, PLACE[0] : PLACE[1]] = -math.inf
        seen.append((one.layer, softmax(scores, sinks).detach(), y, (softmax(without, sinks) @ v).detach()))
        return y[None]

    with torch.enable_grad():
        logits = runner.logits(torch.tensor([asked.goal.ids]), asked.goal.rows, attention=attention)
        gradients = torch.autograd.grad(asked.goal.value(logits).sum(), [y for _, _, y, _ in seen])
    found = {}
    ids = asked.goal.ids
    for (layer, weights, y, without), g in zip(seen, gradients, strict=True):
        for head in range(len(weights)):
            hits = copied = 0
            for row in range(FIRST - 1, len(ids) - 1):
                if ids[row + 1] in ids[PLACE[0] : PLACE[1]]:
                    copied += 1
                    largest = int(weights[head, row].argmax())
                    hits += PLACE[0] <= largest < PLACE[1] and ids[largest] == ids[row + 1]
            weight = float(weights[head, FIRST - 1 : -1, PLACE[0] : PLACE[1]].sum(-1).mean())
            first = float((g[head] * (y[head] - without[head])).sum().detach())
            found[layer, head] = hits / copied, weight, first, y[head].detach().mean(0)
    return found


def scored(model: Any, cases: list[Any]) -> Scores:
    return score_heads(model, runner_of(model), cases)


def test_scores_are_those_of_dense_attention(model: Any) -> None:
    runner, cases = runner_of(model), made_cases()
    found = scored(model, cases)
    expected = [dense_scores(runner, asked) for asked in cases]
    assert found.heads == tuple(sorted(expected[0]))
    size = max(abs(own[2]) for one in expected for own in one.values())
    for place, head in enumerate(found.heads):
        hits, weight, first = np.mean([one[head][:3] for one in expected], axis=0)
        assert found.retrieval[place] == pytest.approx(hits, abs=1e-6)
        assert found.weight[place] == pytest.approx(weight, abs=1e-5)
        assert found.first_order[place] == pytest.approx(first, abs=1e-4 * size)
        mean = torch.stack([one[head][3] for one in expected]).mean(0)
        torch.testing.assert_close(found.means[head], mean, atol=1e-5, rtol=1e-4)


def test_the_planted_head_copies_as_its_dense_twin_says(by_hand: wherefrom.LanguageModel) -> None:
    runner = runner_of(by_hand)
    found = score_heads(by_hand, runner, read_cases(by_hand, runner, planted_cases()))
    assert found.retrieval.max() == 1.0
    assert np.isfinite(found.first_order).all()


def test_first_order_keeps_its_digits_where_a_row_reads_little_else(by_hand: wherefrom.LanguageModel) -> None:
    """The planted head gives nearly all of the answer's row to the place: 1 - a would have few digits."""
    runner = runner_of(by_hand)
    asked = read_cases(by_hand, runner, planted_cases()[:1])[0]
    seen: list[Any] = []

    def attention(one: Any) -> torch.Tensor:
        scores, v, sinks = dense(one)
        y = (softmax(scores.double(), sinks.double()) @ v.double()).requires_grad_()
        if one.layer == 1:
            seen.append((scores.double(), v.double(), y))
            return y[None].float()
        return y[None].float().detach()

    with torch.enable_grad():
        logits = runner.logits(torch.tensor([asked.goal.ids]), asked.goal.rows, attention=attention)
        scores, v, y = seen[0]
        (g,) = torch.autograd.grad(asked.goal.value(logits).sum(), y)
    scores[:, asked.place.stop :, asked.place.start : asked.place.stop] = -math.inf
    expected = float((g * (y - torch.softmax(scores, -1) @ v))[PLANTED[1], asked.place.stop :].sum().detach())
    found = score_heads(by_hand, runner, [asked])
    assert found.first_order[found.heads.index(PLANTED)] == pytest.approx(expected, rel=1e-4)


def test_induction_is_what_dense_attention_reads_of_a_row_that_comes_twice(by_hand: wherefrom.LanguageModel) -> None:
    runner = runner_of(by_hand)
    found = induction(by_hand, runner, seed=4)
    half, draw = len(SIGNS), np.random.default_rng(4)
    expected: dict[tuple[int, int], list[float]] = {head: [] for head in found}

    def attention(one: Any) -> torch.Tensor:
        scores, v, sinks = dense(one)
        weights = softmax(scores, sinks)
        for head in range(len(weights)):
            own = [float(weights[head, row, row - half + 1]) for row in range(half, 2 * half)]
            expected[one.layer, head].append(float(np.mean(own)))
        return (weights @ v)[None]

    for _ in range(4):
        ids = draw.choice(half, half, replace=False).tolist() * 2
        with torch.no_grad():
            runner.logits(torch.tensor([ids]), [0], attention=attention)
    assert found == pytest.approx({head: np.mean(own) for head, own in expected.items()}, abs=1e-5)


VERSIONS = ((), ((0, 1),), ((1, 0), (1, 3)), ((0, 2), (1, 1), (0, 0)))


@pytest.mark.parametrize("how", HOWS)
def test_a_knock_out_is_that_of_dense_attention(model: Any, how: Any) -> None:
    runner, asked = runner_of(model), made_cases()[0]
    means = scored(model, [asked]).means
    ids, goal = torch.tensor([asked.goal.ids]), asked.goal
    attention = without_heads(VERSIONS, how, length=ids.shape[1], place=range(*PLACE), means=means)
    with torch.no_grad():
        values = goal.value(runner.logits(ids.expand(len(VERSIONS), -1), goal.rows, attention=attention)).tolist()
        for heads, value in zip(VERSIONS, values, strict=True):
            assert value == pytest.approx(knocked_out(runner, goal, heads, how, means), abs=CLOSE)
    assert min(abs(value - values[0]) for value in values[1:]) > 10 * CLOSE  # so that the comparison says something


def knocked_out(runner: Runner, goal: Any, heads: Any, how: str, means: Any) -> float:
    """The same by dense attention of one text alone."""

    def attention(one: Any) -> torch.Tensor:
        scores, v, sinks = dense(one)
        own = [head for layer, head in heads if layer == one.layer]
        if how == "reads":
            for head in own:
                scores[head, PLACE[1] :, PLACE[0] : PLACE[1]] = -math.inf
        y = softmax(scores, sinks) @ v
        for head in own if how != "reads" else ():
            y[head] = 0.0 if how == "zero" else means[one.layer, head]
        return y[None]

    return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention))[0])


def test_a_zero_output_is_that_of_a_model_whose_projection_forgets_the_head(small: wherefrom.LanguageModel) -> None:
    asked, heads, size = made_cases()[0], ((0, 1), (2, 5)), small.config.head_size
    other = copy.deepcopy(small.transformer)
    with torch.no_grad():
        for layer, head in heads:
            other.blocks[layer].attention.output.weight[:, head * size : (head + 1) * size] = 0.0
        ids, goal = torch.tensor([asked.goal.ids]), asked.goal
        expected = float(goal.value(other(ids)[:, list(goal.rows)])[0])
        attention = without_heads([heads], "zero", length=24, place=range(*PLACE), means={})
        found = float(goal.value(runner_of(small).logits(ids, goal.rows, attention=attention))[0])
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_cut_that_takes_no_effect_is_found_out(small: wherefrom.LanguageModel, monkeypatch: Any) -> None:
    true = removal.scores_of
    monkeypatch.setattr(removal, "scores_of", lambda *how: true(*how) + 0.1)
    with pytest.raises(RecordingError, match="the proof of a cut in"):
        find_carriers(small, retrieval_cases(4), count=1, how="reads", ordinary=WORDS, draws=1)


def test_what_is_lost_is_measured_case_by_case(small: wherefrom.LanguageModel) -> None:
    cases = retrieval_cases(8)
    found = find_carriers(small, cases, count=2, by="weight", draws=2, ordinary=WORDS, among="model")
    runner = runner_of(small)
    held_out = read_cases(small, runner, [*cases[2:4], *cases[6:8]])  # the second and the fourth of each family
    assert found.families == ("lookup", "facts") * 2
    assert found.found_on == 4
    with torch.no_grad():
        for place, asked in enumerate(held_out):
            whole = knocked_out(runner, asked.goal, (), "zero", {})
            assert found.before[place] == pytest.approx(whole, abs=CLOSE)
            for heads, lost in [
                (found.first.heads, found.first.lost),
                *zip(found.first.others, found.first.others_lost, strict=True),
            ]:
                less = knocked_out(runner, asked.goal, heads, "zero", {})
                assert lost[place] == pytest.approx(whole - less, abs=CLOSE)


def test_ordinary_text_is_measured_by_its_last_tokens(small: wherefrom.LanguageModel) -> None:
    found = find_carriers(small, retrieval_cases(4), count=2, by="weight", draws=1, ordinary=WORDS)
    ids = small.tokenizer.encode(WORDS).ids
    first = WORDS.index(" ", len(WORDS) // 4)
    goal = AnswerGoal(ids, first, "log-probability")
    runner = runner_of(small)
    with torch.no_grad():
        whole, less = (
            -knocked_out(runner, goal, heads, "zero", {}) / (len(ids) - first) for heads in ((), found.first.heads)
        )
    assert found.ordinary_nats == pytest.approx(whole, abs=1e-5)
    assert found.first.ordinary == pytest.approx(less - whole, abs=1e-5)
    assert found.ordinary_tokens == len(ids)


def test_a_model_of_transformers_says_the_same(small: wherefrom.LanguageModel, small_folder: Path) -> None:
    other = wherefrom.load(small_folder, library="transformers")
    how = {"count": 2, "draws": 1, "ordinary": WORDS, "how": "mean"}
    own, found = (find_carriers(model, retrieval_cases(4), **how) for model in (small, other))
    assert found.heads == own.heads
    for name, values in own.scores.items():
        assert found.scores[name] == pytest.approx(values, abs=1e-3)
    for one, two in zip(own.sets, found.sets, strict=True):
        assert (one.heads, one.others) == (two.heads, two.others)
        assert two.lost == pytest.approx(one.lost, abs=1e-3)
        assert two.others_lost == pytest.approx(one.others_lost, abs=1e-3)
        assert two.ordinary == pytest.approx(one.ordinary, abs=1e-3)


# -- numbers on paper


def together(lost: Any, others_lost: Any) -> Together:
    lost, rest = np.array(lost, dtype=float), np.array(others_lost, dtype=float)
    no = np.zeros(lost.shape, bool)
    return Together("weight", ((0, 0),), lost, no, 0.0, (((0, 1),),) * len(rest), rest, no[None], np.zeros(len(rest)))


def test_ratios_on_paper() -> None:
    even = together([3.0] * 6, [[0.5] * 6, [1.0] * 6])
    assert even.effect == (3.0, 3.0, 3.0)
    assert even.others_effect.value == 0.75
    assert (even.others_effect.low, even.others_effect.high) == (0.5, 1.0)  # draws are drawn again
    assert even.ratio == (4.0, 3.0, 6.0)
    assert together([3.0] * 6, [[0.5] * 6, [-0.5] * 6]).ratio.value == 6.0  # draws do not cancel
    assert together([3.0] * 6, [[0.0] * 6]).ratio == (math.inf,) * 3
    assert together([-3.0] * 6, [[0.0] * 6]).ratio == (-math.inf,) * 3
    assert together([-3.0] * 6, [[0.0] * 6]).to_json()["ratio"] == {"mean": None, "interval": [None, None]}
    assert all(map(math.isnan, together([0.0] * 6, [[0.0] * 6]).ratio))  # nothing over nothing
    assert together([0.0] * 6, [[0.0] * 6]).to_json()["ratio"] == {"mean": None, "interval": None}
    assert together([6.0] + [0.0] * 5, [[0.0] * 6]).ratio == (math.inf, 0.0, math.inf)
    assert together([3.0] * 6, [[0.5, -0.5] * 3]).ratio == (6.0, 6.0, 6.0)  # nor do cases
    assert list(map(_times, (math.inf, -math.inf, math.nan, 12.3))) == ["inf", "-inf", "-", "12"]
    assert together([3.0] * 6, [[0.5, -1.0] * 3]).others_size == 0.75
    assert together([3.0] * 6, [[0.5, -1.0] * 3]).to_json()["others"]["size"] == 0.75
    few = together([3.0, 1.0], [[0.5, 0.5]])
    assert few.effect.value == 2.0
    assert math.isnan(few.effect.low)
    assert few.to_json()["ratio"] == {"mean": 4.0, "interval": None}


@settings(max_examples=20)
@given(data=st.data())
def test_an_interval_holds_what_is_drawn_again(data: Any) -> None:
    cases, draws = data.draw(st.integers(5, 9)), data.draw(st.integers(1, 4))
    numbers = st.floats(-5, 5)
    lost = data.draw(st.lists(numbers, min_size=cases, max_size=cases))
    rest = [data.draw(st.lists(numbers, min_size=cases, max_size=cases)) for _ in range(draws)]
    own = together(lost, rest)
    for mean, least, most in ((own.effect, min(lost), max(lost)), (own.others_effect, np.min(rest), np.max(rest))):
        assert least - 1e-9 <= mean.low <= mean.high <= most + 1e-9
    assert own.effect.value == pytest.approx(np.mean(lost))
    assert list(own.only(range(cases)).ratio) == pytest.approx(list(own.ratio), nan_ok=True)
    if not math.isnan(own.ratio.value):
        assert own.ratio.low <= own.ratio.high


@settings(max_examples=50)
@given(data=st.data())
def test_others_are_as_many_and_other_ones(data: Any) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(lambda own: sum(own) >= 2))
    every = [(layer, head) for layer, size in enumerate(sizes) for head in range(size)]
    count = data.draw(st.integers(1, len(every) // 2))
    found = tuple(data.draw(st.permutations(every))[:count])
    rest = tuple(head for head in every if head not in found)
    for among in ("layers", "model"):
        drawn = others(found, rest, among, np.random.default_rng(data.draw(st.integers(0, 9))))
        assert len(set(drawn)) == count
        assert set(drawn) <= set(rest)
        if among == "layers":
            for layer in range(len(sizes)):
                wanted, left, got = (sum(own == layer for own, _ in some) for some in (found, rest, drawn))
                assert got >= min(wanted, left) or left == got


# -- what a person gives and sees


def test_made_cases_hold_their_answer_once() -> None:
    cases = retrieval_cases(20)
    assert [case.family for case in cases[:3]] == ["lookup", "facts", "lookup"]
    for case in cases:
        assert case.prompt.count(case.place) == 1
        assert case.place.count(case.answer) == 1
        assert case.prompt.count(case.answer) == 1
    assert len({case.prompt for case in cases}) == 20
    assert cases == retrieval_cases(20)
    assert cases[0] != retrieval_cases(1, seed=1)[0]


def test_a_place_may_be_a_range_of_tokens(small: wherefrom.LanguageModel) -> None:
    case = Case("Anna: red. Boris: blue. Anna:", " red", (0, 10))
    asked = read_cases(small, runner_of(small), [case])[0]
    assert (asked.place.start, asked.place.stop, asked.goal.prompt) == (0, 10, len(case.prompt))
    words = read_cases(small, runner_of(small), [replace(case, place="Anna: red.")])[0]
    marked = passages(small.tokenizer.encode(case.prompt), ["Anna: red."])[0]
    assert (words.place.start, words.place.stop) == (marked.start, marked.stop)


GOOD = Case("ab0cd1a", "b", "b0")
TWO = [
    Case("Anna: red. Boris: blue. Anna:", " red", "Anna: red."),
    Case("Anna: tan. Boris: blue. Boris:", " blue", "blue"),
]


@pytest.mark.parametrize(
    ("cases", "how", "said"),
    [
        ([], {}, r"the cases: expected at least one, got none\. Make them: wherefrom\.Case"),
        (None, {}, r"the cases: expected cases in a row, got None"),
        (["a"], {"test": TWO}, r"case 1: expected a Case, got 'a'"),
        (TWO[:1], {}, r"the cases: expected two of a family at least.* got 1, of which none is left to test on"),
        (
            [TWO[0], TWO[0]],
            {},
            r"case 2: expected a prompt and an answer that the heads are not found on, got those of case 1",
        ),
        (
            [TWO[0], replace(TWO[1], place="green")],
            {},
            r"case 2: the marked text \"green\": expected a text that occurs",
        ),
        ([replace(TWO[0], place="nowhere"), TWO[1]], {}, r"case 1: the marked text"),
        ([replace(TWO[0], place="Anna"), TWO[1]], {}, r"case 1: .*got one that occurs twice: character 0"),
        ([replace(TWO[0], answer=" tin", place="tin"), TWO[1]], {}, r"case 1: .*outside of the tokens to divide"),
        ([replace(TWO[0], place="blue. Anna:"), TWO[1]], {}, r"case 1: the place: expected tokens before 28"),
        ([replace(TWO[0], place=""), TWO[1]], {}, r"case 1: a marked text: expected at least one character"),
        ([replace(TWO[0], place=(9, 99)), TWO[1]], {}, r"case 1: a mark: expected a text, or tokens"),
        ([replace(TWO[0], answer=""), TWO[1]], {}, r"case 1: the answer"),
        ([replace(TWO[0], answer=None), TWO[1]], {}, r"case 1: the answer: expected a str, got None"),
        ([replace(TWO[0], prompt=""), TWO[1]], {}, r"case 1: the prompt"),
        ([replace(TWO[0], prompt="a" * 400 + " Anna: red. "), TWO[1]], {}, r"case 1: the prompt"),
        (TWO, {"count": 19}, r"the number of heads: expected at most 9: the model has 18, and as many .*, got 19\."),
        (TWO, {"count": 10}, r"the number of heads: expected at most 9: the model has 18, and as many others"),
        (TWO, {"count": 0}, r"the number of heads: expected a whole number from 1 up"),
        (TWO, {"draws": 0}, r"the number of draws"),
        (TWO, {"seed": -1}, r"the seed"),
        (TWO, {"how": "gone"}, r"how: expected 'zero' or 'mean' or 'reads', got 'gone'"),
        (TWO, {"among": "heads"}, r"among: expected 'layers' or 'model'"),
        (TWO, {"by": "charm"}, r"the score to find heads by: expected one of 'first order', 'retrieval'"),
        (TWO, {"by": ()}, r"by: expected at least one score"),
        (TWO, {"by": [[1]]}, r"the score to find heads by: expected one of .*, got \[1\]\. .*docs/carriers\.md"),
        (TWO, {"how": ["zero"]}, r"how: expected 'zero' or 'mean' or 'reads', got \['zero'\]"),
        (
            [replace(one, place="Anna") for one in (TWO[1], replace(TWO[1], prompt=TWO[1].prompt + " a"))],
            {"by": "retrieval"},
            r"the score 'retrieval': expected one that has a meaning for these cases",
        ),
        (TWO, {"unit": "nats"}, r"unit: expected 'log-odds' or 'log-probability', got 'nats'"),
        (TWO, {"test": []}, r"the test cases: expected at least one, got none"),
        (TWO, {"test": TWO[1:]}, r"test case 1: expected a prompt and an answer .* got those of case 2"),
        (TWO, {"ordinary": ""}, r"the ordinary text"),
        (TWO, {"ordinary": "word"}, r"the ordinary text: expected some sentences"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(small: Any, cases: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_carriers(small, cases, **{"ordinary": WORDS, "count": 1, **how})


def test_log_odds_of_certainty_are_refused_with_the_case(small: Any, monkeypatch: Any) -> None:
    def certain(self: Any, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(logits), len(self.rows), dtype=torch.float64)

    monkeypatch.setattr(AnswerGoal, "log_probabilities", certain)
    with pytest.raises(InputError, match=r"case 1: the answer's log-odds.*unit=\"log-probability\""):
        find_carriers(small, TWO, ordinary=WORDS, count=1)


def test_a_model_without_attention_is_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 50, "state_size": 4}
    model = hf.MambaForCausalLM(hf.MambaConfig(**sizes)).eval()
    with pytest.raises(InputError, match=r"all of whose attention can be changed, got .* in which there is none"):
        find_carriers(model, TWO)


def test_an_answer_that_does_not_stand_in_its_place_has_no_retrieval_score(small: Any) -> None:
    cases = [replace(TWO[1], place="Anna", prompt=f"{number} {TWO[1].prompt}") for number in range(2)]
    found = find_carriers(small, cases, count=1, ordinary=WORDS, draws=1)
    assert np.isnan(found.scores["retrieval"]).all()
    assert [own.by for own in found.sets] == ["first order", "induction"]
    assert found.to_json()["heads"][0]["retrieval"] is None


def with_scores(model: Any, plan: Plan, **changed: Any) -> Carriers:
    """Carriers of the model made by hand, some of whose eight heads' scores are told."""
    runner = runner_of(model)
    asked = read_cases(model, runner, planted_cases())
    told = {name: np.array([*values, *[0.0] * (8 - len(values))]) for name, values in changed.items()}
    scores = replace(score_heads(model, runner, asked[:4]), **told)
    return measure_carriers(runner, scores, asked[4:], ordinary_case(model, runner, ORDINARY, asked), plan)


def test_a_head_whose_score_is_not_above_0_is_not_found(by_hand: wherefrom.LanguageModel) -> None:
    found = with_scores(by_hand, Plan(4, draws=2), retrieval=[0.0, 0.5, math.nan, 1.0, -1.0])
    assert [(own.by, len(own.heads)) for own in found.sets] == [("first order", 4), ("retrieval", 2), ("induction", 4)]
    assert found.sets[1].heads == (found.heads[3], found.heads[1])
    assert [len(heads) for heads in found.sets[1].others] == [2, 2]
    text = " ".join(" ".join(line.plain for line in carrier_lines(found)).split())
    assert "Up to 4 heads knocked out together: " in text
    assert "Of 4 heads asked for, those with a score above 0 are taken: 2 by retrieval." in text
    written = found.to_json()
    jsonschema.validate(written, SCHEMA)
    assert written["count"] == 4
    assert len(written["sets"][1]["heads"]) == 2


def test_a_score_above_0_for_no_head_is_left_out_or_refused(by_hand: wherefrom.LanguageModel) -> None:
    nothing: dict[str, Any] = {"retrieval": [-1.0, math.nan]}
    found = with_scores(by_hand, Plan(1, draws=1), **nothing)
    assert found.left_out == ("retrieval",)
    assert [own.by for own in found.sets] == ["first order", "induction"]
    assert found.to_json()["left_out"] == ["retrieval"]
    text = " ".join(" ".join(line.plain for line in carrier_lines(found)).split())
    assert "Left out, as no head has such a score above 0: retrieval." in text
    assert with_scores(by_hand, Plan(1, "induction", draws=1), **nothing).left_out == ()
    with pytest.raises(InputError, match=r"the score 'retrieval': expected a number above 0 for some head, got none"):
        with_scores(by_hand, Plan(1, ["first order", "retrieval"]), **nothing)
    with pytest.raises(InputError, match=r"the scores first order, retrieval, induction: expected a number above 0"):
        with_scores(by_hand, Plan(1), **nothing, first_order=[], induction=[math.nan])


def test_the_closing_sentence_names_what_it_divides_by(found: Carriers) -> None:
    own = replace(found.first, others_lost=np.tile([0.5, -1.0], (3, 3)))
    many, few = (
        " ".join(" ".join(line.plain for line in carrier_lines(replace(found, **own))).split())
        for own in (
            {"sets": (own,)},
            {"sets": (own.only(range(4)),), "families": ("",) * 4, "before": found.before[:4]},
        )
    )
    assert f"Without 1 head found by first order the answers lose {own.effect.value:.2f} log-odds on the mean, " in many
    assert "times 0.750, the mean size of what one loses or gains without as many random others." in many
    assert "what an answer loses or gains without them: 0.750 (first order) " in many
    assert "In brackets, from 5 cases on: 95 %" in many
    assert "On these 4 cases, without 1 head found by first order the answers lose" in few
    assert "4 cases are too few for an interval, which takes 5." in few
    assert "brackets" not in few
    still = replace(own, others_lost=np.zeros_like(own.others_lost))
    text = " ".join(line.plain for line in carrier_lines(replace(found, sets=(still,))))
    assert "on the mean; without as many random others nothing changes beyond the noise." in " ".join(text.split())


def test_every_text_that_is_read_is_counted(small: wherefrom.LanguageModel, monkeypatch: Any) -> None:
    texts: list[int] = []
    logits, recorded = OwnRunner.logits, head_scores._recorded

    def counted(self: Any, ids: torch.Tensor, *given: Any, **how: Any) -> torch.Tensor:
        texts.append(len(ids))
        return logits(self, ids, *given, **how)

    def probe(*given: Any) -> Any:
        texts.append(1)
        return recorded(*given)

    monkeypatch.setattr(OwnRunner, "logits", counted)
    monkeypatch.setattr(head_scores, "_recorded", probe)
    cases = [replace(case, answer=case.answer.strip()) for case in retrieval_cases(4)]  # each with two spellings
    found = find_carriers(small, cases, count=1, draws=1, ordinary=WORDS)
    assert found.cost.forward == sum(texts) > 4 * 2 + 4 + 1


def test_it_is_drawn_within_80_columns(found: Carriers, small: wherefrom.LanguageModel) -> None:
    wild = find_carriers(small, retrieval_cases(12), count=3, draws=1, ordinary=WORDS, how="reads")
    for one in (found, wild):
        for width in (80, 72):
            lines = [line.plain for line in carrier_lines(one, width=width)]
            assert max(map(cell_len, lines)) <= 80
            assert all(line == line.rstrip() for line in lines)
    text = " ".join("\n".join(line.plain for line in carrier_lines(found)).split())
    for said in (
        "8 heads, numbered from 0; found on 6 cases, tested on 6 others",
        "1 head knocked out together: their output is replaced by zero",
        "L1 H2",
        "With all heads 6 of 6 answers are the likeliest tokens",
        "100.0%* 100.0% ",
        "Without 1 head found by first order the answers lose",
        "6 gradients",
    ):
        assert said in text
    assert "lookup" in "\n".join(line.plain for line in carrier_lines(wild))


def test_a_family_with_signs_of_the_terminal_is_made_readable(found: Carriers) -> None:
    named = replace(found, families=("a\x1b[31m",) * 3 + ("b\n",) * 3)
    lines = [line.plain for line in carrier_lines(named)]
    assert not any(sign in line for line in lines for sign in "\x1b\n")


def test_it_becomes_json(found: Carriers) -> None:
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    jsonschema.validate(written, SCHEMA)
    assert written["sets"][0]["heads"] == [list(PLANTED)]
    assert written["sets"][0]["effect"]["mean"] == pytest.approx(found.first.lost.mean(), abs=1e-6)
    table = found.table(top=2)
    assert table.rows[0][:2] == PLANTED
    assert table.to_json()["left_out"] == "Not listed: 6 heads."
    assert "Carriers(" in repr(found)
    with pytest.raises(InputError, match="the score to find heads by"):
        found.ranked(["weight"])
    assert "Which heads carry" in str(found)


def test_the_command_takes_a_file(small_folder: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": own.prompt, "answer": own.answer, "place": own.place}) for own in TWO]
    (tmp_path / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    how = ("--model", small_folder, "--count", 2, "--random", 2)
    written = finite_json(typed(tmp_path, "carriers", "cases.jsonl", *how, "--by", "weight", "--json"))
    jsonschema.validate(written, SCHEMA)
    assert [len(own["heads"]) for own in written["sets"]] == [2]
    made = typed(tmp_path, "carriers", "--made", 4, *how, "--how", "reads")
    assert (made.code, made.err) == (0, "")
    assert made.widest <= 80
    assert "found on 2 cases, tested on 2 others (lookup, facts)" in " ".join(made.out.split())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"prompt": "a", "answer": "b", "place": "a"}\n{}', "line 2 of cases.jsonl: expected a case as JSON"),
        ('{"prompt": "a", "answer": "b"}', "got one without 'place'"),
        ("\n{}", 'line 1 of cases.jsonl: expected a case as JSON, {"prompt": "..."'),
        ('{"prompt": "ab", "answer": "b", "place": "c"}\n\n', 'case 1: the marked text "c"'),
        ("{", "line 1 of cases.jsonl: expected a case as JSON"),
        ("[1]", "got a JSON value of another kind ([1])"),
        ("[" * 100_000, "line 1 of cases.jsonl: expected a case as JSON"),
        ('{"prompt": "a", "answer": 1, "place": "a"}', "got one whose 'answer' is no text"),
        ('{"prompt": "a", "answer": "b", "place": "a", "p": 1}', "got one with 'p'"),
        ("", "the cases: expected at least one, got none"),
        (None, "the file of cases: expected a file that can be read"),
    ],
)
def test_a_bad_line_is_named(small_folder: Path, tmp_path: Path, lines: str | None, said: str) -> None:
    if lines is not None:
        (tmp_path / "cases.jsonl").write_text(lines, encoding="utf-8")
    ended = typed(tmp_path, "carriers", "cases.jsonl", "--model", small_folder)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_an_ordinary_text_that_is_none_is_named(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text(" ", encoding="utf-8")
    for name, said in (("plain.txt", "the ordinary text: expected some text"), ("no.txt", "the ordinary text's file:")):
        ended = typed(tmp_path, "carriers", "--model", small_folder, "--ordinary", name)
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err
