"""Folders that are held and brought to the disk (floor 0): what a training run and a recording's file both need.

It takes nothing from below. A lock is the system's own on the folder itself: it goes with the process, however that
ends, moves along when the folder is renamed, and leaves no file behind.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def hold(folder: Path) -> int | None:
    """Hold a folder until this process ends, or until what is returned is given to `release`.

    Returns:
        An open file number; None where the system has no such lock (Windows, some network file systems).

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: there is no such folder, or it may not be opened.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened  # noqa: TRY300  # in here, so that Ctrl-C before this line lets go too
    except BaseException as error:
        os.close(opened)
        if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
            return None  # a network file system without locks: as on Windows
        raise


def release(held: int | None) -> None:
    """Let go of a folder; of None, nothing."""
    if held is not None:
        os.close(held)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk: a rename must not get there before what it names."""
    if path.is_dir() and os.name == "nt":  # a folder cannot be opened there
        return
    opened = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
