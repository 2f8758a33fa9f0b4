"""How attention formed (floor 5): the table that a watched training run leaves, read as arrays. No torch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError, TrainingError
from wherefrom.questions.figures import FIGURES, HeadFigures

NAME = "attention.csv"
OF_STEP = ("new_nats", "again_nats")
COLUMNS = ("step", "layer", "head", *FIGURES, *OF_STEP)


@dataclass(frozen=True, eq=False)
class Watched:
    """The figures of every head at every step that was looked at.

    Attributes:
        steps: [W], in ascending order.
        figures: by name (`wherefrom.questions.figures`), float64 [W, layers, heads]; NaN where a figure has no value.
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


def rows_of(step: int, layers: Iterable[HeadFigures], new: float, again: float) -> Iterator[list[str]]:
    """Yield the table's rows of one step in the order of `COLUMNS`; a figure without a value is an empty cell."""
    for layer, figures in enumerate(layers):
        for head in range(len(figures.entropy)):
            values = [getattr(figures, name)[head] for name in FIGURES]
            cells = ["" if np.ma.is_masked(value) else repr(float(value)) for value in values]
            yield [str(step), str(layer), str(head), *cells, repr(new), repr(again)]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of an ``attention.csv`` as written; a last line that a killed run did not finish is left out.

    Raises:
        TrainingError: the file is not such a table.
        OSError: it cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines and lines[0] != ",".join(COLUMNS):
        raise TrainingError(
            f"{path}",
            expected=f"a table whose columns are {', '.join(COLUMNS)}",
            given=repr(lines[0][:60]),
            way_out="Move the file away and watch the run again.",
            path=path,
        )
    return list(csv.DictReader(lines))


def read_watched(folder: str | Path) -> Watched:
    """Return what a run was seen to do.

    Args:
        folder: of a run that was watched, with an ``attention.csv`` in it.

    Raises:
        TrainingError: there is no such table, nothing in it, or it is damaged.
    """
    path = Path(folder) / NAME
    if not path.is_file():
        given = "none" if Path(folder).is_dir() else "no such folder"
        raise _refusal(path, f"a watched run: its {NAME}", given, "Train with --watch 50, or `on_step=Watch(...)`.")
    rows = read_rows(path)
    try:
        keys = np.array([[int(row[name]) for name in COLUMNS[:3]] for row in rows]).reshape(-1, 3)
        numbers = {name: np.array([_number(row[name]) for row in rows]) for name in COLUMNS[3:]}
    except (TypeError, ValueError) as error:
        raise _refusal(path, "numbers in every row", f"something else ({error})") from error
    steps = np.unique(keys[:, 0])
    layers, heads = (int(keys[:, column].max(initial=-1)) + 1 for column in (1, 2))
    whole = np.array([(s, layer, head) for s in steps for layer in range(layers) for head in range(heads)])
    if not len(rows) or not np.array_equal(keys, whole):
        raise _refusal(path, "one row for every step, layer and head, in order", f"{len(rows)} rows that are not")
    shaped = {name: values.reshape(len(steps), layers, heads) for name, values in numbers.items()}
    new, again = (shaped.pop(name)[:, 0, 0] for name in OF_STEP)
    return Watched(steps, shaped, new, again)


def _number(cell: str) -> float:
    return float(cell) if cell else np.nan


def _refusal(path: Path, expected: str, given: str, way_out: str = "Watch the run again.") -> TrainingError:
    facts: dict[str, Any] = {"path": path}
    return TrainingError(f"{path}", expected=expected, given=given, way_out=way_out, **facts)
