"""What a trace of an answer tells beyond its numbers: parts that stand in for each other, what stays, what it cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherefrom
from small import write_small_model
from test_answered import FACTS, QUESTION, typed
from wherefrom import LanguageModel
from wherefrom.errors import InputError
from wherefrom.evidence.answered import AnswerTrace
from wherefrom.evidence.prompted import read_prompted
from wherefrom.evidence.running import runner_of
from wherefrom.views.answered import answer_lines

TWICE = "Clara lives in Rome. Boris has a red car. Clara lives in Rome. Anna lives in Oslo."
ASKED = "Question: Where does Clara live? Clara lives in"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return wherefrom.load()


@pytest.fixture(scope="module")
def twice(model: LanguageModel) -> AnswerTrace:
    return wherefrom.trace_answer(model, TWICE, "Rome", question=ASKED, budget=16)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return wherefrom.load(write_small_model(tmp_path_factory.mktemp("folder") / "model"))


def told(trace: AnswerTrace, **how: Any) -> str:
    """What is printed, as one line."""
    return " ".join(" ".join(line.plain for line in answer_lines(trace, **how)).replace("\u00a0", " ").split())


@pytest.mark.long
def test_two_parts_that_say_the_same_are_not_said_to_speak_against_the_answer(twice: AnswerTrace) -> None:
    assert twice.measured[0] < 0.1 > abs(twice.measured[2])  # alone neither is missed
    assert set(twice.disputed) == {0, 2}
    assert twice.to_json()["disputed"] == list(twice.disputed)
    assert min(twice.evidence[[0, 2]]) > 1
    text = told(twice)
    assert 'The runs with several parts away say otherwise of #2 "Clara lives in Rome."' in text
    assert text.index("say otherwise") > text.index("What mattered, against it")


def test_nothing_is_disputed_where_the_fit_agrees_or_runs_are_few(twice: AnswerTrace) -> None:
    agree = replace(twice, evidence=np.where(twice.known, twice.measured, 0.0))
    assert agree.disputed == ()
    assert "say otherwise" not in told(agree)
    assert twice.ablations is not None
    few = replace(twice, ablations=replace(twice.ablations, **_first(twice.ablations, 7)))
    assert few.runs == 7
    assert few.disputed == ()


def _first(runs: Any, count: int) -> dict[str, Any]:
    """The fields of some runs that hold one entry a run, cut to the first."""
    sizes = {name: value for name, value in vars(runs).items() if np.ndim(value) and len(value) == len(runs.values)}
    return {name: value[:count] for name, value in sizes.items()}


def test_what_is_not_listed_is_called_what_it_is(model: LanguageModel, twice: AnswerTrace) -> None:
    hidden = [1, 2]  # neither the strongest nor one of the two heaviest
    assert twice.order[0] not in hidden
    assert f"effect of each within ±{abs(twice.measured[hidden]).max():.3f}" in told(twice, top=1)
    small_budget = wherefrom.trace_answer(model, TWICE, "Rome", question=ASKED, budget=4)
    assert "estimate of each within ±" in told(small_budget, top=1)
    assert "effect or estimate of each" in told(
        replace(twice, measured=np.where(np.arange(4) == 1, np.nan, twice.measured)), top=1
    )


def test_weights_and_what_stays_are_all_of_it(twice: AnswerTrace) -> None:
    stays = 1 - twice.lenses["weight"].values.sum()
    assert 0.2 < stays < 0.8
    assert f"{stays:.1%} of the weight lies on what stays: what is asked, and the answer itself" in told(twice)
    assert "on what stays" not in told(twice, lenses=("gate",))


def test_the_first_token_is_named_where_its_passage_mattered(model: LanguageModel, twice: AnswerTrace) -> None:
    assert 0 in twice.mattered
    assert "The passage with the first token" in told(twice)
    assert "The passage with the first token" not in told(replace(twice, measured=np.array([0.0, -0.5, 0.0, -3.8])))
    token = wherefrom.trace_answer(model, "Rosa lives", "in Rome", by="token", budget=4)
    assert "-: the text's first token has no gate" in told(token)
    assert "no gate, and a passage" not in told(twice)


@pytest.mark.long
def test_too_few_parts_are_not_blamed_on_the_budget(model: LanguageModel) -> None:
    trace = wherefrom.trace_answer(model, FACTS, "Rome", question=QUESTION, by=["Rome", "Oslo"], budget=30)
    assert trace.runs < 8
    assert "it has too few parts for 8 different ones" in told(trace)
    short = wherefrom.trace_answer(model, FACTS, "Rome", question=QUESTION, budget=6)
    assert "a larger budget says it" in told(short)


@pytest.mark.parametrize(
    ("prompt", "question", "last"),
    [
        ("Anna lives in Oslo. Clara lives in Rome. ", "Where does Clara live? Clara lives in", "Clara lives in Rome."),
        ("Anna lives in Oslo. Clara lives in Rome. ", "?", "Clara lives in Rome."),
        ("Anna lives in Oslo. Clara lives in Rome", "s biggest town is", "Clara lives in Rome"),
        ("Anna lives in Oslo. Clara lives in Rome.", "Clara lives in", "Clara lives in Rome."),
        ("Anna lives in Oslo. Clara lives in Rome.\n", "\nClara lives in", "Clara lives in Rome."),
    ],
)
def test_a_token_that_lies_on_both_sides_is_the_questions(
    model: LanguageModel, prompt: str, question: str, last: str
) -> None:
    runner = runner_of(model)
    read = read_prompted(model, runner, prompt, "Rome", question=question)
    behind = read.tokens.text[read.tokens[read.sources].span[0] :]
    assert behind.strip().startswith(question.strip())
    trace = wherefrom.trace_answer(model, prompt, "Rome", question=question, budget=3)
    assert [passage.label for passage in trace.passages] == ["Anna lives in Oslo.", last]


def test_what_is_read_before_the_budget_is_counted(small: LanguageModel) -> None:
    prompt, tokens = "ab cd. ef gh. ij kl", [0]

    def count(module: Any, args: Any) -> None:
        tokens[0] += args[0].numel()

    hook = small.transformer.embedding.register_forward_pre_hook(count)
    try:
        for how in ({"answer": " q"}, {"answer": "q"}, {"answer": None, "max_tokens": 10}):
            tokens[0] = 0
            trace = wherefrom.trace_answer(small, prompt, budget=3, **how)
            read = tokens[0] / len(trace.tokens)
            assert trace.cost.forward + trace.cost.reading == pytest.approx(read, abs=1e-9)
            assert (trace.cost.reading > 0) == (how != {"answer": " q"})
            assert trace.to_json()["cost"]["reading"] == pytest.approx(trace.cost.reading, abs=1e-6)
            if trace.cost.reading:
                why = "to write the answer" if trace.written else "to tell whether a blank stands before the answer"
                assert f"before that {trace.cost.reading:.1f} {why}" in told(trace)
    finally:
        hook.remove()


def test_the_check_is_paid_once(small: LanguageModel) -> None:
    prompt, answer = "ab cd. ef gh. ij kl. mn op. qr st. uv wx yz.", " " + "abcdefghijklmnopqrstuvwxyz" * 2
    large = wherefrom.trace_answer(small, prompt, answer, budget=6)
    just = wherefrom.trace_answer(small, prompt, answer, budget=large.cost.passes + 1e-6)
    assert just.runs == large.runs == 1
    assert just.cost.passes == pytest.approx(large.cost.passes)
    less = wherefrom.trace_answer(small, prompt, answer, budget=large.cost.passes - 0.01)
    assert less.runs == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"max_tokens": 3}, "max_tokens: expected none beside an answer, got 3"),
        ({"direct": "yes"}, "direct: expected"),
        ({"budget": float("inf")}, "the budget: expected a finite number, at least 3 passes"),
    ],
)
def test_bad_input_is_a_sentence(small: LanguageModel, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        wherefrom.trace_answer(small, "ab cd. ef gh. ij", " q", **how)


def test_a_file_of_messages(small: LanguageModel, tmp_path: Path) -> None:
    from wherefrom.cli.answers import prompt_of

    chat, given = tmp_path / "chat.json", [{"role": "user", "content": "ab cd."}]
    chat.write_text(json.dumps(given), encoding="utf-8-sig")
    assert prompt_of(None, None, chat) == given
    for text, said in (
        ('"ab cd. ef gh."', "the messages: expected a list of messages"),
        ('[{"role": "user", "content": "ab \\ud83d cd"}]', "message 0: expected Unicode, got half a character"),
        ('[{"role": "user", "content": [{"type": "text", "text": "\\udc00"}]}]', "message 0: expected Unicode"),
    ):
        chat.write_text(text, encoding="utf-8")
        ended = typed(tmp_path, "trace", "--chat", chat, "--answer", "q")
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err


@pytest.mark.parametrize("verb", ["trace", "routes"])
def test_a_text_beyond_the_context_is_refused_and_nothing_else_is_said(verb: str, tmp_path: Path) -> None:
    folder = write_small_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = "ab cd. " * config["max_position_embeddings"]
    ended = typed(tmp_path, verb, text, "--answer", "q", "--model", folder, "--library", "transformers")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("wherefrom: the prompt and its answer: expected at most")
    assert ended.err.count("\n") == 1


def test_a_cut_that_leaks_says_so_where_it_is_read(small: LanguageModel) -> None:
    """The measured runs know it; whoever reads the trace sees it too."""
    trace = wherefrom.trace_answer(small, "ab cd. ef gh. ij kl. mn op", " q", how="total", budget=8)
    assert trace.ablations is not None
    assert not trace.ablations.leaks
    assert f"measured: {trace.ablations.exactness}" in str(trace)
    assert "recurrences" not in told(trace)
    leaking = replace(trace, ablations=replace(trace.ablations, leaks=True))
    assert "other ways than attention (recurrences, convolutions) is not cut" in told(leaking)
