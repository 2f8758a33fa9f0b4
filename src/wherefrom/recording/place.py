"""The folder in which a recording is being written (floor 2): held, whole or not there, one writer a path.

Takes how to hold a folder from below. Gives the writer `.NAME.unfinished` beside the recording's place, which becomes
the recording by being renamed. Its writer holds it locked; the system lets go of it however a process ends, so
what a killed one left is held by nobody, and the next writer of the path uses it again, emptied. The name is the same
for all writers of a path on purpose: were it drawn at random, one who sweeps could take another's folder in the moment
between its making and its locking; so, whoever locks it has it. What is removed or put back is known by its inode, not
by its name, which may be another writer's by then.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from wherefrom.errors import RecordingError
from wherefrom.folders import hold, release, sync
from wherefrom.recording.call import PART
from wherefrom.recording.layout import (
    CALLS,
    KINDS,
    MANIFEST,
    PREDICTIONS,
    SCANS,
    TOKENS,
    folder_of,
    has_manifest,
    read_manifest,
)
from wherefrom.recording.strict import broken, way_out_of

TRIES = 100  # to hold a folder that other writers keep finishing just then
ELSEWHERE = "Choose another path, or remove what is there."
_FILES = "|".join(map(re.escape, (MANIFEST, TOKENS, PREDICTIONS)))
_CALL = rf"{PART.pattern}-({'|'.join(KINDS)})-\d{{3,}}(-[1-9]\d*)?\.safetensors"
LEFT = re.compile(rf"{_FILES}|{CALLS}|{CALLS}/{_CALL}|{SCANS}|{SCANS}/.*", re.DOTALL)
"""The names that a writer can have left behind in its folder, or a recording that was being replaced in its own."""


class Place:
    """Where a recording is to be.

    Args:
        path: the recording's.
        overwrite: whether a recording that is there is replaced in the end.

    Raises:
        RecordingError: something is there; another process is writing there; it cannot be written to.
    """

    def __init__(self, path: str | Path, *, overwrite: bool) -> None:
        self.path = Path(os.path.realpath(folder_of(path)))
        if not self.path.name:
            expected, given = "a folder with a name", "the root of all folders"
            broken(self.path, "its place", expected=expected, given=given, way_out="Choose a name in some folder.")
        self.overwrite, self.open = overwrite, False
        self.partial, self._old = (self.path.with_name(f".{self.path.name}.{end}") for end in ("unfinished", "old"))
        self._held: list[int | None] = []
        self._own: os.stat_result | None = None  # the folder that is written, under whatever name
        self._aside: os.stat_result | None = None  # the recording that is replaced, likewise
        weakref.finalize(self, _let_go, self._held)  # when Ctrl-C comes where nobody can catch it
        self._syncing = ThreadPoolExecutor(1)  # beside the model: a thread that waits for the disk takes no time of it
        self._synced: list[Future[None]] = []
        try:
            with self.writing("the recording's folder"):
                self._refuse_what_is_there()
                self._begin(self._hold())
                self.open = True
        except BaseException:
            self.abandon()
            raise

    def _hold(self) -> os.stat_result:
        """Make the folder and hold it, or take over one that nobody holds; what is held is what the name leads to."""
        for _ in range(TRIES):
            found = False
            try:
                self.partial.mkdir()
            except FileExistsError:
                found = True
            try:
                self._held.append(hold(self.partial))
            except BlockingIOError:
                self._refuse_in_use("another process writes a recording there")
            except FileNotFoundError:  # whoever held it ended just now
                continue
            held = self._held[-1]
            if held is None and found:
                self._refuse_in_use(f"{self.partial.name}, which another writes or has left behind; remove it then")
            own = os.lstat(self.partial) if held is None else os.fstat(held)
            if _leads_to(self.partial, own):
                self._own = None if found else own  # of one that was found it is not known yet who made it
                return own
            _let_go(self._held)
        return self._refuse_in_use("other processes that write there one after another")

    def _begin(self, own: os.stat_result) -> None:
        """Empty what a killed writer left, and put back what one was replacing; what is somebody else's is refused."""
        self._refuse_what_no_writer_left(self.partial)
        self._own = own
        self._refuse_what_no_writer_left(self._old)
        for left in self.partial.iterdir():
            _remove(left)
        if has_manifest(self._old) and not self.path.exists():
            self._old.rename(self.path)
        _remove(self._old)
        self._refuse_what_is_there()
        (self.partial / CALLS).mkdir()

    def require_room(self, needed: int) -> None:
        """Refuse to write more than is free.

        Raises:
            RecordingError: both numbers are in it.
        """
        with self.writing("the recording's folder"):
            free = shutil.disk_usage(self.partial).free
        if needed > free:
            self.abandon()
            broken(
                self.path,
                "the disk",
                expected=f"{needed / 1e6:,.1f} MB free",
                given=f"{free / 1e6:,.1f} MB",
                way_out='Make room, choose another disk, keep fewer layers, heads or rows, or store="float16".',
                bytes=needed,
                free=free,
            )

    def written(self, file: Path) -> None:
        """Begin to bring a file that is complete to the disk, beside whatever comes next."""
        self._synced.append(self._syncing.submit(sync, file))

    def settle(self, manifest: bytes) -> None:
        """Bring all files to the disk, then the manifest, so that whatever has one is whole; rename the folder.

        Raises:
            RecordingError: it cannot be, or something came to be there meanwhile.
        """
        with self.writing("the recording"):
            for file in self._synced:
                file.result()
            (self.partial / MANIFEST).write_bytes(manifest)
            for written in (self.partial / MANIFEST, self.partial / CALLS, self.partial):
                sync(written)
            self._refuse_what_is_there()
            if self.path.exists():
                self._aside = os.lstat(self.path)
                self.path.rename(self._old)
            self.partial.rename(self.path)
            sync(self.path.parent)
        self.abandon()

    def abandon(self) -> None:
        """End: remove what was written, unless it is in place already, and let go. Any number of times."""
        self.open = False
        try:
            self._clear()
        except BaseException:  # Ctrl-C: what it broke off is done first
            self._clear()
            raise
        finally:
            _let_go(self._held)

    def _clear(self) -> None:
        """Remove what was written and what it replaced; that is put back instead if the new one is not in its place."""
        self._syncing.shutdown(cancel_futures=True)
        if not self._held:  # what is there by now is another writer's
            return
        if _leads_to(self._old, self._aside):
            if _leads_to(self.path, self._own):
                _remove(self._old)
            elif not self.path.exists():
                with contextlib.suppress(OSError):  # the next writer of the path tries again
                    self._old.rename(self.path)
        if _leads_to(self.partial, self._own):
            _remove(self.partial)

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn what the system refuses into a sentence; then, and after any other error here, nothing is left.

        Raises:
            RecordingError: the system refused.
        """
        try:
            yield
        except OSError as error:
            self.abandon()
            expected, given = "room and permission to write it", f"{error}".rstrip(".")
            way_out = way_out_of(error, "Make room, or choose another path; nothing was left behind.")
            if isinstance(error, FileNotFoundError) and not self.path.parent.exists():
                expected, given = "a folder to put it in", f"{self.path.parent}, where nothing is"
                way_out = "Make that folder first, or choose another path."
            raise RecordingError(
                f"{self.path}: {what}",
                expected=expected,
                given=given,
                way_out=way_out,
                path=self.path,
            ) from error
        except BaseException:
            self.abandon()
            raise

    def _refuse_what_is_there(self) -> None:
        """Refuse a path with something, unless it is a recording, with nothing but its scans beside, to be replaced."""
        if not self.path.exists():
            return
        if not has_manifest(self.path):
            given = "a file" if self.path.is_file() else "a folder of something else"
            broken(self.path, "its place", expected="nothing there yet", given=given, way_out=ELSEWHERE)
        if not self.overwrite:
            way_out = "Choose another path, or replace it with overwrite=True."
            broken(self.path, "its place", expected="nothing there yet", given="a recording", way_out=way_out)
        known = {MANIFEST, CALLS, *read_manifest(self.path).files}
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path).as_posix()
            if name not in known and name.split("/")[0] != SCANS:
                expected = "nothing but the files of the recording to be replaced"
                broken(self.path, "its folder", expected=expected, given=f"{name!r} too", way_out=ELSEWHERE)

    def _refuse_what_no_writer_left(self, folder: Path) -> None:
        """Refuse to empty a folder beside the path that has anything of somebody else's in it."""
        expected = "nothing but what the writer of a recording leaves"
        way_out = "Move it elsewhere, or choose another path."
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            broken(self.path, f"{folder.name} beside it", expected=expected, given="a file or a link", way_out=way_out)
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if not LEFT.fullmatch(name):
                what = f"{folder.name} beside it"
                broken(self.path, what, expected=expected, given=f"{name!r} too", way_out=way_out, file=file)

    def _refuse_in_use(self, given: str) -> NoReturn:
        broken(
            self.path,
            "its place",
            expected="no other process that writes there",
            given=given,
            way_out="Wait for it to end, stop it, or choose another path.",
        )


def _let_go(held: list[int | None]) -> None:
    """Let go of what is held, in one line: what Ctrl-C could come between is not lost."""
    while held:
        release(held.pop())


def _leads_to(path: Path, known: os.stat_result | None) -> bool:
    """Whether a path leads to a folder that is known: names change, of this writer's folders and of others'."""
    try:
        return known is not None and os.path.samestat(known, os.lstat(path))
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a folder, its manifest first, so that no part of it is ever taken for a recording; or a file or link."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # as rmtree does: what cannot be removed is left
            (path / MANIFEST).unlink()
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
