"""The place of a run (floor 5): a folder by its name, checked at every door that takes one. No torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from wherefrom.errors import InputError


def run_folder(folder: Any) -> Path:
    """Return the path of a run's folder, there or not; a "~" at its beginning is the user's home.

    Raises:
        InputError: it is no path, or one that no system could have.
    """
    try:
        path = Path(folder).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # whoever uses it will say so
            path.stat()
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # too long, nobody's home, a number, a zero byte
        given = f"{folder!r}" if isinstance(error, TypeError) else f"{error}".rstrip(".")
        raise InputError(
            "the run's folder",
            expected="a path that can be one",
            given=given,
            way_out='Name a folder, such as "run".',
            folder=folder,
        ) from error
    return path
