"""The folder in which a recording is being written (floor 2): held, whole or not there, one writer a path.

Takes how to hold a folder from below. Gives the writer `.NAME.unfinished` beside the recording's place, which becomes
the recording by being renamed. Its writer holds it locked; the system lets go of it however a process ends, so
what a killed one left is held by nobody, and the next writer of the path uses it again, emptied. The name is the same
for all writers of a path on purpose: were it drawn at random, one who sweeps could take another's folder in the moment
between its making and its locking; so, whoever locks it has it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from wherefrom.errors import RecordingError
from wherefrom.folders import hold, release, sync
from wherefrom.recording.layout import CALLS, MANIFEST, SCANS, folder_of, is_recording, read_manifest
from wherefrom.recording.strict import broken

TRIES = 100  # to hold a folder that other writers keep finishing just then
ELSEWHERE = "Choose another path, or remove what is there."


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
        self.overwrite = overwrite
        self.partial, self._old = (self.path.with_name(f".{self.path.name}.{end}") for end in ("unfinished", "old"))
        self.open, self._held = False, None
        self._syncing = ThreadPoolExecutor(1)  # beside the model: a thread that waits for the disk takes no time of it
        self._synced: list[Future[None]] = []
        self._refuse_what_is_there()
        with self.writing("the recording's folder"):
            self._held = self._hold()
            self.open = True
            self._begin()

    def _hold(self) -> int | None:
        """Make the folder and hold it, or take over one that nobody holds; what is held is what the name leads to."""
        for _ in range(TRIES):
            found = False
            try:
                self.partial.mkdir()
            except FileExistsError:
                found = True
            try:
                held = hold(self.partial)
            except BlockingIOError:
                self._refuse_in_use("another process writes a recording there")
            except FileNotFoundError:  # whoever held it ended just now
                continue
            if held is None and found:
                self._refuse_in_use(f"{self.partial.name}, which another writes or has left behind; remove it then")
            if held is None or _is_same(held, self.partial):
                return held
            release(held)
        return self._refuse_in_use("other processes that write there one after another")

    def _begin(self) -> None:
        """Empty what a killed writer left, and put back what one was replacing."""
        for left in self.partial.iterdir():
            _remove(left)
        if is_recording(self._old) and not self.path.exists():
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
            replacing = self.path.exists()
            if replacing:
                self.path.rename(self._old)
            try:
                self.partial.rename(self.path)
            except OSError:
                if replacing:
                    self._old.rename(self.path)
                raise
            sync(self.path.parent)
        self.open = False
        self._syncing.shutdown()
        release(self._held)
        _remove(self._old)

    def abandon(self) -> None:
        """Remove what was written, unless it is in place already."""
        if self.open:
            self.open = False
            self._syncing.shutdown(cancel_futures=True)
            _remove(self.partial)
            release(self._held)

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
            raise RecordingError(
                f"{self.path}: {what}",
                expected="room and permission to write it",
                given=f"{error}".rstrip("."),
                way_out="Make room, or choose another path; nothing was left behind.",
                path=self.path,
            ) from error
        except RecordingError:
            self.abandon()
            raise

    def _refuse_what_is_there(self) -> None:
        """Refuse a path with something, unless it is a recording, with nothing but its scans beside, to be replaced."""
        if not self.path.exists():
            return
        if not is_recording(self.path):
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

    def _refuse_in_use(self, given: str) -> NoReturn:
        broken(
            self.path,
            "its place",
            expected="no other process that writes there",
            given=given,
            way_out="Wait for it to end, stop it, or choose another path.",
        )


def _is_same(held: int, folder: Path) -> bool:
    """Whether a path still leads to the folder that is held: it may have been renamed before it was locked."""
    try:
        return os.path.samestat(os.fstat(held), os.lstat(folder))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove a folder, its manifest first, so that no part of it is ever taken for a recording; or a file or link."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # as rmtree does: what cannot be removed is left
            (path / MANIFEST).unlink()
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
