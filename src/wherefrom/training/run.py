"""The folder of a training run (floor 5): checkpoints that are whole or not there, and the log beside them.

Takes the log from beside it, and what to write from the loop. Gives the loop a place to save to and to resume from.

    run/log.csv                      one row a step
    run/step-00000100/               a model folder: config.json, model.safetensors, tokenizer.json, and
        training.json                where the run stands: `State`
        optimizer/state.safetensors  the optimizer's averages

A checkpoint is written under another name, brought to the disk, and renamed; only then do older ones make way. So a
process killed at any moment, or a full disk, leaves the one before as it was; what it did not finish is swept away by
the next run.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from wherefrom.errors import TrainingError
from wherefrom.folders import hold, release, sync
from wherefrom.model.checkpoint import has_files
from wherefrom.training import log, watched
from wherefrom.training.log import Log, LogRow
from wherefrom.training.place import run_folder
from wherefrom.training.state import STATE, State, read_state

OPTIMIZER = "optimizer/state.safetensors"
PLACE = re.compile(r"step-(\d{8})")
UNFINISHED = re.compile(r"\.(?:step-\d{8}\.|log\.csv\.).*")
Write = Callable[[Path], None]


def checkpoints(folder: Path) -> list[Path]:
    """Return a run's whole checkpoints, the oldest first; one that was copied or removed in part is not among them."""
    if not run_folder(folder).is_dir():
        return []
    return sorted(path for path in folder.iterdir() if PLACE.fullmatch(path.name) and is_whole(path))


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint has all the files that it was written with, in their sizes."""
    try:
        return has_files(checkpoint, read_state(checkpoint).files)
    except TrainingError:
        return False


def latest(folder: Path) -> Path:
    """Return the newest whole checkpoint of a run.

    Raises:
        TrainingError: there is none.
    """
    found = checkpoints(folder)
    if found:
        return found[-1]
    broken = sorted(path for path in folder.glob("step-*") if PLACE.fullmatch(path.name)) if folder.is_dir() else []
    if broken:
        given, way_out = f"only a part of one ({broken[-1].name})", "Copy the run's folder here again."
    else:
        given = "none" if folder.is_dir() else "a file" if folder.exists() else "nothing there"
        way_out = "Check the path, or begin the run without resuming."
    raise TrainingError(f"{folder}", expected="a whole checkpoint in it", given=given, way_out=way_out, path=folder)


def best(found: Sequence[Path]) -> Path:
    """Return the checkpoint with the lowest validation loss of several; the newest, if none was validated."""

    def loss(path: Path) -> float:
        measured = read_state(path).validation_loss
        return math.inf if measured is None else measured

    return min(reversed(found), key=loss)


def refuse_another_course(folder: Path, own: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to resume a run with anything that would lead it elsewhere.

    Args:
        folder: the run's.
        own: what it began with, by name.
        asked: what it is to go on with.

    Raises:
        TrainingError: they differ; ``names`` says in what, and the sentence has both values.
    """
    names = tuple(sorted(name for name in {*own, *asked} if own.get(name) != asked.get(name)))
    if names:
        raise TrainingError(
            f"the run in {folder}",
            expected="what it began with, " + ", ".join(f"{name} {_short(own.get(name))}" for name in names),
            given=", ".join(f"{name} {_short(asked.get(name))}" for name in names),
            way_out="Resume it with the same, or begin a new run in another folder.",
            path=folder,
            names=names,
            own={name: own.get(name) for name in names},
            asked={name: asked.get(name) for name in names},
        )


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else repr(value)


class Run:
    """The folder of a run while it is being written; a context, which holds the folder against a second writer.

    Args:
        folder: made if it is not there.
        keep: how many checkpoints stay: the newest, then the one with the lowest validation loss, then newer ones.
        resume: go on behind the newest checkpoint, `begun_at`; else there must be none.

    Raises:
        TrainingError: the folder cannot be used, holds a run already, or (to resume) holds none.
    """

    def __init__(self, folder: Path, *, keep: int, resume: bool) -> None:
        self.folder, self.keep = folder, keep
        self.begun_at: Path | None = None
        self.log: Log | None = None
        self.made = not run_folder(folder).exists()
        if resume:
            latest(folder)  # so that a mistyped name makes no folder
        with self._writing("the run's folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self.lock = _lock(folder)
        try:
            self._look(resume)
        except BaseException:
            self._unlock()
            raise

    def _look(self, resume: bool) -> None:
        if resume:
            self.begun_at = latest(self.folder)
        elif found := self.newest():
            raise TrainingError(
                f"{self.folder}",
                expected="a folder without a run",
                given=f"one with a checkpoint, {found.name}",
                way_out="Resume that run, or choose another folder.",
                path=self.folder,
            )
        else:
            with self._writing("the run's log"):
                log.refuse_foreign(self.folder / log.NAME)

    def begin(self, step: int) -> None:
        """Open the log behind a step; what a killed run did not finish is removed, as are its rows after that step.

        A new run removes the table of heads of one that left no checkpoint: it would be shown as its own.

        Raises:
            TrainingError: the log is damaged or cannot be written.
        """
        self._sweep()
        with self._writing("the run's log"):
            self.log = Log(self.folder / log.NAME, step)
            table = self.folder / watched.NAME
            if not step and watched.is_ours(table):
                table.unlink()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.log is not None:
            with contextlib.suppress(OSError):  # a full disk was reported when the row was written
                self.log.close()
        elif self.made:  # and never begun: nothing is left of it
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self._unlock()

    def _unlock(self) -> None:
        release(self.lock)

    def append(self, row: LogRow) -> None:
        """Write a row of the log.

        Raises:
            TrainingError: it cannot be written.
        """
        with self._writing(f"the log's row of step {row.step}"):
            self._open_log().append(row)

    def _open_log(self) -> Log:
        assert self.log is not None, "a run begins before it is written to"
        return self.log

    def save(self, state: State, write: Write) -> Path:
        """Write a checkpoint and return its folder; older ones beyond `keep` are removed when it is in place.

        Args:
            state: where the run stands; `files` is filled in here.
            write: writes the model and the optimizer into the folder that it is given.

        Raises:
            TrainingError: it cannot be written (a full disk); the one before is whole, and ``checkpoint`` names it.
        """
        place = self.folder / f"step-{state.step:08d}"
        partial = self._aside(place)
        try:
            with self._writing(f"the checkpoint of step {state.step}"):
                self._open_log().sync()
                partial.mkdir()
                write(partial)
                _write_state(partial, state)
                for path in (*partial.rglob("*"), partial):
                    sync(path)
                if place.exists():  # one that was damaged since; a whole one is never written again
                    place.rename(self._aside(place))
                partial.rename(place)
                sync(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # already gone if all went well
        self._make_room()
        return place

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint, if there is one."""
        return next(reversed(checkpoints(self.folder)), None)

    def _make_room(self) -> None:
        """Remove checkpoints beyond `keep`; each is renamed first, so that none is ever seen in part."""
        found = checkpoints(self.folder)
        ranked = dict.fromkeys((found[-1], best(found), *reversed(found)))
        for path in list(ranked)[self.keep :]:
            with contextlib.suppress(OSError):  # it stays until next time
                path.rename(self._aside(path))
        self._sweep()

    def _sweep(self) -> None:
        """Remove what a killed run left unfinished."""
        for path in self.folder.iterdir():
            if UNFINISHED.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _aside(self, place: Path) -> Path:
        return self.folder / f".{place.name}.{secrets.token_hex(4)}"

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            newest = self.newest()
            survives = "No checkpoint had been written before."
            if newest:
                survives = f"The last checkpoint is whole, {newest}: resume from there."
            raise TrainingError(
                what,
                expected="room and permission to write it",
                given=f"{error}".rstrip("."),
                way_out=f"Make room or choose another folder. {survives}",
                path=self.folder,
                checkpoint=newest,
            ) from error


def _write_state(folder: Path, state: State) -> None:
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    content = {**asdict(state), "files": dict(sorted(sizes.items()))}
    (folder / STATE).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _lock(folder: Path) -> int | None:
    """Hold the folder until this process ends, however it ends; None where the system has no such lock."""
    try:
        return hold(folder)
    except BlockingIOError:
        raise TrainingError(
            f"{folder}",
            expected="a folder that no other process is training in",
            given="one that is in use",
            way_out="Wait for it to end, stop it, or choose another folder.",
            path=folder,
        ) from None
