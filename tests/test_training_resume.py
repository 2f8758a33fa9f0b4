"""A run that was killed, stopped or interrupted and resumed is the unbroken run, bit for bit; any other is refused."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import training_small
from training_small import (
    CORPUS,
    SETTINGS,
    TEXT,
    TOKENIZER,
    StopError,
    bits,
    names,
    run,
    stop_at,
    stopped,
    timeless,
)
from wherefrom.errors import TrainingError
from wherefrom.model.config import Config
from wherefrom.training import run as runs
from wherefrom.training import trainer
from wherefrom.training.log import read_log
from wherefrom.training.loop import Trained, resume, train
from wherefrom.training.run import STATE, latest, read_state
from wherefrom.training.settings import Settings
from wherefrom.training.text import Corpus, byte_tokenizer

SEED = random.randrange(10**6)  # printed where a test fails


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(tmp_path_factory.mktemp("unbroken") / "run")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that a real SIGKILL ended, in processes of their own, at the same time."""
    folder, hows = tmp_path_factory.mktemp("killed"), ["outside", "within"]
    at = random.Random(SEED).randrange(9, 32)  # lines of the log: behind the first checkpoint, of step 7
    command = [sys.executable, training_small.__file__, str(folder), *hows]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        processes = {how: int(parent.stdout.readline()) for how in hows}
        log, limit = folder / "outside" / "log.csv", time.monotonic() + 120
        while time.monotonic() < limit and (not log.exists() or len(log.read_text().splitlines()) < at):
            time.sleep(0.002)
        os.kill(processes["outside"], signal.SIGKILL)
        ends = dict(map(int, line.split()) for line in parent.stdout)
    assert ends == dict.fromkeys(processes.values(), -signal.SIGKILL), SEED
    assert read_log(log)[-1].step < 40, SEED
    return {how: folder / how for how in hows}


@pytest.mark.parametrize("how", ["outside", "within"])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(killed: dict[str, Path], unbroken: Trained, how: str) -> None:
    folder = killed[how]
    left = names(folder)
    if how == "within":
        assert [name for name in left if not name.startswith(".")] == ["log.csv", "step-00000007", "step-00000014"]
        assert any(name.startswith(".step-00000021.") for name in left)
        with pytest.raises(StopError):
            run(folder, how={"resume": True, **stop_at(15)})
        assert names(folder) == ["log.csv", "step-00000007", "step-00000014"]
    resumed = run(folder, how={"resume": True})
    assert bits(resumed.checkpoint) == bits(unbroken.checkpoint), SEED
    assert timeless(folder) == timeless(unbroken.checkpoint.parent), SEED
    assert [row.step for row in read_log(folder / "log.csv")] == list(range(1, 41))
    assert names(folder) == ["log.csv", "step-00000035", "step-00000040"]
    assert (resumed.best_validation_loss, resumed.best_step) == (unbroken.best_validation_loss, unbroken.best_step)
    assert resumed.validation_loss == unbroken.validation_loss


@pytest.mark.parametrize("config", ["llama", "gpt2", "untied", "bfloat16"])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, config: str) -> None:
    style = "gpt2" if config == "gpt2" else "llama"
    model = Config.decoder(
        layers=1, width=16, heads=2, vocabulary=257, context=16, style=style, tied=config != "untied"
    )
    how: dict[str, Any] = {"model": model, "steps": 21}
    how |= {"precision": "bfloat16"} if config == "bfloat16" else {}
    whole = run(tmp_path / "whole", **how)
    resumed = run(stopped(tmp_path / "run", 13, **how), how={"resume": True}, **how)
    assert bits(resumed.checkpoint) == bits(whole.checkpoint)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_a_run_is_resumed_with_its_text_alone(tmp_path: Path, unbroken: Trained) -> None:
    stopped(tmp_path, 13)
    told: list[tuple[int, int]] = []
    resumed = resume(tmp_path, TEXT, keep=4, progress=lambda *at: told.append(at))
    assert bits(resumed.checkpoint) == bits(unbroken.checkpoint)
    assert timeless(tmp_path) == timeless(unbroken.checkpoint.parent)
    assert told == [(step, 40) for step in range(7, 41)]
    assert len(runs.checkpoints(tmp_path)) == 4
    other = stopped(tmp_path / "other", 8, corpus=Corpus.of([TEXT, "more"], TOKENIZER, held_out=0.3))
    assert resume(other, [TEXT, "more"]).step == 40
    with pytest.raises(TrainingError, match=r"expected what it began with, text \w{12}, got text \w{12}\. Resume"):
        resume(stopped(tmp_path / "third", 8), TEXT + ".")


def test_the_best_loss_so_far_is_remembered(tmp_path: Path) -> None:
    state = stopped(tmp_path, 15) / "step-00000014" / STATE
    best = read_state(state.parent).best_validation_loss
    assert state.read_text().count(repr(best)) == 1  # it was measured at step 10
    state.write_text(state.read_text().replace(repr(best), "0.01"))
    resumed = run(tmp_path, how={"resume": True})
    assert (resumed.best_validation_loss, resumed.best_step) == (0.01, 10)
    assert resumed.best == resumed.checkpoint  # of those that were kept


def test_a_run_may_be_stopped_again_and_again(tmp_path: Path, unbroken: Trained) -> None:
    stopped(tmp_path, 9)
    for step in (16, 17, 33):
        with pytest.raises(StopError):
            run(tmp_path, how={"resume": True, **stop_at(step)})
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)
    assert timeless(tmp_path) == timeless(unbroken.checkpoint.parent)


def press(*steps: int) -> dict[str, Any]:
    """Ctrl-C, as the system sends it, while the step's row is looked at."""

    def look(row: Any, _: object) -> None:
        for _again in range(steps.count(row.step)):
            signal.raise_signal(signal.SIGINT)

    return {"on_step": look}


@pytest.mark.parametrize("step", [1, 10, 12, 14, 39])
def test_ctrl_c_keeps_the_step_that_it_came_in(tmp_path: Path, unbroken: Trained, step: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, how=press(step))
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
    assert latest(tmp_path).name == f"step-{step:08d}"
    state, last = read_state(latest(tmp_path)), read_log(tmp_path / "log.csv")[-1]
    assert (state.step, state.validation_loss) == (step, last.validation_loss) == (last.step, last.validation_loss)
    resumed = run(tmp_path, how={"resume": True})
    assert bits(resumed.checkpoint) == bits(unbroken.checkpoint)
    assert timeless(tmp_path) == timeless(unbroken.checkpoint.parent)
    assert (resumed.best_validation_loss, resumed.best_step) == (unbroken.best_validation_loss, unbroken.best_step)


def test_ctrl_c_within_an_update_waits_for_its_end(
    tmp_path: Path, unbroken: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = trainer.Trainer._update

    def pressed_within(self: trainer.Trainer, rate: float) -> tuple[float, float]:
        step = self.optimizer.step
        monkeypatch.setattr(self.optimizer, "step", lambda: (signal.raise_signal(signal.SIGINT), step()))
        return update(self, rate)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_update", pressed_within)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert names(tmp_path) == ["log.csv", "step-00000001"]
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)


def test_ctrl_c_pressed_twice_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, how=press(10, 10))
    assert names(tmp_path) == ["log.csv", "step-00000007"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_answer_to_ctrl_c_is_left_as_it_is(tmp_path: Path) -> None:
    seen: list[int] = []

    def own(number: int, _: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGINT, own)
    try:
        assert run(tmp_path, how=press(3)).step == 40
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT]


def test_a_run_in_another_thread_gets_no_signals(tmp_path: Path) -> None:
    steps: list[int] = []
    thread = threading.Thread(target=lambda: steps.append(run(tmp_path, steps=2).step))
    thread.start()
    thread.join()
    assert steps == [2]


def test_what_ctrl_c_would_keep_must_be_numbers(tmp_path: Path) -> None:
    def look(row: Any, transformer: Any) -> None:
        if row.step == 10:
            transformer.norm.weight.data[3] = float("nan")
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingError, match=r"the weights norm\.weight after step 10: expected a finite number"):
        run(tmp_path, how={"on_step": look})
    assert names(tmp_path) == ["log.csv", "step-00000007"]


def test_ctrl_c_leaves_the_last_checkpoint(tmp_path: Path, unbroken: Trained) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, how=stop_at(10, KeyboardInterrupt))
    assert names(tmp_path) == ["log.csv", "step-00000007"]
    assert read_log(tmp_path / "log.csv")[-1].step == 10
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)


def test_ctrl_c_within_a_checkpoint_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(checkpoint: Path, state: Any) -> None:
        if state.step == 14:
            raise KeyboardInterrupt

    write = runs._write_state
    monkeypatch.setattr(runs, "_write_state", lambda *given: (interrupted(*given), write(*given)))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert names(tmp_path) == ["log.csv", "step-00000007"]


def test_a_run_that_ends_before_making_room_goes_on(
    tmp_path: Path, unbroken: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runs.Run, "_make_room", lambda run: stop_at(21)["on_step"](read_state(latest(run.folder)), None))
        with pytest.raises(StopError):
            run(tmp_path)
    assert names(tmp_path) == ["log.csv", "step-00000007", "step-00000014", "step-00000021"]
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)
    assert names(tmp_path) == ["log.csv", "step-00000035", "step-00000040"]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, unbroken: Trained) -> None:
    stopped(tmp_path, 15)
    weights = tmp_path / "step-00000014" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert latest(tmp_path) == tmp_path / "step-00000007"
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)
    assert timeless(tmp_path) == timeless(unbroken.checkpoint.parent)
    assert names(tmp_path) == ["log.csv", "step-00000035", "step-00000040"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("begun"), 9)


CHANGED: list[tuple[dict[str, Any], str, str]] = [
    ({"steps": 41}, "steps 40", "steps 41"),
    ({"batch": 4}, "batch 3", "batch 4"),
    ({"accumulate": 1}, "accumulate 2", "accumulate 1"),
    ({"context": 8}, "context 16", "context 8"),
    ({"learning_rate": 0.02}, "learning_rate 0.01", "learning_rate 0.02"),
    ({"warmup": 5}, "warmup 4", "warmup 5"),
    ({"final_share": 0.2}, "final_share 0.1", "final_share 0.2"),
    ({"weight_decay": 0.0}, "weight_decay 0.1", "weight_decay 0.0"),
    ({"betas": (0.9, 0.95)}, "betas [0.9, 0.99]", "betas [0.9, 0.95]"),
    ({"clip": None}, "clip 1.0", "clip None"),
    ({"seed": 1}, "seed 0", "seed 1"),
    ({"precision": "bfloat16"}, "precision float32", "precision bfloat16"),
    (
        {"model": Config.decoder(layers=2, width=16, heads=2, vocabulary=257, context=16)},
        "the model's layers 1",
        "the model's layers 2",
    ),
    (
        {"corpus": Corpus.of(TEXT.upper(), TOKENIZER)},
        f"text {CORPUS.checksum[:12]}",
        f"text {Corpus.of(TEXT.upper(), TOKENIZER).checksum[:12]}",
    ),
    ({"batch": 4, "seed": 1}, "batch 3, seed 0", "batch 4, seed 1"),
]


@pytest.mark.parametrize(("changes", "own", "asked"), CHANGED, ids=[asked for _, _, asked in CHANGED])
def test_a_run_is_not_resumed_in_another_way(begun: Path, changes: dict[str, Any], own: str, asked: str) -> None:
    log = (begun / "log.csv").read_bytes()
    with pytest.raises(TrainingError) as caught:
        run(begun, how={"resume": True}, **changes)
    assert str(caught.value) == (
        f"the run in {begun}: expected what it began with, {own}, got {asked}. Resume it with the same, or begin a "
        "new run in another folder."
    )
    assert names(begun) == ["log.csv", "step-00000007"]
    assert (begun / "log.csv").read_bytes() == log  # rows behind the checkpoint are still there


def test_another_tokenizer_or_device_is_refused(begun: Path, tmp_path: Path) -> None:
    other = byte_tokenizer()
    other.inner.add_tokens(["question"])
    other.inner.add_tokens(["or not"])
    corpus = Corpus(CORPUS.train, CORPUS.validation, other.vocabulary_size)
    model = Config.decoder(layers=1, width=16, heads=2, vocabulary=300, context=16)
    with pytest.raises(TrainingError) as caught:
        train(model, corpus, other, Settings(**SETTINGS), begun, resume=True)
    assert caught.value.names == ("text", "the model's vocabulary", "tokenizer")
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    state = folder / "step-00000007" / STATE
    state.write_text(state.read_text().replace('"device": "cpu",\n "precision"', '"device": "cuda",\n "precision"'))
    with pytest.raises(TrainingError, match="began with, device cuda, got device cpu"):
        run(folder, how={"resume": True})


def test_a_resumed_run_may_look_and_keep_otherwise(tmp_path: Path, unbroken: Trained) -> None:
    stopped(tmp_path, 9)
    resumed = run(
        tmp_path, how={"resume": True}, keep=5, checkpoint_every=20, validate_every=30, validate_windows=1, warmup=4
    )
    assert bits(resumed.checkpoint) == bits(unbroken.checkpoint)
    assert names(tmp_path)[1:] == [f"step-{step:08}" for step in (7, 20, 40)]


def test_a_finished_run_says_so(unbroken: Trained) -> None:
    before = names(unbroken.checkpoint.parent)
    with pytest.raises(TrainingError) as caught:
        run(unbroken.checkpoint.parent, how={"resume": True})
    assert str(caught.value) == (
        f"the run in {unbroken.checkpoint.parent}: expected steps that are left, got a finished run, 40 of 40 steps. "
        f"Its model is {unbroken.checkpoint}; to train it further, begin a new run from it (--from)."
    )
    assert names(unbroken.checkpoint.parent) == before
