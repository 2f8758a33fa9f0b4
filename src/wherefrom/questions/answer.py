"""Answers (floor 4): frozen values that carry the question, units, exactness, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wherefrom.questions.exact import Masked
from wherefrom.recording import Gap, gaps_as_json, gaps_in_words

if TYPE_CHECKING:
    import polars

Cell: TypeAlias = int | float | str | None


@dataclass(frozen=True)
class Column:
    """A column of an answer: its name, its unit ("" for a name or a number without one), and what it holds."""

    name: str
    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Answer:
    """A table that answers a question.

    Attributes:
        question: what was asked, as a sentence.
        columns: names and units.
        rows: one tuple a row, in the order of `columns`.
        exactness: how exact the numbers are.
        left_out: what the table does not show, as a sentence.
        remainder: the same as a number, in the unit of the first column that has one.
        gaps: attention of the same pass that the recording does not hold.
    """

    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    exactness: str
    left_out: str
    remainder: float
    gaps: tuple[Gap, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        names = [column.name for column in self.columns]
        return (dict(zip(names, row, strict=True)) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as what `json.dumps` takes."""
        return {
            "question": self.question,
            "columns": [{"name": c.name, "unit": c.unit, "meaning": c.meaning} for c in self.columns],
            "rows": [dict(row) for row in self],
            "exactness": self.exactness,
            "left_out": self.left_out,
            "remainder": self.remainder,
            "gaps": gaps_as_json(self.gaps),
        }

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a polars data frame."""
        import polars  # only who asks for a frame pays for it

        names = [column.name for column in self.columns]  # kinds by all rows: the first hundred may hold no number
        return polars.DataFrame(self.rows, schema=names, orient="row", infer_schema_length=None)

    def __str__(self) -> str:
        cells = [[c.name for c in self.columns], [c.unit for c in self.columns]]
        cells += [[_written(value) for value in row] for row in self.rows]
        widths = [max(len(row[c]) for row in cells) for c in range(len(self.columns))]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in cells]
        return "\n".join([self.question, *lines, self.left_out, self.exactness, *self.said_of_gaps])

    @property
    def said_of_gaps(self) -> tuple[str, ...]:
        """What the recording does not hold, as one line; empty where it holds all."""
        return tuple(filter(None, [gaps_in_words(self.gaps)]))

    def __repr__(self) -> str:
        return f"Answer({self.question!r}, {len(self)} row{'' if len(self) == 1 else 's'})"


@dataclass(frozen=True, eq=False)
class Window:
    """An exact piece of one head's map of weights.

    Attributes:
        question: what was asked.
        layer: whose weights.
        head: whose weights.
        destinations: the rows.
        sources: the columns.
        values: [len(destinations), len(sources)], shares of a row; a source that is not permitted is exactly 0, the
            row of a destination that may read nothing is masked.
        exactness: how exact the numbers are.
        left_out: for each row, the share that lies on sources outside the window; a sink's share is none of it.
        kind: "self" or "cross".
        part: "decoder", "encoder" or another tower's name.
        repeat: which execution of the layer's module.
        sinks: for each row, the share that the head's sink takes; None where it has none. Row, `left_out` and sink
            are one.
        gaps: attention of the same pass that the recording does not hold.
    """

    question: str
    layer: int
    head: int
    destinations: range
    sources: range
    values: Masked
    exactness: str
    left_out: Masked
    kind: str = "self"
    part: str = "decoder"
    repeat: int = 0
    sinks: Masked | None = None
    gaps: tuple[Gap, ...] = ()

    unit = "share of the destination's row"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.layer, self.head, self.destinations, self.sources))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.values.filled(np.nan), dtype=dtype)

    def __str__(self) -> str:
        rows, columns = self.destinations, self.sources
        axes = f"rows: destinations {rows.start} to {rows.stop - 1}; columns: sources {columns.start} to "
        numbers = _shares(np.asarray(self))
        lines = [self.question, f"{axes}{columns.stop - 1}; {self.unit}", numbers]
        if self.sinks is not None:
            lines.append(f"share of each row that the sink takes: {_shares(self.sinks.filled(np.nan))}")
        return "\n".join([*lines, self.exactness, *self.said_of_gaps])

    @property
    def said_of_gaps(self) -> tuple[str, ...]:
        """What the recording does not hold, as one line; empty where it holds all."""
        return tuple(filter(None, [gaps_in_words(self.gaps)]))

    def __repr__(self) -> str:
        return f"Window({self.question!r}, {len(self.destinations)} x {len(self.sources)})"

    def to_json(self) -> dict[str, Any]:
        """Return the window as what `json.dumps` takes; an empty row is null."""
        return {
            "question": self.question,
            "layer": self.layer,
            "head": self.head,
            "kind": self.kind,
            "part": self.part,
            "repeat": self.repeat,
            "destinations": [self.destinations.start, self.destinations.stop],
            "sources": [self.sources.start, self.sources.stop],
            "unit": self.unit,
            "values": self.values.tolist(),
            "exactness": self.exactness,
            "left_out": self.left_out.tolist(),
            "sinks": None if self.sinks is None else self.sinks.tolist(),
            "gaps": gaps_as_json(self.gaps),
        }


def _written(value: Cell) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)


def _shares(values: np.ndarray[Any, Any]) -> str:
    """Return numbers as text; of a large window the corners."""
    return np.array2string(values, max_line_width=120, threshold=400, formatter={"float_kind": _share})


def _share(value: np.floating[Any]) -> str:
    return "     -" if np.isnan(value) else f"{value:.4f}"  # a destination that may read nothing has no row
