"""Files that a command writes an answer into (floor 7): whole or not there, and never over another without being told.

A file is refused before the question is asked, if it will be: its ending, its folder, what is there already. It is
written beside its place under another name, then renamed.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from wherefrom.errors import InputError

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.questions import Answer, Window

TABLES = (".parquet", ".csv", ".json")
MAPS = (".npy", ".csv", ".json")
ELSEWHERE = "Choose another path."


def check_file(path: Path | None, endings: Sequence[str], *, overwrite: bool, named: str = "--out") -> None:
    """Refuse a file that could not be written in the end.

    Args:
        path: what is to be written; None is fine.
        endings: those that say a format.
        overwrite: whether a file that is there may be replaced.
        named: the option or argument that names it.

    Raises:
        InputError: another ending, no such folder, a device, or something there.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        expected = f"a name that ends in {', '.join(endings[:-1])} or {endings[-1]}"
        _refuse(named, path, expected, f'"{path.name}"', "The ending says the format.")
    try:
        parent = _target(path).parent if path.is_symlink() else path.parent
        beside, folder, there = parent.is_dir(), path.is_dir(), path.exists()
    except OSError as error:  # such as a name that is too long
        _refuse(named, path, "a file's place", error.strerror or f"{error}", ELSEWHERE)
    if not beside:
        _refuse(named, path, "a folder that is there", f"none at {parent}", "Make it first, or choose another path.")
    if folder:
        _refuse(named, path, "a file's place", "a folder", ELSEWHERE)
    if there and not path.is_file():  # a device would be replaced by a file, for everybody
        _refuse(named, path, "a file's place", "something else: a device, a pipe or a socket", ELSEWHERE)
    if there and not overwrite:
        _refuse(named, path, "nothing there yet", "a file", "Choose another path, or replace it with --overwrite.")


def write_answer(answer: Answer, path: Path, *, overwrite: bool) -> None:
    """Write an answer's table: with its units and sentences as JSON, its rows alone as CSV or Parquet.

    Raises:
        InputError: it cannot be written.
    """
    names, ending = [column.name for column in answer.columns], path.suffix.lower()
    if ending == ".parquet":
        _write(path, lambda to: _parquet(to, answer), overwrite=overwrite)
    elif ending == ".csv":
        _write(path, lambda to: _csv(to, [names, *answer.rows]), overwrite=overwrite)
    else:
        _write(path, lambda to: _json(to, answer.to_json()), overwrite=overwrite)


def write_window(window: Window, path: Path, *, overwrite: bool) -> None:
    """Write a window's weights: with all that it says as JSON; as CSV, a row a destination; or as an array, float64.

    A destination that may read nothing has no row: null in JSON, empty cells in CSV, NaN in the array. The share of a
    sink is a column of its own in CSV; the array has the sources alone.

    Raises:
        InputError: it cannot be written.
    """
    ending = path.suffix.lower()
    if ending == ".npy":
        _write(path, lambda to: _array(to, window), overwrite=overwrite)
    elif ending == ".csv":
        rows = zip(window.destinations, window.values.tolist(), strict=True)
        cells = [["destination", *window.sources], *([destination, *row] for destination, row in rows)]
        if window.sinks is not None:
            cells = [[*row, share] for row, share in zip(cells, ["sink", *window.sinks.tolist()], strict=True)]
        _write(path, lambda to: _csv(to, cells), overwrite=overwrite)
    else:
        _write(path, lambda to: _json(to, window.to_json()), overwrite=overwrite)


def write_bytes(content: bytes, path: Path, *, overwrite: bool, named: str = "--out") -> None:
    """Write what is made already.

    Raises:
        InputError: it cannot be written.
    """
    _write(path, lambda to: to.write_bytes(content), overwrite=overwrite, named=named)


def _write(path: Path, write: Callable[[Path], Any], *, overwrite: bool, named: str = "--out") -> None:
    """Have a file written beside its place, and rename it; a link is followed, and stays."""
    target = _target(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        write(partial)
        # Something may have come to be there meanwhile.
        check_file(path, (path.suffix.lower(),), overwrite=overwrite, named=named)
        partial.replace(target)
    except OSError as error:
        _refuse(named, path, "room and permission to write it", error.strerror or f"{error}", ELSEWHERE)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """Return the file that a link leads to, or the path itself."""
    return Path(os.path.realpath(path))


def _parquet(to: Path, answer: Answer) -> None:
    frame = io.BytesIO()
    answer.to_polars().write_parquet(frame)
    to.write_bytes(frame.getvalue())


def _csv(to: Path, rows: Iterable[Sequence[Any]]) -> None:
    with to.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _json(to: Path, value: dict[str, Any]) -> None:
    with to.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, allow_nan=False, indent=2)
        file.write("\n")


def _array(to: Path, window: Window) -> None:
    import numpy as np

    with to.open("wb") as file:  # given a name, numpy would add its own ending
        np.save(file, np.asarray(window))


def _refuse(named: str, path: Path, expected: str, given: str, way_out: str) -> NoReturn:
    raise InputError(f"{named} {path}", expected=expected, given=given, way_out=way_out, path=path)
