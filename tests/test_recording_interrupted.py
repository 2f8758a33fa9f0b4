"""Ctrl-C at any line of a writer: the old recording or the new one is there whole, and the path is free again."""

from __future__ import annotations

import shutil
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import pytest

from recordings import bytes_of, plain, uneven
from wherefrom import folders
from wherefrom.recording import Recording, place, save_recording, writer

FILES = {module.__file__ for module in (place, writer, folders)}
Line = tuple[str, int]


def lines_of(act: Callable[[], Any], stop_at: tuple[Line, int] | None = None) -> Counter[Line]:
    """Count how often each line of the writer is reached; Ctrl-C comes when one was reached so many times."""
    reached: Counter[Line] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        back = frame.f_back
        if frame.f_code.co_filename not in FILES or back is None or back.f_code.co_filename == weakref.__file__:
            return None  # of a finalizer an interrupt comes out nowhere
        if event == "line":
            line = Path(frame.f_code.co_filename).name, frame.f_lineno
            reached[line] += 1
            if stop_at == (line, reached[line]):
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return reached


def interrupted(act: Callable[[], Any], stop_at: tuple[Line, int]) -> bool:
    """Whether Ctrl-C ended it; what was raised is forgotten, as at the next prompt of a notebook.

    In a thread of its own: Python's keeps what it was handling when a trace raises in its midst.
    """
    ended = []

    def run() -> None:
        try:
            lines_of(act, stop_at)
        except KeyboardInterrupt:
            ended.append(True)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return bool(ended)


def one_call(recording: Recording) -> Recording:
    return replace(recording, calls=recording.calls[:1], predictions=())


OLD, NEW = one_call(plain()), one_call(uneven())


@pytest.mark.parametrize("before", ["nothing", "a recording", "one that was set aside"])
def test_ctrl_c_at_any_line(before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "sync", lambda path: None)  # nothing is waited for
    path, aside = tmp_path / "there" / "a", tmp_path / "there" / ".a.old"
    old, new = (bytes_of(save_recording(one, tmp_path / name)) for one, name in ((OLD, "old"), (NEW, "new")))

    def start_over() -> None:
        path.parent.mkdir()
        if before != "nothing":
            shutil.copytree(tmp_path / "old", path if before == "a recording" else aside)

    def act() -> None:
        save_recording(NEW, path, overwrite=before != "nothing")

    start_over()
    reached = lines_of(act)
    times_of = {line: {1, times} if line[0] == "place.py" else {1} for line, times in reached.items()}
    moments = [(line, at) for line, times in times_of.items() for at in sorted(times)]
    if before == "one that was set aside":  # and is put back before anything is written
        moments = [(line, at) for line, at in moments if line[0] == "place.py"][: len(moments) // 2]
    outcomes = set()
    for moment in moments:
        shutil.rmtree(path.parent)
        start_over()
        assert interrupted(act, moment), moment
        assert before != "a recording" or path.exists(), moment
        assert before != "a recording" or not aside.exists(), moment
        found = bytes_of(path) if path.exists() else bytes_of(aside) if aside.exists() else {}
        outcomes.add(next(name for name, one in (("none", {}), ("old", old), ("new", new)) if one == found))
        assert bytes_of(save_recording(OLD, path, overwrite=True)) == old, moment
        assert list(path.parent.iterdir()) == [path], moment
    assert len(moments) > 60
    assert outcomes == ({"none", "new"} if before == "nothing" else {"old", "new"})


def test_ctrl_c_leaves_nothing_hidden_where_it_can_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the folder is made, held and emptied, and between the two renamings: no second writer has to clean up."""
    path = save_recording(plain(), tmp_path / "a")
    own, rename = bytes_of(path), Path.rename

    def stopped(self: Path, *to: Path) -> Path:
        if self.name.endswith(".unfinished"):
            raise KeyboardInterrupt
        return rename(self, *to)

    for name in ("_hold", "_begin", "_refuse_what_is_there", "require_room", "written"):
        with monkeypatch.context() as patch:
            patch.setattr(place.Place, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                save_recording(uneven(), path, overwrite=True)
        assert list(tmp_path.iterdir()) == [path], name
    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_recording(uneven(), path, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert bytes_of(path) == own
