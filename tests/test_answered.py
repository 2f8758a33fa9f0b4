"""What an answer drew on, from the prompt to the table: each number against what is run by hand, costs, refusals."""

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
import torch
from rich.cells import cell_len

import wherefrom
from command_line import finite_json, typed
from hf_small import made
from wherefrom import AnswerTrace, LanguageModel
from wherefrom.errors import InputError
from wherefrom.evidence import answering
from wherefrom.evidence.ablations import ablate
from wherefrom.evidence.answered import spearman
from wherefrom.evidence.goal import AnswerGoal, log1mexp
from wherefrom.evidence.gradients import price
from wherefrom.evidence.prompted import read_prompted
from wherefrom.evidence.read_weights import read_weights
from wherefrom.evidence.running import OwnRunner, runner_of
from wherefrom.model.store import default_folder
from wherefrom.model.transformer import Transformer
from wherefrom.passages import passages
from wherefrom.views.answered import LENSES, answer_lines

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
FACTS = "Anna lives in Oslo. Boris has a red car. Clara lives in Rome. David works as a baker. Elena has a hat."
QUESTION = " Question: Where does Clara live? Clara lives in"
PROMPT = FACTS + QUESTION
LINES = "ab cd.\nef gh.\nij kl.\nmn op.\n"
"""What a small model of bytes reads: four lines, and then a question."""
ASKED: dict[str, Any] = {"question": "Which? The", "by": "line"}
MARKS = {"anna": "Anna lives in Oslo.", "boris": "Boris has a red car.", "clara": "Clara lives in Rome."}
MARKS |= {"david": "David works as a baker.", "elena": "Elena has a hat."}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return wherefrom.load()


@pytest.fixture(scope="module")
def traced(model: LanguageModel) -> AnswerTrace:
    return wherefrom.trace_answer(model, PROMPT, "Rome", by=MARKS, budget=14)


def log_odds(model: LanguageModel, ids: list[int], first: int) -> float:
    """Return an answer's log-odds, by the plainest way."""
    with torch.inference_mode():
        logits = model.transformer(torch.tensor([ids]))[0].double()
    rows = torch.log_softmax(logits, dim=-1)
    log_p = sum(float(rows[at - 1, ids[at]]) for at in range(first, len(ids)))
    return log_p - math.log(1 - math.exp(log_p))


def test_a_number_of_the_answer_is_what_the_model_says(model: LanguageModel, traced: AnswerTrace) -> None:
    ids = list(traced.tokens.ids)
    assert traced.answer == " Rome"
    assert traced.value == pytest.approx(log_odds(model, ids, traced.first), abs=1e-4)
    assert sum(traced.token_log_probabilities) - math.log(
        1 - math.exp(sum(traced.token_log_probabilities))
    ) == pytest.approx(traced.value, abs=1e-6)


def test_what_was_measured_is_the_text_without_the_passage(model: LanguageModel, traced: AnswerTrace) -> None:
    ids, known = list(traced.tokens.ids), np.flatnonzero(~np.isnan(traced.measured))
    assert len(known) >= 3
    for place in known:
        passage = traced.passages[place]
        left = ids[: passage.start] + ids[passage.stop :]
        without = log_odds(model, left, traced.first - (passage.stop - passage.start))
        assert traced.measured[place] == pytest.approx(traced.value - without, abs=2e-4)
    assert traced.mattered[0] == 2
    assert traced.passages[2].name == "clara"


def test_the_weight_is_the_mean_over_layers_heads_and_rows(model: LanguageModel, traced: AnswerTrace) -> None:
    recording = wherefrom.record(model, model.tokenizer.tokens_of(traced.tokens.ids))
    row = traced.first - 1
    shares = np.zeros(len(traced.passages))
    for layer in range(recording.model.layers):
        for head in range(recording.model.heads):
            window = np.asarray(
                wherefrom.weights(
                    recording, layer=layer, head=head, destinations=range(row, row + 1), sources=range(row + 1)
                )
            )[0]
            shares += [window[own.start : own.stop].sum() for own in traced.passages]
    expected = shares / (recording.model.layers * recording.model.heads)
    assert traced.lenses["weight"].values == pytest.approx(expected, abs=1e-5)


def test_weights_without_gradients_are_those_of_the_prices(model: LanguageModel) -> None:
    runner = runner_of(model)
    prompted = read_prompted(model, runner, PROMPT, " Rome, in Italy")
    goal = AnswerGoal(prompted.tokens.ids, prompted.first)
    parts = passages(prompted.tokens, "word", within=range(prompted.first))
    shares, logits = read_weights(runner, goal, parts)
    priced = price(runner, goal)
    heads = sum(call.heads for call in priced.calls)
    read = priced.sources("weight", rows=goal.rows) / (heads * len(goal.rows))
    assert shares.numpy() == pytest.approx([read[part.start : part.stop].sum() for part in parts], abs=1e-5)
    assert float(goal.value(logits)[0]) == pytest.approx(priced.value, abs=1e-4)


PRICED = {"weight", "moved", "attribution", "closed form", "gate"}


@pytest.mark.parametrize(("budget", "lenses", "runs"), [(3, {"weight", "gate"}, 0), (4, PRICED, 0)])
def test_a_small_budget_measures_nothing_and_says_so(
    model: LanguageModel, budget: float, lenses: set[str], runs: int
) -> None:
    found = wherefrom.trace_answer(model, PROMPT, " Rome", by=MARKS, budget=budget)
    assert set(found.lenses) == lenses
    jsonschema.validate(found.to_json(), SCHEMA)
    assert found.runs == runs
    assert np.isnan(found.measured).all()
    assert found.cost.passes == budget
    assert set(found.lenses) | set(found.absent) == set(LENSES)
    assert found.absent["direct"].startswith("not run: it takes" if budget == 3 else "not asked for: it takes")
    assert len(found.heads) == (0 if budget == 3 else 3 * len(found.passages))
    assert found.evidence == pytest.approx(found.lenses["gate"].values)
    assert found.mattered == ()
    assert found.suspected[0] == found.order[0] == abs(found.evidence).argmax()
    assert found.estimate == "the gate's number, in its own unit"
    said = " ".join("\n".join(line.plain for line in answer_lines(found)).split())
    assert "What mattered" not in said
    assert f"What may matter, by the estimate alone: #{found.suspected[0]}" in said
    assert "█" not in said
    assert "0 runs measured" in " ".join("\n".join(line.plain for line in answer_lines(found)).split())


def test_no_more_is_run_than_the_budget_allows(traced: AnswerTrace) -> None:
    assert 4 < traced.cost.passes <= traced.cost.budget == 14
    assert traced.cost.backward == 2
    assert traced.runs >= 8


def test_a_lens_that_ranks_as_the_runs_do_agrees(traced: AnswerTrace) -> None:
    by_name = {own.lens: own for own in traced.agreements}
    assert set(by_name) == set(traced.lenses)
    assert all(own.runs == traced.runs for own in traced.agreements)
    assert by_name["gate"].correlation > by_name["weight"].correlation


def test_a_trace_is_drawn_within_80_columns(traced: AnswerTrace) -> None:
    lines = [line.plain for line in answer_lines(traced)]
    assert max(map(cell_len, lines)) <= 80
    rows = {int(line[:4]): line for line in lines if line[:4].strip().isdigit()}
    for place, measured in enumerate(traced.measured):
        assert ("≈" in rows[place]) == math.isnan(measured)
    text = " ".join("\n".join(lines).split())
    for said in (
        'answer: " Rome"',
        'What mattered, for the answer: #2 "clara"',
        "How sure: rank correlation",
        "passes' worth of 14",
    ):
        assert said in text


def test_lenses_are_chosen_and_each_is_said_to_be_there_or_not(traced: AnswerTrace) -> None:
    lines = [line.plain for line in answer_lines(traced, lenses=LENSES)]
    assert max(map(cell_len, lines)) <= 80
    heading = next(line for line in lines if line.startswith("   #"))
    assert heading.split() == ["#", "passage", "weight", "moved", "gradient", "closed", "gate", "effect"]
    clara = next(line for line in lines if line.startswith("   2"))
    shown = [float(cell.removesuffix("%")) for cell in clara.split()[2:7]]
    expected = [float(lens.values[2]) for lens in traced.lenses.values()]
    assert shown == pytest.approx([100 * expected[0], *expected[1:]], abs=0.051)
    assert "direct: not asked for: it takes two passes more" in " ".join("\n".join(lines).split())
    few = [line.plain for line in answer_lines(traced, lenses=("moved",))]
    assert next(line for line in few if line.startswith("   #")).split() == ["#", "passage", "moved", "effect"]
    assert not any(line.startswith(("gate:", "direct:")) for line in few)


def test_the_heads_that_carried_are_named(traced: AnswerTrace) -> None:
    first = [one for one in traced.heads if one.passage == 2]
    assert [abs(one.price) for one in first] == sorted((abs(one.price) for one in first), reverse=True)
    text = " ".join(" ".join(line.plain for line in answer_lines(traced, carried=1)).split())
    named = ", ".join(f"layer {one.layer} head {one.head} {one.price:+.3f}" for one in first)
    whole = float(traced.lenses["attribution"].values[2])
    assert f'Heads of #2 "clara", by gradient: {named}, of {whole:+.3f} in all.' in text
    assert text.count("by gradient:") == 1
    assert "by gradient:" not in " ".join(line.plain for line in answer_lines(traced, carried=0))


def test_what_rounding_hides_is_drawn_as_within_noise(traced: AnswerTrace) -> None:
    assert traced.ablations is not None
    noisy = replace(traced, ablations=replace(traced.ablations, noise=1.0))
    lines = [line.plain for line in answer_lines(noisy)]
    rows = {int(line[:4]): line for line in lines if line[:4].strip().isdigit()}
    for place, measured in enumerate(traced.measured):
        assert ("within noise" in rows[place]) == (abs(measured) < 1.0)
    assert max(map(cell_len, lines)) <= 80
    assert "differences below 1e+00 are within noise: rounding" in " ".join("\n".join(lines).split())


def test_a_trace_becomes_json(traced: AnswerTrace) -> None:
    found = json.loads(json.dumps(traced.to_json(), allow_nan=False))
    jsonschema.validate(found, SCHEMA)
    assert found["answer"]["text"] == " Rome"
    assert [one["name"] for one in found["passages"]] == list(MARKS)
    first = found["passages"][0]
    assert traced.tokens.text[slice(*first["span"])] == MARKS["anna"]
    assert first["weight"] == pytest.approx(float(traced.lenses["weight"].values[0]), abs=1e-6)


def test_a_question_is_read_and_never_taken_away(model: LanguageModel, traced: AnswerTrace) -> None:
    found = wherefrom.trace_answer(model, FACTS, "Rome", question=QUESTION, budget=3)
    assert [one.label for one in found.passages] == list(MARKS.values())
    assert found.tokens.ids == traced.tokens.ids
    assert found.lenses["gate"].values == pytest.approx(traced.lenses["gate"].values, rel=1e-4)
    without = wherefrom.trace_answer(model, PROMPT, "Rome", budget=3)
    assert [one.label for one in without.passages] == [*MARKS.values(), "Question: Where does Clara live?"]


def test_the_model_writes_the_answer_where_none_is_given(model: LanguageModel) -> None:
    found = wherefrom.trace_answer(
        model, "The capital of France is Paris. The capital of Italy is", max_tokens=1, budget=3
    )
    assert found.written
    assert found.answer == " Rome"


def test_an_answer_of_several_tokens_may_be_asked_in_part(model: LanguageModel) -> None:
    runner = runner_of(model)
    read = read_prompted(model, runner, PROMPT, " Rome, in Italy")
    whole = AnswerGoal(read.tokens.ids, read.first, "log-probability")
    parts = [AnswerGoal(read.tokens.ids, read.first, "log-probability", (place,)) for place in range(4)]
    with torch.no_grad():
        logits = runner.logits(torch.tensor([whole.ids]), whole.rows)
        each = [float(part.value(logits[:, [place]])[0]) for place, part in enumerate(parts)]
        assert sum(each) == pytest.approx(float(whole.value(logits)[0]), abs=1e-9)


def test_a_lens_that_a_model_does_not_have_is_not_there_and_says_why(
    small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnRunner, "projection", lambda self, name: None)
    found = wherefrom.trace_answer(small, LINES, " x", budget=6, direct=True, **ASKED)
    assert set(found.lenses) == {"weight", "attribution", "closed form", "gate"}
    assert found.absent["moved"].endswith("of which no such matrix was found")
    assert "no single matrix projects the outputs of" in found.absent["direct"]
    jsonschema.validate(found.to_json(), SCHEMA)
    assert "moved: not there:" in "\n".join(line.plain for line in answer_lines(found, lenses=("moved", "gate")))


@pytest.mark.parametrize("how", ["deletion", "total", "direct"])
def test_costs_are_the_tokens_that_were_run(small: LanguageModel, how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[int] = []
    true_embed = Transformer.embed

    def embed(self: Transformer, ids: torch.Tensor, *more: Any) -> torch.Tensor:
        tokens.append(ids.numel())
        return true_embed(self, ids, *more)

    monkeypatch.setattr(Transformer, "embed", embed)
    found = wherefrom.trace_answer(small, LINES, " x", how=how, budget=9, **ASKED)  # read as it is written: no run more
    assert found.runs > 1
    assert found.cost.forward * len(found.tokens) == pytest.approx(sum(tokens))
    assert found.cost.backward == 2
    assert 4 < found.cost.passes <= 9


@pytest.mark.parametrize("where", [{"layers": (1,)}, {"heads": [(0, 2), (2, 5)]}, {"layers": (0, 2), "heads": (1,)}])
def test_passages_may_be_cut_in_some_layers_and_heads(small: LanguageModel, where: dict[str, Any]) -> None:
    found = wherefrom.trace_answer(small, LINES, " x", how="total", budget=20, **ASKED, **where)
    runner, goal = runner_of(small), AnswerGoal(found.tokens.ids, found.first)
    assert found.ablations is not None
    expected = ablate(runner, goal, found.passages, found.ablations.kept, how="total", **where)
    assert found.ablations.values == pytest.approx(expected.values, abs=1e-5)
    assert found.where == found.to_json()["where"] == expected.where
    few = wherefrom.trace_answer(small, LINES, " x", how="total", budget=3, **ASKED, **where)
    assert few.lenses["weight"].values == pytest.approx(found.lenses["weight"].values, abs=1e-6)
    assert f"in {found.where}" in " ".join(" ".join(line.plain for line in answer_lines(found)).split())
    pairs = {(one.layer, one.head) for one in found.heads}
    assert pairs <= {(layer, head) for layer in range(3) for head in range(6) if inside(layer, head, where)}


def inside(layer: int, head: int, where: dict[str, Any]) -> bool:
    heads = where.get("heads", (head,))
    return layer in where.get("layers", (layer,)) and (head in heads or (layer, head) in heads)


def test_an_answer_that_nobody_would_write_is_scored_as_it_is_given(model: LanguageModel) -> None:
    found = wherefrom.trace_answer(model, PROMPT, " xylophone, or so", budget=3)
    assert (found.written, found.answer) == (False, " xylophone, or so")
    assert found.value == pytest.approx(log_odds(model, list(found.tokens.ids), found.first), abs=1e-3)
    assert found.value < -10


def certain_model(small: LanguageModel) -> LanguageModel:
    """A model that is certain: its logits are a million times as large."""
    certain = replace(small, transformer=copy.deepcopy(small.transformer))
    with torch.no_grad():
        certain.transformer.norm.weight.mul_(1e6)
    return certain


def test_an_answer_that_is_certain_has_no_log_odds(small: LanguageModel) -> None:
    certain = certain_model(small)
    with pytest.raises(InputError, match=r"the answer's log-odds.*a probability of 1 in double.*unit=\"log-prob"):
        wherefrom.trace_answer(certain, LINES, max_tokens=1, **ASKED)
    found = wherefrom.trace_answer(certain, LINES, max_tokens=1, unit="log-probability", budget=3, **ASKED)
    assert found.value == 0.0


def test_half_precision_says_what_is_noise(small_folder: Path) -> None:
    half = wherefrom.load(small_folder, library="transformers")
    half.module.bfloat16()
    given: dict[str, Any] = {"unit": "log-probability", **ASKED}
    found = wherefrom.trace_answer(half, LINES, " x", budget=20, **given)
    assert found.noise > 1e-3
    assert found.runs > 3
    assert found.cost.passes <= 20
    few = wherefrom.trace_answer(half, LINES, " x", budget=8, **given)  # the noise alone takes five passes
    assert (few.runs, few.cost.passes) == (0, 4)
    assert math.isnan(few.noise)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": 2}, r"the budget: expected at least 3 passes.*Give 3 to measure nothing, 4 to price every edge"),
        ({"budget": 5, "direct": True}, r"the budget: expected at least 6 passes.*along the residual stream"),
        ({"budget": 7, "at": (1, 0.3, 0.1), "direct": True}, r"the budget: expected at least 10 passes"),
        ({"how": "softly"}, r'how passages are taken away: expected "deletion" or "total" or "direct"'),
        ({"layers": (3,)}, r"the layers and heads of a deletion: expected none"),
        ({"layers": (30,), "how": "total"}, r"the layer: expected a whole number from 0 to 29, got 30"),
        ({"heads": [(3, 9)], "how": "total"}, r"the head: expected a whole number from 0 to 8, got 9"),
        ({"by": [FACTS[:19], FACTS[10:40]]}, r"the passage.*overlap|share"),
        ({"budget": "much"}, r"the budget: expected at least 3 passes.*, got 'much'"),
        ({"answer": ""}, r"the answer"),
        ({"by": ["nowhere"]}, r"nowhere"),
        ({"by": ["lives in"]}, r"lives in.*[Aa]nna.*[Cc]lara"),
        ({"prompt": [{"role": "user"}]}, r"message 0: expected a mapping with a .role. and a .content."),
        ({"words": (5,)}, r"the chosen tokens of the answer: expected places from 0 to 0"),
        ({"at": (0.0,)}, r"a gate"),
        ({"prompt": "Rome is", "by": "sentence"}, r"the prompt: expected two parts at least"),
        ({"question": ""}, r"the question"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(model: LanguageModel, how: dict[str, Any], said: str) -> None:
    given = {"prompt": PROMPT, "answer": " Rome", "by": "sentence", **how}
    with pytest.raises(InputError, match=said):
        wherefrom.trace_answer(model, given.pop("prompt"), given.pop("answer"), **given)


@pytest.mark.parametrize(("at", "probability"), [(3, 1), (4, 0)])
def test_log_odds_of_certainty_are_refused(at: int, probability: int) -> None:
    goal = AnswerGoal((1, 2, 3), 2)
    logits = torch.full((1, 1, 10), -torch.inf)
    logits[0, 0, at] = 0.0
    said = rf"log-odds: expected a probability between 0 and 1, got a probability of {probability} .*log-probability"
    with pytest.raises(InputError, match=said):
        goal.value(logits)
    assert float(AnswerGoal((1, 2, 3), 2, "log-probability").value(logits)[0]) == (0.0 if at == 3 else -math.inf)


def test_log_of_one_minus_exp_is_right_at_both_ends() -> None:
    x = torch.tensor([-1e-12, -1e-3, -0.6, -0.8, -5.0, -50.0], dtype=torch.float64, requires_grad=True)
    expected = [math.log(-math.expm1(float(value))) for value in x.tolist()]
    assert log1mexp(x).tolist() == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(log1mexp(x).sum(), x)
    assert gradient.tolist() == pytest.approx([-1 / math.expm1(-value) for value in x.tolist()], rel=1e-9)


def test_rank_correlation_on_paper() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(0.8)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman([1, 2], [1, 2]))
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


@pytest.mark.long
def test_a_model_of_transformers_tells_the_same(traced: AnswerTrace) -> None:
    theirs = wherefrom.load(default_folder(), library="transformers")
    found = wherefrom.trace_answer(theirs, FACTS + QUESTION, "Rome", by=MARKS, budget=14)
    assert found.tokens.ids == traced.tokens.ids
    assert found.value == pytest.approx(traced.value, abs=1e-3)
    for name, lens in traced.lenses.items():
        assert found.lenses[name].values == pytest.approx(lens.values, abs=1e-2), name
    assert found.measured == pytest.approx(traced.measured, abs=1e-3, nan_ok=True)


def test_chat_messages_are_written_out_by_the_template() -> None:
    theirs = wherefrom.load(default_folder(), library="transformers")
    messages = [{"role": "user", "content": "Where is the Colosseum? Answer in one word."}]
    found = wherefrom.trace_answer(theirs, messages, "Rome", by=["the Colosseum?"], budget=3)
    assert "<|im_start|>assistant" in found.tokens.text[: found.tokens[found.first].span[0]]
    assert found.answer.strip() == "Rome"
    with pytest.raises(InputError, match="the question: expected none beside chat messages"):
        wherefrom.trace_answer(theirs, messages, "Rome", question="Where?", budget=3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert", "the model: expected a decoder.*an encoder"),
        ("bart", "the model: expected a decoder.*an encoder-decoder"),
        ("bloom", "the model: expected a decoder all of whose attention can be changed"),
        ("t5 encoder", "the model: expected"),
    ],
)
def test_a_model_that_is_no_decoder_is_refused(name: str, said: str) -> None:
    module, _ = made(name)
    with pytest.raises(InputError, match=said):
        runner_of(module)


def test_rows_are_those_of_the_whole_text() -> None:
    module, _ = made("llama")
    ids = torch.randint(3, 101, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = module(input_ids=ids).logits
        assert torch.allclose(runner_of(module).logits(ids, (4, 9)), whole[:, [4, 9]], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--answer", "Rome", "--target", "Rome"], "--target: expected none where a whole answer is asked about"),
        (["--answer", "Rome", "--write", "3"], "the answer: expected one, got --answer and --write"),
        (["--by", "word", "--mark", "Anna", "--answer", "Rome"], "the sources: expected --by or --mark, got both"),
        (["--answer", "Rome", "--budget", "1"], "the budget: expected at least 3 passes"),
        (["--chat", "nowhere.json"], "the prompt: expected one source, got a text and --chat"),
        (
            ["--answer", "x", "--lens", "gate,weights"],
            "--lens: expected names of weight, moved, gradient, closed, gate,",
        ),
        (["--answer", "x", "--layers", "2"], "the layers and heads of a deletion: expected none, got some"),
        (["--answer", "x", "--how", "total", "--layers", "3:"], "--layers: expected numbers from 0 to 2"),
        (["--answer", "x", "--how", "total", "--heads", "1-2"], "--heads: expected numbers and ranges"),
        (["--answer", "x", "--budget", "5", "--lens", "direct"], "the budget: expected at least 6 passes"),
    ],
)
def test_the_command_refuses_in_a_sentence(small_folder: Path, tmp_path: Path, options: list[str], said: str) -> None:
    ended = typed(tmp_path, "trace", FACTS, "--model", small_folder, *options)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"wherefrom: {said}")
    assert ended.err.count("\n") == 1


def test_the_command_prints_what_python_gives(small: LanguageModel, small_folder: Path, tmp_path: Path) -> None:
    options = ["--question", ASKED["question"], "--answer", " x", "--by", "line", "--budget", 9, "--how", "total"]
    limited = [*options, "--layers", "1:", "--heads", "0,3", "--lens", "moved,direct", "--model", small_folder]
    found = finite_json(typed(tmp_path, "trace", LINES, *limited, "--json"))
    jsonschema.validate(found, SCHEMA)
    where = {"layers": (1, 2), "heads": (0, 3)}
    expected = wherefrom.trace_answer(
        small, LINES, " x", how="total", direct=True, budget=9, **ASKED, **where
    ).to_json()
    for one in (found, expected):
        del one["cost"]["seconds"], one["model"]["name"]
    assert found == expected
    ended = typed(tmp_path, "trace", LINES, *limited, "--carried", 1)
    assert (ended.code, ended.widest <= 80) == (0, True)
    lines = ended.out.splitlines()
    assert next(line for line in lines if line.startswith("   #")).split() == [
        "#",
        "line",
        "moved",
        "direct",
        "effect",
    ]
    assert ended.out.count("by gradient:") == 1


@pytest.mark.long
def test_where_all_passages_can_be_taken_away_alone_they_are(model: LanguageModel) -> None:
    """Each of them and four runs more; a smaller budget takes the three strongest away and random halves."""
    many, few = (wherefrom.trace_answer(model, PROMPT, " Rome", by=MARKS, budget=budget) for budget in (14, 6))
    assert many.known.all()
    assert many.runs >= len(many.passages) + 4
    assert few.known.sum() <= 3
    assert few.runs < len(few.passages) + 4


def test_what_was_measured_stands_before_what_is_estimated(traced: AnswerTrace) -> None:
    measured = np.full(len(traced.passages), np.nan)
    measured[[0, 2]] = 0.01, -5.0
    evidence = np.arange(1.0, 1 + len(measured))
    found = replace(traced, measured=measured, evidence=evidence)
    last = len(measured) - 1
    assert found.order.tolist() == [2, 0, *(place for place in range(last, 0, -1) if place != 2)]
    assert found.mattered == (2,)
    assert found.suspected == tuple(place for place in range(last, 0, -1) if place != 2)
    said = " ".join("\n".join(line.plain for line in answer_lines(found)).split())
    assert 'What mattered, against it: #2 "clara".' in said
    assert "What mattered, for the answer" not in said


def test_runs_that_contradict_the_gates_leave_their_numbers_as_they_are(model: LanguageModel) -> None:
    found = wherefrom.trace_answer(model, PROMPT, " Rome", by=MARKS, budget=5)
    assert 0 < found.runs < 8
    assert found.ablations is not None
    other = replace(found.ablations, values=found.value + (found.value - found.ablations.values))
    gate = found.lenses["gate"].values
    for runs in (found.ablations, other):
        evidence = answering._corrected(found, runs).evidence
        factor = evidence / gate
        assert (factor > 0).all()
        assert factor == pytest.approx(factor[0])
