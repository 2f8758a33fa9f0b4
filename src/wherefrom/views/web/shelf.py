"""Which recordings the explorer shows (floor 6): those that were named when it started, and those below one folder.

A page names a recording by its key, which is looked up among those; no path is made of what a page says. One that
cannot be opened stays on the shelf, with the sentence why. A file that was written anew is opened anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from wherefrom.errors import InputError, WherefromError
from wherefrom.readable import readable
from wherefrom.recording import Recording, Summary, check_sizes, open_recording, summary_of
from wherefrom.recording.layout import MANIFEST, SUFFIX
from wherefrom.views.web.wire import Message

MOST_FOUND = 1000
"""Recordings of a folder that are listed at most."""
MOST_OPEN = 8
"""Recordings that are held open; of a file only what is asked for is in memory."""


@dataclass(frozen=True)
class Run:
    """A recording on the shelf.

    Attributes:
        key: what the page calls it, the same whenever the same is named.
        recording: in memory; None for one in a file.
        path: of a file; None for one in memory.
    """

    key: str
    recording: Recording | None = None
    path: Path | None = None

    @property
    def there(self) -> bool:
        """Whether it still is where it was, and no link to elsewhere."""
        return self.path is None or (bool(self.written) and self.path.resolve() == self.path)

    @property
    def written(self) -> tuple[int, ...]:
        """What tells one writing of the file from the next."""
        if self.path is None:
            return ()
        try:
            found = (self.path / MANIFEST).stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size


class Shelf:
    """Recordings by key.

    Args:
        named: paths, or (name, recording) for those in memory.
        folder: recordings anywhere below it are on the shelf too, as they come and go.

    Raises:
        InputError: nothing named and no folder; a folder that is none.
    """

    def __init__(self, named: Sequence[Path | tuple[str, Recording]] = (), folder: Path | None = None) -> None:
        if not named and folder is None:
            way_out = "Name a recording, or the folder that they are in."
            raise InputError("the explorer", expected="something to show", given="nothing", way_out=way_out)
        if folder is not None and not folder.is_dir():
            raise InputError(
                "the folder", expected="one that is there", given=f"{folder}", way_out="Check the path.", path=folder
            )
        self._folder = None if folder is None else folder.resolve()
        self._named = tuple(_named(named))
        self._known: dict[str, Run] = {}
        self._summaries: dict[Path, tuple[tuple[int, ...], Summary]] = {}
        self._open: OrderedDict[str, tuple[Run, tuple[int, ...], Recording]] = OrderedDict()
        self._lock = Lock()

    def runs(self) -> list[Run]:
        """Return what is on the shelf now: the named ones in their order, then those of the folder by name."""
        found = {run.key: run for run in self._named}
        if self._folder is not None:
            known = {run.path for run in self._named}
            for path in _below(self._folder):
                key = _unused(path.relative_to(self._folder).as_posix().removesuffix(SUFFIX), found)
                if path not in known:
                    found[key] = Run(key, path=path)
        self._known = found
        return list(found.values())

    def summary(self, run: Run) -> Summary:
        """Return what there is in a recording, without opening it.

        Raises:
            RecordingError: it cannot be opened.
        """
        if run.recording is not None:
            return Summary(run.recording.model, len(run.recording), len(run.recording.calls), {})
        assert run.path is not None
        held, written = self._summaries.get(run.path), run.written
        if held is not None and held[0] == written:
            check_sizes(run.path, held[1].files)
            return held[1]
        found = summary_of(run.path)
        if len(self._summaries) >= MOST_FOUND:
            self._summaries.clear()
        self._summaries[run.path] = written, found
        return found

    def recording(self, key: str) -> Recording:
        """Return a recording, opened if it is not yet.

        Raises:
            InputError: there is none of that key.
            RecordingError: it cannot be opened.
        """
        run = self._known.get(key)
        if run is None or not run.there:  # a folder may be large: it is gone through where need be
            run = next((run for run in self.runs() if run.key == key), None)
        if run is None:
            way_out = "Go back to the list of recordings."
            raise InputError(
                "the recording", expected="one that is shown here", given=readable(key)[:80], way_out=way_out
            )
        if run.recording is not None:
            return run.recording
        assert run.path is not None
        with self._lock:
            held, written = self._open.pop(key, None), run.written
            if held is None or held[:2] != (run, written):
                held = run, written, open_recording(run.path)
            self._open[key] = held
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return held[2]


def listed(shelf: Shelf) -> Message:
    """Return what there is on a shelf, a line each; of a recording that cannot be opened, why."""
    return Message({"runs": [_listed(shelf, run) for run in shelf.runs()]})


def _listed(shelf: Shelf, run: Run) -> dict[str, Any]:
    try:
        own = shelf.summary(run)
    except WherefromError as error:
        return {"key": run.key, "error": str(error)}
    size = {"bytes": sum(own.files.values())} if own.files else {}
    return {"key": run.key, "model": own.model.name, "tokens": own.tokens, "calls": own.calls} | size


def _named(given: Sequence[Path | tuple[str, Recording]]) -> Iterator[Run]:
    used: set[str] = set()
    for one in given:
        name = one.name.removesuffix(SUFFIX) if isinstance(one, Path) else one[0]
        key = _unused(name, used)
        used.add(key)
        yield Run(key, path=one.resolve()) if isinstance(one, Path) else Run(key, recording=one[1])


def _unused(name: str, used: Any) -> str:
    """Return a name that nothing has yet: itself, or with a number behind it."""
    key, number = name, 2
    while key in used:
        key, number = f"{name} ({number})", number + 1
    return key


def _below(folder: Path) -> Iterator[Path]:
    """Yield the folders of recordings below one, by name; what a link leads out to is left out."""
    count = 0
    for place, inside, files in os.walk(folder):
        inside.sort()
        if MANIFEST in files:
            inside.clear()
            path = Path(place).resolve()
            if path.is_relative_to(folder):
                yield path
                count += 1
        if count >= MOST_FOUND:
            return
