"""How attention formed (floor 5): the table that a watched training run leaves, read as arrays. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError, TrainingError
from wherefrom.questions.figures import FIGURES, HeadFigures
from wherefrom.training.place import run_folder

NAME = "attention.csv"
OF_STEP = ("new_nats", "again_nats", "every")
ITSELF = {"itself": "self"}
"""What `heads` calls a figure, whose name in Python is another, since `self` says something else there."""
NAMES = tuple(ITSELF.get(name, name) for name in FIGURES)
COLUMNS = ("step", "layer", "head", *NAMES, *OF_STEP)
SHOWN = 160  # characters of a header that is wrong: more than ours has
AWAY = "Move the file away and watch the run again."


@dataclass(frozen=True, eq=False)
class Watched:
    """The figures of every head at every step that was looked at.

    Attributes:
        steps: [W], in ascending order.
        figures: by name, those of `wherefrom.heads`, float64 [W, layers, heads]; NaN where one has no value.
        new_nats: [W], the mean loss of the probe's first half, random tokens that nothing announces.
        again_nats: [W], the mean loss of its second half, the same tokens again: what copying could predict.
    """

    steps: NDArray[np.int64]
    figures: dict[str, NDArray[np.float64]]
    new_nats: NDArray[np.float64]
    again_nats: NDArray[np.float64]

    def onset(self, figure: str, layer: int, head: int, level: float) -> int | None:
        """Return the first step at which a head's figure reaches a level, or None.

        Raises:
            InputError: there is no such figure, layer or head.
        """
        values = self.of(figure)
        layers, heads = values.shape[1:]
        series = values[:, check_index("layer", layer, layers), check_index("head", head, heads)]
        reached = np.flatnonzero(series >= level)
        return int(self.steps[reached[0]]) if reached.size else None

    def of(self, figure: str) -> NDArray[np.float64]:
        """Return one figure [W, layers, heads].

        Raises:
            InputError: there is no such figure.
        """
        if figure not in self.figures:
            raise InputError(
                "the figure",
                expected=f"one of {', '.join(self.figures)}",
                given=repr(figure),
                way_out="induction is the one that shows heads copying what followed before.",
                figure=figure,
            )
        return self.figures[figure]


def rows_of(step: int, layers: Iterable[HeadFigures], new: float, again: float, every: int) -> Iterator[list[str]]:
    """Yield the table's rows of one step in the order of `COLUMNS`; a figure without a value is an empty cell.

    Args:
        step: how many updates had been made.
        layers: the figures of each.
        new: the mean loss of the probe's first half, in nats a token.
        again: that of its second half.
        every: steps between two looks, for whoever goes on with the run.
    """
    for layer, figures in enumerate(layers):
        for head in range(len(figures.entropy)):
            values = [getattr(figures, name)[head] for name in FIGURES]
            cells = ["" if np.ma.is_masked(value) else repr(float(value)) for value in values]
            yield [str(step), str(layer), str(head), *cells, repr(new), repr(again), str(every)]


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of an ``attention.csv`` as written; what a killed run did not finish is left out.

    That is a last line without its end, and a last step of which heads are missing that the first step has.

    Raises:
        TrainingError: the file cannot be read, or is not such a table; ``path`` says where, and ``line``, if it is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(path, "a table", f"no text (the byte 0x{error.object[error.start]:02X})", AWAY) from None
    except OSError as error:
        raise _refusal(path, "a table that can be read", f"{error.strerror}", AWAY) from error
    header, *lines = text.replace("\r\n", "\n").split("\n")[:-1] or [text]  # some programs end lines as Windows does
    if header != ",".join(COLUMNS):
        given = repr(header[:SHOWN]) if text else "an empty file"
        raise _refusal(path, f"a table whose columns are {', '.join(COLUMNS)}", given, AWAY)
    rows = [_cells(line, number, path) for number, line in enumerate(lines, start=2)]
    heads = sum(row[0] == rows[0][0] for row in rows)
    last = sum(row[0] == rows[-1][0] for row in rows)
    return rows[: len(rows) - last] if last < heads else rows


def is_ours(path: Path) -> bool:
    """Whether a file has the columns of such a table, damaged further down or not."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.readline(1000).rstrip("\r\n") == ",".join(COLUMNS)
    except (OSError, UnicodeDecodeError):
        return False


def _cells(line: str, number: int, path: Path) -> list[str]:
    cells = line.split(",")
    try:
        whole = [int(cell) for cell in (*cells[:3], cells[-1])]
        numbers = [_number(cell) for cell in cells[3:]]
    except ValueError:
        whole, numbers = [-1], []
    if min(whole) < 0 or len(numbers) != len(COLUMNS) - 3:
        raise _refusal(path, f"{len(COLUMNS)} numbers in line {number}", repr(line[:60]), AWAY, line=number)
    return cells


def read_watched(folder: str | Path) -> Watched:
    """Return what a run was seen to do.

    Args:
        folder: of a run that was watched, with an ``attention.csv`` in it.

    Raises:
        InputError: what was given is no path.
        TrainingError: there is no such table, nothing in it, or it is damaged.
    """
    place = run_folder(folder)
    path = place / NAME
    if not path.is_file():
        given = "none" if place.is_dir() else "no such folder"
        raise _refusal(path, f"a watched run: its {NAME}", given, "Train with --watch 50, or `on_step=Watch(...)`.")
    rows = read_rows(path)
    if not rows:
        raise _refusal(path, "at least one step", "none", "Train on: the first step is looked at.")
    keys = np.array([[int(cell) for cell in row[:3]] for row in rows])
    numbers = np.array([[_number(cell) for cell in row[3:]] for row in rows])
    steps = np.unique(keys[:, 0])
    layers, heads = (int(keys[:, column].max()) + 1 for column in (1, 2))
    shape = len(steps), layers, heads
    if len(rows) != prod(shape) or not np.array_equal(keys, _in_order(steps, layers, heads)):
        raise _refusal(path, "one row for every step, layer and head, in order", f"{len(rows)} rows that are not", AWAY)
    shaped = {name: numbers[:, place].reshape(shape) for place, name in enumerate(COLUMNS[3:])}
    new, again, _ = (shaped.pop(name)[:, 0, 0] for name in OF_STEP)
    return Watched(steps, shaped, new, again)


def _in_order(steps: NDArray[np.int64], layers: int, heads: int) -> NDArray[np.int64]:
    """Return the first three columns of a whole table."""
    places = np.indices((len(steps), layers, heads)).reshape(3, -1).T
    places[:, 0] = steps[places[:, 0]]
    return places


def _number(cell: str) -> float:
    return float(cell) if cell else np.nan


def _refusal(path: Path, expected: str, given: str, way_out: str, **facts: Any) -> TrainingError:
    return TrainingError(f"{path}", expected=expected, given=given, way_out=way_out, path=path, **facts)
