"""The folder of a run: whole checkpoints or none, on a full disk too; what is kept, passed over and refused."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import wherefrom
from training_small import (
    CONFIG,
    CORPUS,
    SETTINGS,
    TEXT,
    StopError,
    bits,
    names,
    run,
    stop_at,
    stopped,
    timeless,
)
from wherefrom.errors import InputError, ModelError, TrainingError
from wherefrom.model.config import Config
from wherefrom.model.cost import parameters
from wherefrom.training import run as runs
from wherefrom.training.log import read_log
from wherefrom.training.loop import Trained, resume
from wherefrom.training.memory import room_for
from wherefrom.training.run import OPTIMIZER, STATE, latest, read_state
from wherefrom.training.settings import Settings

FILES = {"config.json", "model.safetensors", "tokenizer.json", "training.json", "optimizer"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(tmp_path_factory.mktemp("unbroken") / "run")


def test_a_checkpoint_is_a_model_with_all_that_is_needed_to_go_on(tmp_path: Path) -> None:
    trained = run(tmp_path, steps=14, validate_every=5)
    assert set(names(trained.checkpoint)) == FILES
    assert wherefrom.load(tmp_path).config == wherefrom.load(trained.checkpoint).config == CONFIG
    state, rows = read_state(trained.checkpoint), read_log(tmp_path / "log.csv")
    assert state.step == 14
    assert Settings.from_json(state.settings) == Settings(**(SETTINGS | {"steps": 14, "validate_every": 5}))
    assert (state.device, state.precision, state.corpus) == ("cpu", "float32", CORPUS.checksum)
    assert state.config == json.loads(json.dumps(asdict(CONFIG)))
    assert state.validation_loss == rows[13].validation_loss
    measured = {row.validation_loss: row.step for row in rows if row.validation_loss is not None}
    assert state.best_validation_loss == min(measured)
    assert state.best_step == measured[min(measured)]
    earlier = read_state(tmp_path / "step-00000007")
    assert (earlier.validation_loss, earlier.best_step) == (None, 5)


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """As a full disk: the system refuses to let any file of this process grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full_from(step: int, size: int) -> dict[str, Any]:
    def fill(row: Any, _: object) -> None:
        if row.step == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return {"on_step": fill}


@pytest.mark.parametrize("size", [25_000, 40_000], ids=["the weights", "the optimizer"])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, unbroken: Trained, size: int) -> None:
    with files_at_most(2**40), pytest.raises(TrainingError) as caught:
        run(tmp_path, how=full_from(16, size))
    before = tmp_path / "step-00000014"
    assert (before / "model.safetensors").stat().st_size < 40_000 < (before / OPTIMIZER).stat().st_size
    assert str(caught.value).startswith(
        "the checkpoint of step 21: expected room and permission to write it, got Error while serializing: "
    )
    assert "File too large" in str(caught.value)
    assert str(caught.value).endswith(f"The last checkpoint is whole, {before}: resume from there.")
    assert caught.value.checkpoint == before
    assert names(tmp_path) == ["log.csv", "step-00000007", "step-00000014"]
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path: Path, unbroken: Trained) -> None:
    with files_at_most(2**40), pytest.raises(TrainingError) as caught:
        run(tmp_path, how=full_from(10, 1000))
    assert re.match(
        r"the log's row of step 1\d: expected room and permission to write it, got \[Errno 27\]", str(caught.value)
    )
    assert caught.value.checkpoint == tmp_path / "step-00000007"
    assert bits(run(tmp_path, how={"resume": True}).checkpoint) == bits(unbroken.checkpoint)
    assert timeless(tmp_path) == timeless(unbroken.checkpoint.parent)


def test_a_full_disk_before_the_first_checkpoint(tmp_path: Path) -> None:
    with files_at_most(9_000), pytest.raises(TrainingError) as caught:
        run(tmp_path / "run")
    assert str(caught.value).endswith("Make room or choose another folder. No checkpoint had been written before.")
    assert caught.value.checkpoint is None
    assert names(tmp_path / "run") == ["log.csv"]
    assert run(tmp_path / "run", steps=1).step == 1  # nothing is in the way of a new run


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="the run's folder: expected room and permission to write it, got"):
        run(tmp_path / "file")
    with pytest.raises(TrainingError, match="file: expected a whole checkpoint in it, got a file"):
        run(tmp_path / "file", how={"resume": True})


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: None, 10: 2.5}
    state = {
        "settings": {},
        "device": "",
        "precision": "",
        "corpus": "",
        "train_tokens": 1,
        "validation_tokens": 1,
        "config": {},
        "torch": "",
    }
    state |= {"best_validation_loss": None, "best_step": None}

    def kept(keep: int) -> list[int]:
        folder = tmp_path / str(keep)
        with runs.Run(folder, keep=keep, resume=False) as writer:
            writer.begin(0)
            for step, loss in losses.items():
                writer.save(runs.State(step=step, validation_loss=loss, **state), lambda _: None)
        return [read_state(path).step for path in runs.checkpoints(folder)]

    assert [kept(keep) for keep in (1, 2, 3, 4)] == [[10], [4, 10], [4, 8, 10], [4, 6, 8, 10]]
    assert runs.best(runs.checkpoints(tmp_path / "3")).name == "step-00000004"
    losses.update({4: None, 2: None, 6: None, 10: None})
    shutil.rmtree(tmp_path / "2")
    assert kept(2) == [8, 10]
    losses[10] = 0.5
    shutil.rmtree(tmp_path / "2")
    assert kept(2) == [8, 10]


def test_an_old_checkpoint_stays_until_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    make_room = runs.Run._make_room
    monkeypatch.setattr(runs.Run, "_make_room", lambda run: (seen.append(names(run.folder)), make_room(run)))
    run(tmp_path, steps=14, keep=1)
    assert seen == [["log.csv", "step-00000007"], ["log.csv", "step-00000007", "step-00000014"]]
    assert names(tmp_path) == ["log.csv", "step-00000014"]


@pytest.mark.parametrize("spoil", ["", "{", "[]", '{"format": 2}', '{"format": 1}'])
def test_no_whole_checkpoint_is_said(tmp_path: Path, spoil: str) -> None:
    with pytest.raises(TrainingError, match="none: expected a whole checkpoint in it, got nothing there"):
        run(tmp_path / "none", how={"resume": True})
    assert not (tmp_path / "none").exists()
    with pytest.raises(TrainingError, match="expected a whole checkpoint in it, got none"):
        latest(tmp_path)
    stopped(tmp_path, 8)
    (tmp_path / "step-00000007" / STATE).write_text(spoil)
    with pytest.raises(TrainingError, match=r"got only a part of one \(step-00000007\). Copy the run's folder here"):
        latest(tmp_path)
    with pytest.raises(TrainingError, match=r"training\.json: expected"):
        read_state(tmp_path / "step-00000007")


def test_a_state_of_another_step_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path, 8)
    (tmp_path / "step-00000007").rename(tmp_path / "step-00000008")
    with pytest.raises(TrainingError, match="expected the state of step-00000008, got that of step 7"):
        read_state(tmp_path / "step-00000008")


EDITED: list[tuple[dict[str, Any], str]] = [
    ({"settings": [1, 2]}, "expected an object as settings, got [1, 2]. Move this checkpoint away"),
    ({"config": 3}, "expected an object as config, got 3."),
    ({"files": None}, "expected an object as files, got None."),
    ({"train_tokens": 0}, "expected a whole number from 1 up as train_tokens, got 0."),
    ({"validation_tokens": 0}, "expected a whole number from 1 up as validation_tokens, got 0."),
    ({"validation_tokens": True}, "expected a whole number from 1 up as validation_tokens, got True."),
    ({"step": "7"}, "expected a whole number from 1 up as step, got '7'."),
    ({"torch": 2}, "expected a text as torch, got 2."),
    ({"best_validation_loss": "low"}, "expected a number, or null as best_validation_loss, got 'low'."),
    ({"best_step": 1.5}, "expected a whole number, or null as best_step, got 1.5."),
]


@pytest.mark.parametrize(("changes", "sentence"), EDITED, ids=[sentence for _, sentence in EDITED])
def test_an_edited_state_is_refused(unfinished: Path, changes: dict[str, Any], sentence: str) -> None:
    path = unfinished / "step-00000007" / STATE
    content = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(content), **changes}))
        with pytest.raises(TrainingError, match=re.escape(sentence)) as caught:
            read_state(path.parent)
        assert caught.value.path == path
        with pytest.raises(TrainingError, match="got only a part of one"):
            latest(unfinished)
    finally:
        path.write_text(content)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("unfinished"), 8)


@pytest.mark.parametrize("folder", [5, None, "a\0b", "x" * 300, "~nobody-here/run"])
def test_what_is_no_folder(folder: Any) -> None:
    for begin in (lambda: run(folder), lambda: run(folder, how={"resume": True}), lambda: resume(folder, TEXT)):
        with pytest.raises(InputError, match="the run's folder: expected a path that can be one, got ") as caught:
            begin()
        assert caught.value.folder == folder


def test_home_is_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("~/run", steps=2).checkpoint == tmp_path / "run" / "step-00000002"
    with pytest.raises(TrainingError, match="a finished run, 2 of 2 steps"):
        resume("~/run", TEXT)
    assert names(tmp_path) == ["run"]


def test_a_foreign_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("name,price\nsugar,3\n")
    (tmp_path / ".step-00000003.0a1b2c3d").mkdir()
    with pytest.raises(TrainingError, match=r"log\.csv, line 1: expected the columns step,tokens"):
        run(tmp_path)
    assert names(tmp_path) == [".step-00000003.0a1b2c3d", "log.csv"]  # nothing was swept away either
    assert (tmp_path / "log.csv").read_text() == "name,price\nsugar,3\n"
    (tmp_path / "other" / "log.csv").mkdir(parents=True)
    with pytest.raises(TrainingError, match="the run's log: expected room and permission to write it"):
        run(tmp_path / "other")


def test_a_model_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    wide = Config.decoder(layers=1, width=10**8, heads=2, vocabulary=257, context=16)
    with pytest.raises(TrainingError) as caught:
        run(tmp_path / "new", model=wide)
    assert re.fullmatch(
        rf"the memory: expected room for a model of {parameters(wide):,} parameters, their gradients and two averages "
        r"of each, got none for another \d+ bytes\. Choose a smaller width, fewer layers, or a smaller vocabulary\.",
        str(caught.value),
    )
    assert not (tmp_path / "new").exists()  # what was made for the run goes with it
    with pytest.raises(TrainingError, match="the memory"):
        run(tmp_path, model=wide)
    assert tmp_path.exists()  # what was there stays


RAN_OUT = [
    (MemoryError("Unable to allocate 7.11 PiB for an array with shape (9,)"), "none for another 7.11 PiB"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), "none for another 2.00 GiB"),
    (torch.OutOfMemoryError("no more"), "too little"),
    (
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes."),
        "none for another 64 bytes",
    ),
    (RuntimeError("Storage size calculation overflowed with sizes=[1, 2]"), "too little"),
    (MemoryError(), "too little"),
]


@pytest.mark.parametrize(("error", "given"), RAN_OUT, ids=[given for _, given in RAN_OUT])
def test_whatever_runs_out_of_memory(error: Exception, given: str) -> None:
    with pytest.raises(TrainingError) as caught, room_for("a cow", "Buy a barn."):
        raise error
    assert str(caught.value) == f"the memory: expected room for a cow, got {given}. Buy a barn."
    assert caught.value.__cause__ is error


def test_another_error_is_not_about_memory() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), room_for("a cow", "Buy a barn."):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_damaged_numbers_are_refused(tmp_path: Path) -> None:
    stopped(tmp_path, 8)
    place = tmp_path / "step-00000007" / OPTIMIZER
    whole = place.read_bytes()
    place.write_bytes(b"\xff" * len(whole))
    with pytest.raises(TrainingError, match=r"state\.safetensors: expected a whole safetensors file, got a damaged"):
        run(tmp_path, how={"resume": True})
    place.write_bytes(whole.replace(b"exp_avg_sq/norm.weight", b"exp_avg_sq/morn.weight"))
    with pytest.raises(
        TrainingError, match=r"the optimizer's tensor exp_avg_sq/norm\.weight: expected one of shape \[16\]"
    ):
        run(tmp_path, how={"resume": True})
    weights = tmp_path / "step-00000007" / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    with pytest.raises(ModelError, match="expected a whole safetensors file"):
        run(tmp_path, how={"resume": True})


def test_a_run_is_not_overwritten(unbroken: Trained, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"expected a folder without a run, got one with a checkpoint, step-00000040"
    ):
        run(unbroken.checkpoint.parent)
    with pytest.raises(StopError):  # ended before its first checkpoint: nothing to lose
        run(tmp_path, how=stop_at(3))
    assert run(tmp_path, steps=1).step == 1
    assert [row.step for row in read_log(tmp_path / "log.csv")] == [1]


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    refused: list[str] = []

    def look(row: Any, _: object) -> None:
        for again in (False, True) if row.step == 7 else ():
            with pytest.raises(TrainingError) as caught:
                run(tmp_path, how={"resume": again})
            refused.append(str(caught.value))

    run(tmp_path, steps=8, how={"on_step": look})
    way_out = "Wait for it to end, stop it, or choose another folder."
    sentence = f"{tmp_path}: expected a folder that no other process is training in, got one that is in use. {way_out}"
    assert refused == [sentence, sentence]
    assert run(tmp_path / "after", steps=1).step == 1


def test_what_is_not_the_runs_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", ".hidden", "step-1", "step-000000070"):
        (tmp_path / name).mkdir()
    (tmp_path / ".step-00000003.0a1b2c3d").mkdir()  # unfinished, of a killed run
    run(tmp_path, steps=1)
    assert names(tmp_path) == [".hidden", "log.csv", "notes.txt", "step-00000001", "step-000000070", "step-1"]


def test_everything_reaches_the_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watch(opened: int) -> None:
        synced.append(Path(f"/proc/self/fd/{opened}").resolve().name)
        fsync(opened)

    monkeypatch.setattr(os, "fsync", watch)
    run(tmp_path / "run", steps=1)
    partial = next(name for name in synced if name.startswith(".step-00000001."))
    files = {"config.json", "model.safetensors", "tokenizer.json", "training.json", "state.safetensors", "optimizer"}
    assert synced[0] == "log.csv"
    assert set(synced[1:-2]) == files
    assert synced[-2:] == [partial, "run"]
