"""What an answer is asked with, and of which model: right numbers where it can be asked, one sentence where not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import processors
from torch import nn

import wherefrom
from small import byte_tokenizer, write_small_model
from wherefrom import LanguageModel
from wherefrom.capture.fused import Limits, attend
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.prompted import read_prompted
from wherefrom.evidence.running import Runner, runner_of

LINES = "ab cd.\nef gh.\nij kl.\nmn op.\n"
ASKED: dict[str, Any] = {"question": "Which? The", "by": "line"}
END = 256
SIZES: dict[str, Any] = {"vocab_size": 257, "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": END}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return wherefrom.load(write_small_model(tmp_path_factory.mktemp("folder") / "model"))


def llama(context: int = 128) -> nn.Module:
    torch.manual_seed(0)
    own = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": context}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, **own)).eval()


def opt(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    own = {"hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 128}
    return hf.OPTForCausalLM(hf.OPTConfig(**SIZES, **own, dropout=dropout, attention_dropout=0.0)).eval()


def tokenizer(template: str = "$A") -> Any:
    inner = byte_tokenizer()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<end>", END)])
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


def by_hand(model: Any, ids: list[int], first: int) -> float:
    """Return an answer's log-odds, by the plainest way."""
    with torch.no_grad():
        given = torch.tensor([ids])
        logits = model.transformer(given) if isinstance(model, LanguageModel) else model(input_ids=given).logits
    rows = torch.log_softmax(logits[0].double(), dim=-1)
    log_p = sum(float(rows[at - 1, ids[at]]) for at in range(first, len(ids)))
    return log_p - math.log(1 - math.exp(log_p))


# -- which of its tokens count, and in which unit


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((1, 0), "0 behind 1"),
        ((1, 1), "1 twice"),
        ((True,), "True"),
        ((2, 0), "2"),
        (("0",), "'0'"),
        ("01", "'01'"),
        ((0.0,), "0.0"),
        ((-1,), "-1"),
        (3, "3"),
        ((), "none"),
        ((np.int64(2),), "2"),
    ],
)
def test_words_that_are_none_of_the_answers_in_order(words: Any, said: str) -> None:
    sentence = "the chosen tokens of the answer: expected places from 0 to 1, at least one, ascending, each once, got "
    with pytest.raises(InputError, match=re.escape(sentence + said + ". ")):
        AnswerGoal((5, 6, 7), 1, chosen=words)


@pytest.mark.parametrize("how", ["deletion", "direct"])
def test_words_in_another_order_measure_nothing(small: LanguageModel, how: Any) -> None:
    with pytest.raises(InputError, match="got 0 behind 1"):
        wherefrom.trace_answer(small, LINES, " xy", words=(1, 0), how=how, **ASKED)
    with pytest.raises(InputError, match="got 0 behind 1"):
        wherefrom.trace_routes(small, LINES, " xy", words=(1, 0), **ASKED)


def test_words_of_numpy_are_words(small: LanguageModel) -> None:
    numpy = AnswerGoal((5, 6, 7), np.int64(1), chosen=np.array([0, 1]))  # type: ignore[arg-type]
    assert numpy == AnswerGoal((5, 6, 7), 1, chosen=(0, 1))
    assert numpy.rows == (0, 1)
    assert type(numpy.rows[0]) is int
    one, other = (
        wherefrom.trace_answer(small, LINES, " xy", words=words, budget=3, **ASKED)
        for words in ((1,), np.array([1], np.int32))
    )
    assert (one.value, one.chosen) == (other.value, other.chosen)


@pytest.mark.parametrize("unit", ["logodds", None, 5, ["log-odds"], "Log-odds"])
def test_another_unit(small: LanguageModel, unit: Any) -> None:
    said = re.escape(f"the unit: expected 'log-odds' or 'log-probability', got {unit!r}.")
    for ask in (wherefrom.trace_answer, wherefrom.trace_routes):
        with pytest.raises(InputError, match=said):
            ask(small, LINES, " xy", unit=unit, **ASKED)
    with pytest.raises(InputError, match=said):
        AnswerGoal((5, 6), 1, unit)


@pytest.mark.parametrize(
    ("ids", "first", "said"),
    [
        ((5, 6), "39", "where the answer begins: expected a whole number from 0 up, got '39'"),
        ((5, 6), True, "where the answer begins: expected a whole number from 0 up, got True"),
        ((5, 6), -1, "where the answer begins: expected a whole number from 0 up, got -1"),
        ((5, "6"), 1, "the token ids: expected whole numbers from 0 up, such as (12, 7), got '6'"),
        ((5, -6), 1, "the token ids: expected whole numbers from 0 up, such as (12, 7), got -6"),
        (7, 1, "the token ids: expected whole numbers from 0 up, such as (12, 7), got 7"),
    ],
)
def test_a_goal_of_no_numbers(ids: Any, first: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        AnswerGoal(ids, first)


def test_tokens_that_the_model_does_not_have(small: LanguageModel) -> None:
    for runner in (runner_of(small), runner_of(llama())):
        for ids in ((5, 300, 7), (5, 7, 300)):
            with pytest.raises(InputError, match="the token ids: expected numbers from 0 to 256, got 300"):
                runner.logits(torch.tensor([ids]), (1,))
    with pytest.raises(InputError, match="the token ids: expected numbers from 0 to 3, got 6"):
        AnswerGoal((5, 6), 1).value(torch.zeros(1, 1, 4))


def test_numbers_that_overflow() -> None:
    for given in (math.nan, math.inf):
        for unit in ("log-odds", "log-probability"):
            logits = torch.zeros(1, 1, 9)
            logits[0, 0, 3] = given
            with pytest.raises(RecordingError, match=r"the logits of the answer's rows: .* got NaN .* overflow"):
                AnswerGoal((5, 6), 1, unit).value(logits)  # type: ignore[arg-type]
    never = torch.zeros(1, 1, 9).index_fill(-1, torch.tensor([3]), -math.inf)  # a token that is never said is none
    assert float(AnswerGoal((5, 6), 1, "log-probability").value(never)) == pytest.approx(-math.log(8))


# -- of which model


def test_a_model_that_draws_random_numbers() -> None:
    model, k = opt(0.1), {"tokenizer": tokenizer()}
    known = wherefrom.trace_answer(model, LINES, "xy", **ASKED, **k).value
    model.train()
    said = r"the model: expected one that gives the same for the same text, got OPT\w+ in training mode.*model\.eval\("
    for ask in (wherefrom.trace_answer, wherefrom.trace_routes):
        with pytest.raises(InputError, match=said):
            ask(model, LINES, "xy", **ASKED, **k)
    with pytest.raises(InputError, match=said):
        wherefrom.find_carriers(model, wherefrom.retrieval_cases(4), **k)
    with pytest.raises(InputError, match=said):
        wherefrom.trace(model, "ab cd", **k)
    model.eval()
    assert wherefrom.trace_answer(model, LINES, "xy", **ASKED, **k).value == known
    model.model.decoder.layers[1].train()  # one part of it is enough
    with pytest.raises(InputError, match=said):
        runner_of(model)


def test_a_model_in_training_mode_that_draws_nothing() -> None:
    model, k = llama(), {"tokenizer": tokenizer(), "budget": 3, **ASKED}
    before = wherefrom.trace_answer(model, LINES, "xy", **k).value
    assert wherefrom.trace_answer(model.train(), LINES, "xy", **k).value == before


def both(small: LanguageModel) -> Iterator[tuple[Any, dict[str, Any]]]:
    yield small, {}
    yield llama(), {"tokenizer": tokenizer()}


def test_inference_mode_changes_nothing(small: LanguageModel) -> None:
    for model, k in both(small):
        told = []
        for mode in (False, True):
            with torch.inference_mode(mode):
                answer = wherefrom.trace_answer(model, LINES, "xy", budget=5, **ASKED, **k)
                routes = wherefrom.trace_routes(model, LINES, "xy", budget=6, **ASKED, **k)
                told.append((answer.value, *answer.evidence, routes.value, routes.total, routes.noise))
        assert told[0] == pytest.approx(told[1], abs=1e-9)
    cases = [wherefrom.Case(f"{key}: {key}x. no: yes. {key}:", f" {key}x", f"{key}x") for key in ("ab", "cd")]
    found, other = [], llama(400)
    for mode in (False, True):
        with torch.inference_mode(mode):
            how: dict[str, Any] = {"count": 1, "draws": 2, "ordinary": LINES, "tokenizer": tokenizer()}
            found.append(wherefrom.find_carriers(other, cases, **how))
    assert found[0].before == pytest.approx(found[1].before, abs=1e-9)
    assert found[0].noise == pytest.approx(found[1].noise, abs=1e-12)


def test_a_model_made_in_inference_mode(tmp_path: Path) -> None:
    with torch.inference_mode():
        other, own = llama(), wherefrom.load(write_small_model(tmp_path / "model"))
    for model, k in ((other, {"tokenizer": tokenizer()}), (own, {})):
        with pytest.raises(InputError, match=r"which was made within torch\.inference_mode"):
            wherefrom.trace_answer(model, LINES, "xy", **ASKED, **k)


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def test_autocast(small: LanguageModel) -> None:
    said = "got torch.autocast, which changes the format"
    for model, k in both(small):
        for ask in (wherefrom.trace_answer, wherefrom.trace_routes):
            with autocast(), pytest.raises(InputError, match=said):
                ask(model, LINES, "xy", **ASKED, **k)
        with autocast(), pytest.raises(InputError, match=said):
            wherefrom.find_carriers(model, wherefrom.retrieval_cases(4), **k)
        with autocast(), pytest.raises(InputError, match="one number format, got q float32, k float32, v bfloat16"):
            wherefrom.trace(model, "ab cd", **k)


def test_arrays_of_two_number_formats() -> None:
    q = torch.ones(1, 1, 2, 4)
    with pytest.raises(InputError, match="one number format, got q float32, k float32, v bfloat16"):
        attend(q, q, q.bfloat16(), limits=Limits(), scale=1.0)


# -- the prompt and its answer


@pytest.mark.parametrize("template", ["$A <end>", "<end> $A <end>", "$A <end> <end>"])
@pytest.mark.parametrize("library", ["own", "transformers"])
def test_an_answer_goes_on_from_the_text_and_not_from_its_end_mark(tmp_path: Path, template: str, library: str) -> None:
    reads, opening = tokenizer(template), [END] * template.startswith("<end>")
    model: Any = llama()
    k: dict[str, Any] = {"tokenizer": reads}
    if library == "own":
        folder = write_small_model(tmp_path / "model")
        reads.backend_tokenizer.save(str(folder / "tokenizer.json"))
        model, k = wherefrom.load(folder), {}
    plain = lambda text: reads(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    before, ids = [*opening, *plain(f"{LINES}The")], [*opening, *plain(f"{LINES}The xy")]
    found = wherefrom.trace_answer(model, LINES, " xy", question="The", by="line", budget=3, **k)
    assert found.tokens.ids == tuple(ids)
    assert found.value == pytest.approx(by_hand(model, ids, len(before)), abs=1e-4)
    routes = wherefrom.trace_routes(model, LINES, " xy", question="The", by="line", budget=9, **k)
    assert routes.value == pytest.approx(found.value, abs=1e-4)
    written = read_prompted(model, runner_of(model), LINES, None, max_tokens=3, **k)
    row = list(written.tokens.ids)
    assert row[: written.first] == [*opening, *plain(LINES)]
    for at in range(written.first, len(row)):
        logits = runner_of(model).logits(torch.tensor([row[:at]]), (at - 1,))
        assert int(logits.argmax()) == row[at]


def test_an_end_mark_that_the_user_wrote_stays() -> None:
    model, reads = llama(), tokenizer("$A <end>")
    read = read_prompted(model, runner_of(model), "ab<end>", "xy", tokenizer=reads)
    assert read.tokens.ids == (*reads("ab")["input_ids"], *reads("xy", add_special_tokens=False)["input_ids"])


class Silent(nn.Module):
    """A model that must not be asked to write."""

    def generate(self, **named: Any) -> None:
        raise AssertionError("it was asked to write")


@pytest.mark.parametrize("most", [None, 10**9])
def test_more_tokens_than_the_context_has_room_for(most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = llama(context=128), "abcd " * 24
    runner: Runner = runner_of(model)
    monkeypatch.setattr(model, "generate", Silent.generate)
    total, room = (120 + (most or 32), most or 32)
    said = re.escape(f"at most 128 tokens (the context of LlamaForCausalLM), got {total:,}, {room:,} of them")
    with pytest.raises(InputError, match=said):
        read_prompted(model, runner, prompt, None, tokenizer=tokenizer(), max_tokens=most)


def test_as_many_tokens_as_the_context_has_room_for() -> None:
    model = llama(context=128)
    model.generation_config.eos_token_id = None
    read = read_prompted(model, runner_of(model), "abcd " * 24, None, tokenizer=tokenizer(), max_tokens=8)
    assert read.first == 120
    assert len(read.tokens) > 120


def test_an_answer_of_half_a_character(small: LanguageModel) -> None:
    for model, k in both(small):
        for ask in (wherefrom.trace_answer, wherefrom.trace_routes):
            with pytest.raises(InputError, match=r"got half a character, \\ud800, at character 1"):
                ask(model, LINES, "x\ud800", **ASKED, **k)
