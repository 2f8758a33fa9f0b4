"""Training from the command line: a run from its text to what is asked of its model; every bad input as a sentence."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import wherefrom
from command_line import Ended, finite_json, typed
from kinds import small_model
from small import write_small_model
from test_cli import refused, started
from test_cli import seen as files
from training_small import TEXT, bits
from wherefrom.training import run as runs
from wherefrom.training.baselines import baselines
from wherefrom.training.log import LogRow, read_log
from wherefrom.training.run import checkpoints, latest, read_state
from wherefrom.training.settings import Settings
from wherefrom.training.text import Corpus, byte_tokenizer
from wherefrom.training.watched import read_watched
from wherefrom.views.forming import forming_lines

SHAPE = ("--layers", 1, "--width", 16, "--heads", 2, "--context", 16)
COURSE = ("--steps", 40, "--batch", 4, "--learning-rate", 0.01, "--validate-every", 20, "--checkpoint-every", 10)
WATCHED = ("--watch", 8)
LOSSES = re.compile(r"^step +(\S+)  train loss (\S+)  validation loss (\S+) +(\S+) tokens/s$", re.MULTILINE)


def book(folder: Path) -> Path:
    """A folder in which somebody has a text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "book.txt").write_text(TEXT)
    return folder


def train(folder: Path, *arguments: object, text: str = "book.txt", out: str = "run") -> Ended:
    return typed(folder, "train", text, "--out", out, *arguments)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a run that was trained on it."""
    folder = book(tmp_path_factory.mktemp("home"))
    ended = train(folder, *SHAPE, *COURSE, *WATCHED)
    assert (ended.code, ended.err) == (0, "")
    (folder / "said.txt").write_text(ended.out)
    return folder


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Path:
    """A copy of that folder for one test, in which files may change."""
    return shutil.copytree(home, tmp_path / "place")


def stopped(folder: Path, step: int, *arguments: object) -> None:
    """Begin a run that Ctrl-C ends behind a step."""
    advance = wherefrom.training.trainer.Trainer.advance

    def interrupted(trainer: Any) -> LogRow:
        if trainer.step == step:
            raise KeyboardInterrupt
        return advance(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wherefrom.training.trainer.Trainer, "advance", interrupted)
        ended = train(folder, *SHAPE, *COURSE, *arguments)
    kept = f"run/step-{step // 10 * 10:08d} is kept; go on with --resume" if step >= 10 else "nothing is kept"
    assert (ended.code, ended.err) == (130, f"wherefrom: {kept}\nwherefrom: interrupted\n")


def test_a_run_from_a_text(home: Path) -> None:
    said, corpus = (home / "said.txt").read_text(), Corpus.of(TEXT, byte_tokenizer())
    assert said.startswith(
        "7,488 parameters: 1 layer of 2 heads, width 16, context 16\n"
        "1,058 tokens to train on, 118 held out, of 257 kinds\n\n"
    )
    log = read_log(home / "run" / "log.csv")
    assert [row.step for row in log] == list(range(1, 41))
    told = [(int(step), float(train), float(held)) for step, train, held, _ in LOSSES.findall(said)]
    wanted = [(at, round(log[at - 1].train_loss, 4), round(log[at - 1].validation_loss or 0, 4)) for at in (20, 40)]
    assert told == wanted
    counted = baselines(corpus, 16)
    table = dict(re.findall(r"^(this model|\w+: .*?)  +(\d.*)$", said, re.MULTILINE))
    for name, nats in [
        ("this model", log[-1].validation_loss),
        ("bigram: pairs counted", counted.bigram),
        ("unigram: tokens counted", counted.unigram),
        ("uniform: nothing known", counted.uniform),
    ]:
        shown, shown_bits = map(float, table[name].split())
        assert shown == pytest.approx(nats, abs=1e-4)
        assert shown_bits == pytest.approx(nats / math.log(2), abs=1e-4)  # every byte is a token
    assert said.endswith(
        'model: run/step-00000040\ntry:   wherefrom generate "..." --model run\nheads: wherefrom watch run\n'
    )
    assert max(map(len, said.splitlines())) <= 80
    assert log[-1].validation_loss < 0.9 * log[0].train_loss
    assert sorted(path.name for path in (home / "run").iterdir()) == [
        *("attention.csv", "log.csv", "step-00000030", "step-00000040")
    ]


def test_its_model_is_read_like_any_other(home: Path) -> None:
    model = wherefrom.load(home / "run")
    assert model.name == "run/step-00000040"
    traced = typed(home, "trace", "To be, or", "--model", "run")
    assert traced.code == 0
    assert traced.out.startswith("run/step-00000040 · 9 tokens, 1 layer of 2 heads, numbered from 0\n")
    assert finite_json(typed(home, "trace", "To be, or", "--model", "run", "--json"))["text"] == "To be, or"
    written = wherefrom.generate(model, "To be", max_tokens=5)
    assert typed(home, "generate", "To be", "--model", "run", "--max-tokens", 5) == (0, str(written) + "\n", "")
    cost = typed(home, "cost", "--model", "run", "--lengths", "4,16")
    assert cost.out.startswith("What one pass of run/step-00000040 costs\n1 layer, width 16, 2 heads of 8,")
    counted = finite_json(typed(home, "cost", "--model", "run", "--lengths", "4,16", "--json"))
    assert [line["tokens"] for line in counted["lengths"]] == [4, 16]
    assert max(traced.widest, cost.widest) <= 80


def test_what_its_heads_did_is_drawn(home: Path) -> None:
    seen = read_watched(home / "run")
    assert seen.steps.tolist() == [1, 8, 16, 24, 32, 40]
    for options, how in [
        ((), {}),
        (("--figure", "previous"), {"figure": "previous"}),
        (("--figure", "entropy", "--layer", 0, "--top", 1), {"figure": "entropy", "layer": 0, "top": 1}),
    ]:
        ended = typed(home, "watch", "run", *options)
        assert ended == (0, "\n".join(forming_lines(seen, **how, name="run")) + "\n", "")
        assert ended.widest <= 80
    assert typed(home / "run", "watch", ".") == typed(home, "watch", "run")  # the folder has its name from anywhere


def test_what_its_heads_did_as_json(home: Path) -> None:
    seen = read_watched(home / "run")
    written = finite_json(typed(home, "watch", "run", "--figure", "first", "--json"))
    assert written == {
        "figure": "first",
        "steps": seen.steps.tolist(),
        "values": seen.figures["first"].tolist(),
        "new_nats": seen.new_nats.tolist(),
        "again_nats": seen.again_nats.tolist(),
        "axes": "values: steps, layers, heads",
    }


def test_a_figure_without_a_value_is_null_in_json(place: Path) -> None:
    table = place / "run" / "attention.csv"
    header, *lines = table.read_text().splitlines()
    column = header.split(",").index("first")
    cells = lines[1].split(",")
    cells[column] = ""
    table.write_text("\n".join([header, lines[0], ",".join(cells), *lines[2:], ""]))
    written = finite_json(typed(place, "watch", "run", "--figure", "first", "--json"))
    assert written["values"][0][0][1] is None
    assert written["values"][0][0][0] is not None


def test_json_is_all_that_is_printed_of_a_run(home: Path, tmp_path: Path) -> None:
    book(tmp_path)
    written = finite_json(train(tmp_path, *SHAPE, *COURSE, "--json"))
    log = read_log(tmp_path / "run" / "log.csv")
    assert {name: written[name] for name in ("folder", "checkpoint", "step", "tokens", "best_step")} == {
        "folder": "run",
        "checkpoint": "run/step-00000040",
        "step": 40,
        "tokens": 40 * 4 * 16,
        "best_step": 40,
    }
    assert written["train_loss"] == log[-1].train_loss
    assert written["validation_loss"] == written["best_validation_loss"] == log[-1].validation_loss
    assert written["bits_a_byte"] == pytest.approx(written["validation_loss"] / math.log(2))
    assert written["baselines"] == vars(baselines(Corpus.of(TEXT, byte_tokenizer()), 16))
    assert written["seconds"] > 0
    assert written["units"] == {"loss": "nats a token"}
    assert bits(latest(tmp_path / "run")) == bits(latest(home / "run"))  # the same run as that which was watched
    assert not (tmp_path / "run" / "attention.csv").exists()


def test_every_option_reaches_the_run(tmp_path: Path) -> None:
    book(tmp_path)
    (tmp_path / "other.txt").write_text("Whether it is nobler in the mind to suffer. " * 30)
    options = {
        **{"steps": 6, "batch": 3, "accumulate": 2, "learning_rate": 0.002, "warmup": 3, "weight_decay": 0.2},
        **{"clip": 0.5, "seed": 7, "precision": "float32", "device": "cpu", "validate_every": 2},
        **{"checkpoint_every": 1, "keep": 3},
    }
    given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    shape = ("--style", "gpt2", "--layers", 2, "--width", 24, "--heads", 3, "--context", 12, "--vocabulary", 280)
    told = train(tmp_path, "other.txt", *given, *shape, "--held-out", 0.25, out="a/new/run")
    assert (told.code, told.err) == (0, "")
    state, model = read_state(latest(tmp_path / "a/new/run")), wherefrom.load(tmp_path / "a/new/run")
    assert state.settings == Settings(**options).to_json()
    config = model.config
    assert (config.architecture, config.layers, config.width, config.heads) == ("gpt2", 2, 24, 3)
    assert (config.context, config.vocabulary) == (12, model.tokenizer.vocabulary_size)
    assert 257 < config.vocabulary <= 280
    assert state.validation_tokens == round(0.25 * (state.train_tokens + state.validation_tokens))
    texts = [TEXT, (tmp_path / "other.txt").read_text()]
    assert state.corpus == Corpus.of(texts, model.tokenizer, held_out=0.25).checksum
    assert len(checkpoints(tmp_path / "a/new/run")) == 3
    nats, told_bits = map(float, re.findall(r"^this model +(\S+) +(\S+)$", told.out, re.MULTILINE)[0])
    validation = Corpus.of(texts, model.tokenizer, held_out=0.25).validation.tolist()
    scored = validation[1 : 1 + (len(validation) - 1) // 12 * 12]  # what the windows of 12 predict
    assert len(scored) < len(validation) - 1
    spelled = sum(len(model.tokenizer.token_bytes(token)) for token in scored)
    assert spelled > len(scored)  # tokens of several bytes
    assert told_bits == pytest.approx(nats * len(scored) / spelled / math.log(2), abs=2e-4)


def test_a_mark_between_documents_is_no_byte_of_the_text(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.txt").write_text(f"{number:03}")
    names = [f"{number:03}.txt" for number in range(100)]
    told = train(tmp_path, *names[1:], *SHAPE, "--steps", 1, "--held-out", 0.3, "--json", text=names[0])
    written = finite_json(told)
    # 300 digits and 99 marks; of the last 120 tokens, "0<end>071..." on, 7 windows of 16 predict 112: 3 of 4 are digits
    assert written["baselines"]["tokens"] == 112
    assert written["bits_a_byte"] == pytest.approx(written["validation_loss"] * 112 / 84 / math.log(2))


def test_the_lowest_loss_is_told_where_it_was_not_the_last(tmp_path: Path) -> None:
    book(tmp_path)
    told = train(tmp_path, *SHAPE, "--steps", 12, "--batch", 2, "--learning-rate", 0.3, "--validate-every", 1)
    log = read_log(tmp_path / "run" / "log.csv")
    best = min(log, key=lambda row: row.validation_loss)
    assert best.step < 12
    assert f"\nlowest validation loss: {best.validation_loss:.4f} at step {best.step}\n" in told.out
    assert len(checkpoints(tmp_path / "run")) == 1  # its weights were not kept, it is told all the same
    assert "lowest" not in train(book(tmp_path / "other"), *SHAPE, *COURSE).out


def test_a_folder_whose_name_has_a_blank_is_quoted(tmp_path: Path) -> None:
    told = train(book(tmp_path), *SHAPE, "--steps", 2, out="my run")
    assert told.out.endswith("try:   wherefrom generate \"...\" --model 'my run'\n")


def test_it_may_begin_with_another_models_weights(place: Path) -> None:
    ended = train(place, "--from", "run", "--steps", 1, "--learning-rate", 1e-9, "--context", 8, out="more")
    assert (ended.code, ended.err) == (0, "")
    assert "width 16, context 8\n" in ended.out
    old, new = wherefrom.load(place / "run").transformer, wherefrom.load(place / "more").transformer
    for (name, weight), (_, before) in zip(new.named_parameters(), old.named_parameters(), strict=True):
        torch.testing.assert_close(weight, before, rtol=0, atol=1e-7, msg=name)
    assert read_log(place / "more" / "log.csv")[0].train_loss < 0.9 * read_log(place / "run" / "log.csv")[0].train_loss
    assert bits(latest(place / "run")) != bits(latest(place / "more"))


def test_a_resumed_run_ends_as_the_unbroken_one(home: Path, tmp_path: Path) -> None:
    """Watching goes on too, without being asked for again."""
    stopped(book(tmp_path), 27, *WATCHED)
    assert latest(tmp_path / "run").name == "step-00000020"
    ended = train(tmp_path, "--resume")
    assert (ended.code, ended.err) == (0, "")
    assert [int(step) for step, *_ in LOSSES.findall(ended.out)] == [40]
    assert bits(latest(tmp_path / "run")) == bits(latest(home / "run"))
    assert (tmp_path / "run" / "attention.csv").read_text() == (home / "run" / "attention.csv").read_text()
    assert ended.out.endswith("heads: wherefrom watch run\n")


@pytest.mark.parametrize(("interval", "looks"), [((), None), (("--watch", 6), [24, 30, 36])])
def test_a_run_that_was_not_watched_is_resumed_so(tmp_path: Path, interval: tuple[Any, ...], looks: Any) -> None:
    stopped(book(tmp_path), 27)
    assert train(tmp_path, "--resume", *interval).code == 0
    if looks is None:
        assert not (tmp_path / "run" / "attention.csv").exists()
    else:
        assert read_watched(tmp_path / "run").steps.tolist() == looks


def test_the_interval_is_known_after_a_single_look(tmp_path: Path) -> None:
    stopped(book(tmp_path), 12, "--watch", 25)
    assert read_watched(tmp_path / "run").steps.tolist() == [1]
    assert train(tmp_path, "--resume").code == 0
    assert read_watched(tmp_path / "run").steps.tolist() == [1, 25]


def test_a_resumed_run_may_keep_more(tmp_path: Path) -> None:
    stopped(book(tmp_path), 12)
    more = ("--keep", 9, "--checkpoint-every", 5, "--validate-every", 15)
    assert train(tmp_path, "--resume", *more, *COURSE[:6]).code == 0  # what it began with may be said again
    assert [path.name[-2:] for path in checkpoints(tmp_path / "run")] == ["10", "15", "20", "25", "30", "35", "40"]


def test_a_resumed_run_knows_what_was_held_out(tmp_path: Path) -> None:
    stopped(book(tmp_path), 12, "--held-out", 0.3)
    assert train(tmp_path, "--resume").code == 0
    state = read_state(latest(tmp_path / "run"))
    assert state.validation_tokens == round(0.3 * len(TEXT))


def test_a_finished_run_says_so(place: Path) -> None:
    before = files(place)
    refused(
        train(place, "--resume"),
        "the run in run: expected steps that are left, got a finished run, 40 of 40 steps. Its model is "
        "run/step-00000040; to train it further, begin a new run from it (--from).",
    )
    assert files(place) == before


@pytest.fixture
def cluttered(place: Path) -> Path:
    """A folder with everything in it that is no text to train on, and no place for a run."""
    (place / "short.txt").write_text("To be, or")
    (place / "empty.txt").write_text("")
    (place / "blank.txt").write_text(" \n\n ")
    (place / "binary.dat").write_bytes(b"To be\x00or not")
    (place / "latin.txt").write_bytes("caf\u00e9 au lait ".encode("latin-1") * 99)
    (place / "utf16.txt").write_text(TEXT, encoding="utf-16")
    (place / "copy.txt").write_text(TEXT)
    (place / "logged").mkdir()
    (place / "logged" / "log.csv").write_text("name,price\nsugar,3\n")
    (place / "one.txt").write_text("a" * 500)
    (place / "folder").mkdir()
    write_small_model(place / "model")
    return place


NEW = {"out": "new"}
BAD = [
    # the text
    (NEW, {"text": "short.txt"}, "the training text: expected at least 17 tokens, one window of the context and its"),
    (NEW, {"text": "book.txt", "more": ("--context", 200)}, "the validation text: expected at least 201 tokens"),
    (NEW, {"text": "empty.txt"}, "the text empty.txt: expected some text, got an empty file. Name a file with"),
    (NEW, {"text": "blank.txt"}, "the text blank.txt: expected some text, got only blanks."),
    (NEW, {"text": "binary.dat"}, "expected text in UTF-8, got a binary file (a zero byte at offset 5). Take"),
    (NEW, {"text": "latin.txt"}, "the text latin.txt: expected text in UTF-8, got the byte 0xE9 at offset 3. Convert"),
    (NEW, {"text": "missing.txt"}, "the text missing.txt: expected a text file, got nothing there. Check the path."),
    (NEW, {"text": "folder"}, "the text folder: expected a text file, got a folder. Name the files in it."),
    (NEW, {"more": ("book.txt",)}, "the text book.txt: expected another text than book.txt, got the same file."),
    (NEW, {"more": ("folder/../book.txt",)}, "the text folder/../book.txt: expected another text than book.txt,"),
    (NEW, {"more": ("copy.txt",)}, "the text copy.txt: expected another text than book.txt, got the same text."),
    (NEW, {"text": "utf16.txt"}, "the text utf16.txt: expected text in UTF-8, got UTF-16, by its byte order mark."),
    (NEW, {"text": "one.txt", "more": WATCHED}, "the training text: expected at least two different tokens, got 1."),
    # the folder
    ({"out": "run"}, {}, "run: expected a folder without a run, got one with a checkpoint, step-00000040. Resume that"),
    ({"out": "book.txt"}, {}, "--out book.txt: expected a folder for a run, got a file. Name another: it is made."),
    ({"out": "model"}, {}, "--out model: expected a folder for a run, got a model's folder. Name another"),
    ({"out": "run/step-00000040"}, {}, "--out run/step-00000040: expected a folder for a run, got a model's folder."),
    ({"out": "logged"}, {}, "logged/log.csv, line 1: expected the columns step,tokens,train_loss,"),
    ({"out": "a" * 300}, {}, "the run's folder: expected a path that can be one, got [Errno 36] File name too long"),
    ({"out": "~nobody-here/run"}, {}, "the run's folder: expected a path that can be one, got Could not determine"),
    ({"out": "book.txt/run"}, {}, "the run's folder: expected room and permission to write it, got "),
    # the shape
    (NEW, {"more": ("--heads", 3)}, "--width: expected a multiple of 6 with --heads 3 (the heads share it evenly, and "
                                    "rotary positions turn pairs), got 16. --width 18 would do, or another number of"),
    (NEW, {"more": ("--heads", 16)}, "--width: expected a multiple of 32 with --heads 16 (the heads share it evenly"),
    (NEW, {"more": ("--heads", 3, "--style", "gpt2")}, "--width: expected a multiple of 3 with --heads 3 (the heads "
                                                       "share it evenly), got 16. --width 18 would do"),
    (NEW, {"more": ("--width", 2**31)}, "--layers, --width, --heads, --context: expected "),
    (NEW, {"more": ("--heads", 0)}, "heads: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--layers", -1)}, "layers: expected a whole number from 1 up, got -1."),
    (NEW, {"more": ("--width", 0)}, "width: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--context", 0)}, "context: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--vocabulary", "abc")}, '--vocabulary: expected "bytes" or a whole number, got "abc". 2048'),
    (NEW, {"more": ("--vocabulary", "-5")}, '--vocabulary: expected "bytes" or a whole number, got "-5".'),
    (NEW, {"more": ("--vocabulary", "5")}, "the vocabulary: expected a whole number from 257 up, got 5. 256 bytes"),
    # the course
    (NEW, {"more": ("--steps", -3)}, "steps: expected a whole number from 1 up, got -3. The default is 2000."),
    (NEW, {"more": ("--steps", 0)}, "steps: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--steps", 10**8)}, "steps: expected at most 99,999,999, got 100000000."),
    (NEW, {"more": ("--batch", 0)}, "batch: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--accumulate", 0)}, "accumulate: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--learning-rate", 0)}, "learning_rate: expected a number above 0, got 0.0."),
    (NEW, {"more": ("--learning-rate", "nan")}, "learning_rate: expected a number above 0, got nan."),
    (NEW, {"more": ("--warmup", 40)}, "warmup: expected fewer than the 40 steps, got 40."),
    (NEW, {"more": ("--weight-decay", -0.1)}, "weight_decay: expected a number from 0 up, got -0.1."),
    (NEW, {"more": ("--clip", 0)}, "clip: expected a number above 0, or None, got 0.0."),
    (NEW, {"more": ("--seed", -1)}, "seed: expected a whole number from 0 up, got -1."),
    (NEW, {"more": ("--seed", 2**63)}, "seed: expected a whole number from 0 to 2^63 - 1, got 9223372036854775808."),
    (NEW, {"more": ("--batch", 10**10)}, "batch: expected at most 1,000,000,000, got 10000000000."),
    (NEW, {"more": ("--accumulate", 10**20)}, "accumulate: expected at most 1,000,000,000, got 1000000"),
    (NEW, {"more": ("--width", 10**8)}, "the memory: expected room for a model of "),
    (NEW, {"more": ("--device", "abacus")}, 'device: expected "cpu", or another device of this machine, got \'abacus'),
    (NEW, {"more": ("--validate-every", 0)}, "validate_every: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--checkpoint-every", -1)}, "checkpoint_every: expected a whole number from 1 up, got -1."),
    (NEW, {"more": ("--keep", 0)}, "keep: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--held-out", 0)}, "the held-out share: expected a number above 0 and below 1, got 0.0."),
    (NEW, {"more": ("--held-out", 1.5)}, "the held-out share: expected a number above 0 and below 1, got 1.5."),
    (NEW, {"more": ("--held-out", "nan")}, "the held-out share: expected a number above 0 and below 1, got nan."),
    (NEW, {"more": ("--watch", 0)}, "the steps between two looks: expected a whole number from 1 up, got 0."),
    (NEW, {"more": ("--watch", 5, "--context", 3)}, "--context: expected at least 4 tokens beside --watch, got 3."),
    # another model's weights
    (NEW, {"shape": (), "more": ("--from", "run", "--layers", 2)}, "--layers: expected none beside --from, got one."),
    (NEW, {"shape": (), "more": ("--from", "run", "--vocabulary", 300)}, "--vocabulary: expected none beside --from"),
    (NEW, {"shape": (), "more": ("--from", "run", "--context", 17)}, "context: expected at most 16, the model's, got"),
    (NEW, {"shape": (), "more": ("--from", "missing")}, "missing: expected a folder, got nothing there."),
    (NEW, {"shape": (), "more": ("--from", "book.txt")}, "book.txt: expected "),
]  # fmt: skip


@pytest.mark.parametrize(("where", "how", "sentence"), BAD, ids=[f"{n} {b[2][:50]}" for n, b in enumerate(BAD)])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_bad_run_is_one_sentence_and_nothing_is_written(
    cluttered: Path, where: dict[str, str], how: dict[str, Any], sentence: str, as_json: bool
) -> None:
    before = files(cluttered)
    shape = how.get("shape", SHAPE)
    more = (*COURSE, *how.get("more", ()), *["--json"] * as_json)
    refused(train(cluttered, *shape, *more, text=how.get("text", "book.txt"), **where), sentence)
    assert files(cluttered) == before


@pytest.mark.parametrize("kind", ["bert", "marian"])
def test_an_encoder_cannot_be_trained_on(place: Path, kind: str) -> None:
    folder = small_model(kind).checkpoint.identity.path
    before = files(place)
    refused(train(place, "--from", folder, *COURSE, out="new"), "the model: expected a decoder, which predicts the")
    assert files(place) == before


def test_the_kind_of_a_model_comes_before_its_vocabulary(place: Path) -> None:
    """Another vocabulary would not help."""
    shutil.copytree(small_model("marian").checkpoint.identity.path, place / "lossy")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "to": 1}, unk_token="[UNK]"))
    words.save(str(place / "lossy" / "tokenizer.json"))
    refused(train(place, "--from", "lossy", *COURSE, out="new"), "the model: expected a decoder, which predicts the")


RESUMED = [
    (("--learning-rate", 0.02), "the run in run: expected what it began with, learning_rate 0.01, got learning_rate"),
    (("--steps", 41, "--seed", 3), "expected what it began with, seed 0, steps 40, got seed 3, steps 41. Resume"),
    (("--batch", 5), "batch 4, got batch 5."),
    (("--layers", 2), "--layers: expected 1, as the run began, got 2. The run's folder knows it; leave it out."),
    (("--style", "gpt2"), "--style: expected llama, as the run began, got gpt2."),
    (("--vocabulary", 300), "--vocabulary: expected 257, as the run began, got 300."),
    (("--held-out", 0.3), "--held-out: expected 0.1, as the run began, got 0.3."),
    (("--from", "run"), "--from: expected none beside --resume, got run."),
    (("--keep", 0), "keep: expected a whole number from 1 up, got 0."),
    (("--watch", 0), "the steps between two looks: expected a whole number from 1 up, got 0."),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), RESUMED, ids=str)
def test_a_run_is_not_resumed_on_another_course(
    tmp_path: Path, unfinished: Path, options: tuple[Any, ...], sentence: str
) -> None:
    place = shutil.copytree(unfinished, tmp_path / "place")
    before = files(place)
    refused(train(place, "--resume", *options), sentence)
    assert files(place) == before


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = book(tmp_path_factory.mktemp("unfinished"))
    stopped(folder, 27, *WATCHED)
    return folder


def change(path: str, how: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda place: (place / path).write_text(how((place / path).read_text())) and None


def change_states(place: Path, pattern: str, by: str) -> None:
    for path in checkpoints(place / "run"):
        content = (path / "training.json").read_text()
        changed = re.sub(pattern, by, content)
        assert changed != content
        (path / "training.json").write_text(changed)


CHANGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another text": (change("book.txt", lambda text: text.replace("be", "bee")), "what it began with, text "),
    "a shorter text": (change("book.txt", lambda text: text[:60]), "the validation text: expected at least 17 tokens"),
    "no run": (lambda place: shutil.rmtree(place / "run"), "run: expected a whole checkpoint in it, got nothing"),
    "a file": (
        lambda place: (shutil.rmtree(place / "run"), (place / "run").write_text("")),
        "run: expected a whole checkpoint in it, got a file.",
    ),
    "another table": (
        lambda place: (place / "run" / "attention.csv").write_text("name,price\n"),
        "run/attention.csv: expected a table whose columns are step, layer, head",
    ),
    "a log that is no text": (
        lambda place: (place / "run" / "log.csv").write_bytes(b"\xff\xfe\n"),
        "run/log.csv, line 1: expected text in UTF-8, got the byte 0xFF. Move the file away",
    ),
    "settings that are none": (
        lambda place: change_states(place, r'"settings": \{[^}]*\}', '"settings": [1, 2]'),
        "run: expected a whole checkpoint in it, got only a part of one (step-00000020).",
    ),
    "no tokens": (
        lambda place: change_states(place, r'_tokens": \d+', '_tokens": 0'),
        "run: expected a whole checkpoint in it, got only a part of one (step-00000020).",
    ),
    "only broken checkpoints": (
        lambda place: [(path / "model.safetensors").unlink() for path in checkpoints(place / "run")],
        "run: expected a whole checkpoint in it, got only a part of one (step-00000020).",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_is_not_resumed_with_something_else_in_its_place(tmp_path: Path, unfinished: Path, name: str) -> None:
    place = shutil.copytree(unfinished, tmp_path / "place")
    spoil, sentence = CHANGED[name]
    spoil(place)
    before = files(place)
    refused(train(place, "--resume"), sentence)
    assert files(place) == before


def test_a_run_that_another_process_trains_is_left_alone(tmp_path: Path, unfinished: Path) -> None:
    place = shutil.copytree(unfinished, tmp_path / "place")
    lock, before = runs._lock(place / "run"), files(place)
    try:
        refused(
            train(place, "--resume"), "run: expected a folder that no other process is training in, got one that is"
        )
    finally:
        runs.release(lock)
    assert files(place) == before


def test_a_loss_that_is_no_number_any_more_ends_the_run(tmp_path: Path) -> None:
    ended = train(book(tmp_path), *SHAPE, *COURSE[:4], "--learning-rate", 1e30, "--clip", 1e30)
    assert ended.code == 2
    assert re.fullmatch(
        r"wherefrom: the .* of step \d+: expected a finite number, got \w+\. Lower learning_rate \(now 1e\+30\) or "
        r"clip \(now 1e\+30\)\. No checkpoint had been written before\.\n",
        ended.err,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["folder"], "attention.csv: expected a watched run: its attention.csv, got none. Train with --watch 50, or"),
        (["missing"], "attention.csv: expected a watched run: its attention.csv, got no such folder."),
        (["book.txt"], "attention.csv: expected a watched run: its attention.csv, got no such folder."),
        (["run", "--figure", "luck"], "the figure: expected one of entropy, effective, largest, first, self,"),
        (["missing", "--figure", "luck"], "the figure: expected one of entropy"),
        (["run", "--layer", 1], "the layer: expected a whole number from 0 to 0, got 1. Layers are numbered from 0"),
        (["run", "--layer", -1], "the layer: expected a whole number from 0 to 0, got -1."),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_watched(cluttered: Path, arguments: list[Any], sentence: str) -> None:
    before = files(cluttered)
    refused(typed(cluttered, "watch", *arguments), sentence)
    assert files(cluttered) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "book.txt"),
        ("train", "--out", "new"),
        ("train", "book.txt", "--out", "new", "--steps", "many"),
        ("train", "book.txt", "--out", "new", "--style", "bert"),
        ("train", "book.txt", "--out", "new", "--precision", "float64"),
        ("watch",),
        ("watch", "run", "--top", "0"),
    ],
    ids=str,
)
def test_what_is_no_command_ends_with_the_usage(place: Path, arguments: tuple[str, ...]) -> None:
    before = files(place)
    ended = typed(place, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(
        f"Usage: wherefrom {arguments[0]} [OPTIONS] {'RUN' if 'watch' in arguments else 'FILE...'}\n"
    )
    assert "Error: " in ended.err
    assert files(place) == before


def begun(folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """The training command as a process of its own."""
    return started("train", "book.txt", "--out", "run", *map(str, arguments), cwd=book(folder))


@pytest.mark.long
def test_ctrl_c_leaves_a_checkpoint_that_the_run_goes_on_from(tmp_path: Path) -> None:
    """Real processes and a real SIGINT; the unbroken run is beside it, in a third."""
    long = (*SHAPE, "--steps", 400, "--batch", 4, "--checkpoint-every", 40, "--watch", 40)
    with begun(tmp_path / "whole", *long) as whole, begun(tmp_path / "cut", *long) as cut:
        limit = time.monotonic() + 120
        while time.monotonic() < limit and not checkpoints(tmp_path / "cut" / "run"):
            time.sleep(0.005)
        cut.send_signal(signal.SIGINT)
        out, err = cut.communicate(timeout=120)
        left = latest(tmp_path / "cut" / "run")
        kept = f"wherefrom: run/{left.name} is kept; go on with --resume\nwherefrom: interrupted\n"
        assert (cut.returncode, err) == (130, kept.encode())
        assert b"this model" not in out
        assert int(left.name[-8:]) == read_log(left.parent / "log.csv")[-1].step < 400
        with begun(tmp_path / "cut", "--resume") as resumed:
            out, err = resumed.communicate(timeout=120)
        assert (resumed.returncode, err) == (0, b"")
        assert b"\nmodel: run/step-00000400\n" in out
        whole.communicate(timeout=120)
        assert whole.returncode == 0
    assert bits(latest(tmp_path / "cut" / "run")) == bits(latest(tmp_path / "whole" / "run"))
    tables = [(tmp_path / name / "run" / "attention.csv").read_text() for name in ("cut", "whole")]
    assert tables[0] == tables[1]
    logs = [[row.train_loss for row in read_log(tmp_path / name / "run" / "log.csv")] for name in ("cut", "whole")]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 400


def test_home_is_found_behind_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(book(tmp_path / "home")))
    work = book(tmp_path / "work")
    told = train(work, *SHAPE, "--steps", 2, "--watch", 1, "--validate-every", 1, out="~/run")
    assert (told.code, told.err) == (0, "")
    assert checkpoints(tmp_path / "home" / "run")
    assert [path.name for path in work.iterdir()] == ["book.txt"]
    assert typed(work, "watch", "~/run") == typed(tmp_path / "home", "watch", "run")
    refused(
        train(work, "--resume", out="~/run"), f"the run in {tmp_path / 'home' / 'run'}: expected steps that are left"
    )


def test_a_batch_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    ended = train(book(tmp_path), *SHAPE, "--context", 100, "--batch", 10**9, "--held-out", 0.3)
    assert ended.code == 2
    assert re.fullmatch(
        r"wherefrom: the memory: expected room for 1,000,000,000 windows of 100 tokens side by side, got none for "
        r"another \d+ [MG]iB\. Lower batch, and raise accumulate by as much; or choose a shorter context\.\n",
        ended.err,
    )


def test_a_new_run_does_not_show_the_table_of_another(place: Path) -> None:
    for checkpoint in checkpoints(place / "run"):
        shutil.rmtree(checkpoint)
    assert (place / "run" / "attention.csv").exists()
    assert train(place, *SHAPE, "--steps", 2).code == 0
    refused(typed(place, "watch", "run"), "run/attention.csv: expected a watched run: its attention.csv, got none.")
    assert "heads:" not in train(place, "--resume", "--steps", 2).out


def test_the_state_says_how_it_was_trained(home: Path) -> None:
    content = json.loads((latest(home / "run") / "training.json").read_text())
    assert content["settings"]["learning_rate"] == 0.01
    assert content["step"] == 40
