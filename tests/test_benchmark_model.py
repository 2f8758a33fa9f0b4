"""The benchmark's small model: it is asked as the prompts ask, answers alone are learnt, it begins by looking back."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from benchmarks.prompts import FAMILIES, THINGS
from benchmarks.small_model import (
    LEARNT,
    LEARNT_AT,
    NOT_LEARNT,
    Course,
    Document,
    answer_loss,
    batch,
    begun,
    question,
    said,
    scored,
    vocabulary,
    write,
)

import wherefrom
from wherefrom.tokens import Tokenizer
from wherefrom.training.text import byte_tokenizer

BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return vocabulary()


@pytest.mark.parametrize("family", LEARNT)
def test_a_question_about_a_source_is_the_prompts_own(family: str) -> None:
    many = 40 * len(THINGS)
    for seed in range(12):
        prompt = FAMILIES[family](seed)
        asked = prompt.text.partition(prompt.sources[-1])[2]
        ways = {question(prompt.sources[prompt.holds[0]], Random(draw)) for draw in range(many)}
        assert (asked, prompt.answer) in ways
        assert len(ways) == (2 * len(THINGS) if family == "indirect object" else 1)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("Anna has a red car.", ("Anna has a", " red", " car.")),
        ("river: Rome", ("river:", " Rome", "")),
        ("def get_a(b): return b + 7", ("def get_a(b): return b +", " 7", "")),
    ],
)
def test_a_source_is_said_up_to_its_answer(source: str, parts: tuple[str, str, str]) -> None:
    assert said(source) == parts


@pytest.mark.parametrize("family", LEARNT)
def test_answers_alone_are_learnt_each_one_token(family: str, tokenizer: Tokenizer) -> None:
    for seed in range(20):
        document = Document.of(family, seed, most=5)
        ids, wanted = document.encoded(tokenizer)
        assert ids == tokenizer.inner.encode("".join(document.pieces)).ids
        places = [at for at, token in enumerate(wanted) if token != NOT_LEARNT]
        assert [wanted[at] for at in places] == [ids[at + 1] for at in places]
        assert [tokenizer.decode([wanted[at]]) for at in places] == list(document.pieces[1::2])
        assert document.pieces[0] == (prompt := _prompt(family, seed, document)).text
        assert document.pieces[1] == prompt.answer


def _prompt(family: str, seed: int, document: Document) -> Any:
    made = [LEARNT[family](seed, sources) for sources in range(2, 6)]
    return next(prompt for prompt in made if prompt.text == document.pieces[0])


def test_the_loss_is_the_mean_over_answers_and_knows_no_filling() -> None:
    model = begun(BYTES, seed=3).requires_grad_(False)
    ids, wanted = batch("key value", 4, range(3), BYTES)
    losses = []
    for seed in range(3):
        row, own = Document.of("key value", seed, 4).encoded(BYTES)
        logits = model(torch.tensor([row]))[0].double()
        losses += [
            float(logits[at].logsumexp(0) - logits[at, token]) for at, token in enumerate(own) if token != NOT_LEARNT
        ]
    assert float(answer_loss(model, ids, wanted)) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_first_layer_looks_back_head_by_head() -> None:
    weights: dict[int, torch.Tensor] = {}

    def attention(q: Any, k: Any, v: Any, *, mask: Any, scale: float, site: Any) -> torch.Tensor:
        above = torch.ones(q.shape[2], q.shape[2]).triu(1).bool()
        weights[site.layer] = (scale * q @ k.mT).masked_fill(above, -math.inf).softmax(-1)
        return weights[site.layer] @ v

    model = begun(BYTES, seed=0).requires_grad_(False)
    model(torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0)), attention=attention)
    for head, rows in enumerate(weights[0][0]):
        assert rows.argmax(-1)[8:].tolist() == list(range(7 - head, 39 - head))
        assert rows.diagonal(-head - 1)[8:].min() > 0.5


def test_the_course_goes_on_when_what_there_is_has_been_learnt() -> None:
    course = Course()
    course.begin_next()
    assert course.most == {"key value": 4}
    seen = []
    for _ in range(1000):
        course.heard("key value", LEARNT_AT / 2)
        seen.append(course.most["key value"])
    assert sorted(set(seen)) == list(range(4, 17))
    assert seen == sorted(seen)
    course.begin_next()
    course.begin_next()
    assert course.most == {"key value": 16, "facts": 4}


def test_a_folder_has_the_weights_rounded_to_float16(tmp_path: Path) -> None:
    model = begun(BYTES, seed=1)
    write(tmp_path / "model", model, BYTES)
    write(tmp_path / "model", model, BYTES)  # in place of the first
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    read = dict(wherefrom.load(tmp_path / "model").transformer.named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(read[name], weight.half().float())


def test_the_score_is_the_share_of_right_answers_and_their_mean_log_odds(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path / "model", begun(tokenizer, seed=2), tokenizer)
    model = wherefrom.load(tmp_path / "model")
    right, odds, tokens = [], [], []
    for seed in range(4):
        prompt = FAMILIES["facts"](seed)
        ids = model.tokenizer.inner.encode(prompt.text + prompt.answer).ids
        chances = model.transformer(torch.tensor([ids[:-1]]))[0, -1].double().softmax(0)
        right.append(int(chances.argmax()) == ids[-1])
        odds.append(math.log(chances[ids[-1]] / (1 - chances[ids[-1]])))
        tokens.append(len(ids) - 1)
    score = scored(model, "facts", 4)
    assert score.right == sum(right) / 4
    assert score.log_odds == pytest.approx(sum(odds) / 4, rel=1e-6)
    assert (score.family, score.prompts, score.tokens) == ("facts", 4, sum(tokens) / 4)
