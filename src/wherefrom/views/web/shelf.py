"""Which recordings the explorer shows (floor 6): those that were named when it started, and those below one folder.

A page names a recording by its key, which is looked up among those. Only where a list had no room for all is a path
made of what a page says: one below the folder, without a link and without a way up. One that cannot be opened stays on
the shelf, with the sentence why. A file that was written anew is opened anew.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from wherefrom.errors import InputError, WherefromError
from wherefrom.readable import escape, readable
from wherefrom.recording import Recording, Summary, check_sizes, open_recording, summary_of
from wherefrom.recording.layout import MANIFEST, SUFFIX
from wherefrom.views.web.asked import MOST_NAME
from wherefrom.views.web.wire import Message

MOST_FOUND = 1000
"""Recordings of a folder that are listed at most."""
MOST_OPEN = 8
"""Recordings that are held open; of a file only what is asked for is in memory."""
BYTE, HALF = re.compile("[\udc80-\udcff]"), re.compile("[\ud800-\udfff]")
"""What stands in the name of a file for a byte that is none of a character, and half a character."""


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
        return () if self.path is None else _written(self.path)


@dataclass(frozen=True)
class _Held:
    """A recording that is open.

    Attributes:
        run: which one.
        recording: it.
        files: the names of its files.
        written: what tells one writing of all of them from the next.
    """

    run: Run
    recording: Recording
    files: tuple[str, ...]
    written: tuple[int, ...]

    @classmethod
    def of(cls, run: Run, path: Path, files: Iterable[str]) -> _Held:
        """Open a recording."""
        names = tuple(files)
        written = _written(path, names)  # before it is opened: what is written meanwhile is opened anew
        return cls(run, open_recording(path), names, written)

    @property
    def version(self) -> str:
        """What the page has instead of the numbers that tell one writing from the next."""
        return blake2b(repr(self.written).encode(), digest_size=8).hexdigest()

    def is_of(self, run: Run, path: Path) -> bool:
        """Whether it is a recording's, as it lies there now."""
        return self.run == run and self.written == _written(path, self.files)


class Shelf:
    """Recordings by key.

    Args:
        named: paths, or (name, recording) for those in memory.
        folder: recordings anywhere below it are on the shelf too, as they come and go.

    Raises:
        InputError: a folder that is none.
    """

    def __init__(self, named: Sequence[Path | tuple[str, Recording]] = (), folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise InputError(
                "the folder", expected="one that is there", given=f"{folder}", way_out="Check the path.", path=folder
            )
        self._folder = None if folder is None else folder.resolve()
        self._named = tuple(_named(named))
        self._known: dict[str, Run] = {}
        self._summaries: dict[Path, tuple[tuple[int, ...], Summary]] = {}
        self._open: OrderedDict[str, _Held] = OrderedDict()
        self._versions: WeakKeyDictionary[Recording, str] = WeakKeyDictionary()
        self._lock = Lock()
        self._more = False

    @property
    def has_folder(self) -> bool:
        """Whether recordings come and go on it."""
        return self._folder is not None

    @property
    def more(self) -> bool:
        """Whether there was no room for all of the folder's in the last list."""
        return self._more

    def runs(self) -> list[Run]:
        """Return what is on the shelf now: the named ones in their order, then those of the folder by name."""
        found = {run.key: run for run in self._named}
        if self._folder is not None:
            known = {run.path for run in self._named}
            below = list(islice(_below(self._folder), MOST_FOUND + 1))
            self._more = len(below) > MOST_FOUND
            for path in below[:MOST_FOUND]:
                key = _unused(_key_of(path, self._folder), found)
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
            run = next((run for run in self.runs() if run.key == key), None) or self._left_out(key)
        if run is None:
            way_out = "Go back to the list of recordings."
            raise InputError(
                "the recording",
                expected="one that is shown here",
                given=readable(key)[:80] or "no name",
                way_out=way_out,
            )
        if run.recording is not None:
            return run.recording
        assert run.path is not None
        with self._lock:
            held = self._open.pop(key, None)
            # To read a mapped file beyond its end ends the process, so one that is shorter by now is not read. One that
            # becomes shorter in the middle of an answer still ends it.
            if held is None or not held.is_of(run, run.path):
                held = _Held.of(run, run.path, self.summary(run).files)
                self._versions[held.recording] = held.version
            self._open[key] = held
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return held.recording

    def version(self, recording: Recording) -> str | None:
        """Return what tells a recording from what was, or will be, written in its place; None for one in memory."""
        return self._versions.get(recording)

    def _left_out(self, key: str) -> Run | None:
        """Return a recording that the last list had no room for; no link is followed, and no way up."""
        if self._folder is None or not self._more:
            return None
        for path in (self._folder / key, self._folder / f"{key}{SUFFIX}"):
            with suppress(OSError, ValueError):  # what no file can be called, or does not lie below
                within = (self._folder / parent for parent in path.relative_to(self._folder).parents)
                is_listed = _has_manifest(path) and not any(map(_has_manifest, within))
                if is_listed and _key_of(path, self._folder) == key and path.resolve() == path:
                    return self._known.setdefault(key, Run(key, path=path))
        return None


def listed(shelf: Shelf) -> Message:
    """Return what there is on a shelf, a line each; of a recording that cannot be opened, why.

    Beside it stands whether there are more of the folder's than these, how many of them are listed at most, and
    whether there is a folder, so that others may come.
    """
    runs = [_listed(shelf, run) for run in shelf.runs()]
    return Message({"runs": runs, "more": shelf.more, "most": MOST_FOUND, "folder": shelf.has_folder})


def _listed(shelf: Shelf, run: Run) -> dict[str, Any]:
    try:
        own = shelf.summary(run)
        _check_name(run.key)
    except WherefromError as error:
        return {"key": run.key, "error": _in_characters(str(error))}
    size = {"bytes": sum(own.files.values())} if own.files else {}
    facts = {"key": run.key, "model": _in_characters(own.model.name), "tokens": own.tokens, "calls": own.calls}
    return facts | size


def _check_name(key: str) -> None:
    """Refuse a name that the page could not ask for."""
    if len(key.encode()) > MOST_NAME:
        expected, given = f"at most {MOST_NAME:,} bytes", f"{len(key.encode()):,}"
        raise InputError(
            "its name below the folder",
            expected=expected,
            given=given,
            way_out="Name it alone: wherefrom explore PATH.",
        )


def _written(path: Path, files: Iterable[str] = ()) -> tuple[int, ...]:
    """Return what tells one writing of a recording's manifest and files from the next; nothing where one is gone."""
    try:
        found = [(path / name).lstat() for name in (MANIFEST, *files)]
    except OSError:
        return ()
    return tuple(number for one in found for number in (one.st_mtime_ns, one.st_ino, one.st_size))


def _has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _key_of(path: Path, folder: Path) -> str:
    if path == folder:  # the folder is a recording itself
        return name_of(path)
    return _in_characters(_shortened(path.relative_to(folder).as_posix()))


def name_of(path: Path) -> str:
    """Return what a recording is called by its path, also where that has no name, as "." and what ends in ".."."""
    return _in_characters(_shortened(path.name if path.name not in ("", "..") else path.resolve().name))


def _shortened(name: str) -> str:
    """Return a name without its suffix, where something is left then."""
    short = name.removesuffix(SUFFIX)
    return name if short == "" or short.endswith("/") else short


def _in_characters(text: str) -> str:
    r"""Return a text with what is no character in it, such as in the name of a file, as an escape: `\xe9`."""
    bytes_shown = BYTE.sub(lambda own: escape(chr(ord(own[0]) - 0xDC00)), text)
    return HALF.sub(lambda own: escape(own[0]), bytes_shown)


def _named(given: Sequence[Path | tuple[str, Recording]]) -> Iterator[Run]:
    used: set[str] = set()
    for one in given:
        key = _unused(name_of(one) if isinstance(one, Path) else _in_characters(one[0]), used)
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
    for place, inside, files in os.walk(folder):
        inside.sort()
        if MANIFEST in files:
            inside.clear()
            path = Path(place).resolve()
            if path.is_relative_to(folder):
                yield path
