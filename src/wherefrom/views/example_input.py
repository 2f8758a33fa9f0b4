"""Matrices typed on a command line (floor 6): ``"1,0; 0,2; 2,1"`` becomes three rows of two numbers.

It takes the errors from below and gives arrays to `wherefrom.views.lesson`. Rows and numbers count from 1 in
its messages, as the lesson counts.
"""

from __future__ import annotations

import math
import re

import numpy as np

from wherefrom.attention import Floats
from wherefrom.errors import InputError

WAY_OUT = 'Write rows apart by ";" and numbers by "," or blanks, for example "1,0; 0,2; 2,1".'


def parse_matrix(name: str, text: str) -> Floats:
    """Return the matrix that ``text`` writes, float64 [rows, numbers a row]; a ";" at the very end may stand.

    Args:
        name: what the matrix is called in messages, such as "--q".
        text: rows apart by ";", numbers apart by "," or blanks.

    Raises:
        InputError: no row, an empty row, rows of different lengths, something that is not a finite number.
            Its facts are ``row`` and, for a bad number, ``column``, both counted from 1.
    """
    rows = text.strip().removesuffix(";").split(";")
    matrix = [_row(name, number, row) for number, row in enumerate(rows, start=1)]
    for number, row in enumerate(matrix, start=1):
        if len(row) != len(matrix[0]):
            raise InputError(
                f"row {number} of {name}",
                expected=f"{len(matrix[0])} number{'s' * (len(matrix[0]) != 1)}, as in its first row",
                given=f"{len(row)}: {rows[number - 1].strip()!r}",
                way_out=WAY_OUT,
                row=number,
            )
    return np.array(matrix, dtype=np.float64)


def _row(name: str, row: int, text: str) -> list[float]:
    stripped = text.strip()
    if not stripped:
        raise InputError(
            f"row {row} of {name}", expected="at least one number", given="nothing", way_out=WAY_OUT, row=row
        )
    parts = re.split(r"\s*,\s*|\s+", stripped)
    return [_entry(name, row, column, part) for column, part in enumerate(parts, start=1)]


def _entry(name: str, row: int, column: int, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"number {column} in row {row} of {name}",
            expected="a finite number",
            given=repr(text) if text else "nothing between two commas",
            way_out=WAY_OUT,
            row=row,
            column=column,
        )
    return number
