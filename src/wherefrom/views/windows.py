"""A window of weights on a terminal (floor 6): destinations below one another, sources beside one another.

It takes a `Window` and the tokens of its two sides, and gives lines that fit a width. A window that is small enough is
drawn whole, in blocks of columns; of a larger one its corners, and what is between them is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from wherefrom.questions import Window
from wherefrom.readable import printable
from wherefrom.spans import Tokens
from wherefrom.views.answers import WIDTH, flowing
from wherefrom.views.cells import fitted, quoted

WEIGHT = 7
"""Cells of a weight, and of the label above it."""
LABEL = 12
"""Cells of a destination's label at most."""
MOST_SHOWN = 1024
"""A window of more weights is shown by its corners."""
CORNER = 3
"""Destinations at either end of which a corner is shown; of sources as many as fit."""
WHAT_ZERO_IS = "0 is exactly 0, as where the mask keeps a source out"
WHAT_A_DASH_IS = "- stands where a destination may read nothing and has no row"
WHAT_A_SINK_IS = "sink is the share that the head's sink takes, which is no source's"
Column = tuple[str, str, Sequence[str]]
"""A number and a label above, and a cell a row."""


def window_lines(window: Window, readers: Tokens, read: Tokens, *, width: int = WIDTH) -> Iterator[Text]:
    """Yield a window of weights line by line.

    Args:
        window: from `wherefrom.weights`.
        readers: the tokens at the destinations, all of them: `recording.read_by(kind, part)[0]`.
        read: those at the sources, likewise.
        width: cells of a line.
    """
    yield from flowing(window.question, width, style="bold")
    whole = window.values.size <= MOST_SHOWN
    rows = _ends(window.destinations, len(window.destinations) if whole else CORNER)
    names = _names(rows, readers)
    room = max(1, (width - max(map(cell_len, names))) // (WEIGHT + 1))
    beside = _outside(window, rows) if len(window.sources) < len(read) else []
    if window.sinks is not None:
        beside.append(("sink", "", _cells(window, rows, window.sinks)))
    corner = max(1, (room - 1 - len(beside)) // 2)
    shown = _ends(window.sources, len(window.sources) if whole else corner)
    columns = [_column(window, rows, source, read) for source in shown] + beside
    for first in range(0, len(columns), room):
        if first:
            yield Text()
        yield from _block(names, columns[first : first + room])
    for sentence in _sentences(window, rows, shown):
        yield from flowing(sentence, width, style="dim")


def outside(window: Window, read: Tokens) -> str:
    """Return how much of the destinations' rows lies on sources that are not in a window, as a sentence.

    Args:
        window: from `wherefrom.weights`.
        read: the tokens at the sources, all of them.
    """
    if len(window.sources) == len(read):
        return "No source is left out."
    if window.left_out.count() == 0:
        return "No destination of the window may read anything."
    share = f"at most {float(window.left_out.max()):.4f} of a destination's row"
    return f"Left out: {len(read) - len(window.sources):,} of {len(read):,} sources, with {share}."


def _ends(numbers: range, most: int) -> list[int | None]:
    """Return some numbers at either end, None for what is between."""
    if len(numbers) <= 2 * most:
        return list(numbers)
    return [*numbers[:most], None, *numbers[-most:]]


def _names(rows: Sequence[int | None], readers: Tokens) -> list[str]:
    cells = max(len(str(row)) for row in rows if row is not None)
    labels = ["" if row is None else _label(readers, row, LABEL) for row in rows]
    widest = max(map(cell_len, labels))
    names = ("..." if row is None else str(row) for row in rows)
    return [f"{name:>{max(cells, 3)}} {fitted(label, widest)}" for name, label in zip(names, labels, strict=True)]


def _label(tokens: Tokens, position: int, most: int) -> str:
    return fitted(quoted(printable(tokens[position].label)), most, pad=False)


def _column(window: Window, rows: Sequence[int | None], source: int | None, read: Tokens) -> Column:
    if source is None:
        return "...", "", ["..." for _ in rows]
    values = window.values[:, source - window.sources.start]
    return str(source), _label(read, source, WEIGHT), _cells(window, rows, values)


def _outside(window: Window, rows: Sequence[int | None]) -> list[Column]:
    """Return the column of what lies on sources outside the window."""
    return [("outside", "", _cells(window, rows, np.maximum(window.left_out, 0.0)))]


def _cells(window: Window, rows: Sequence[int | None], values: NDArray[np.float64]) -> list[str]:
    start = window.destinations.start
    return ["..." if row is None else _written(values[row - start]) for row in rows]


def _written(value: np.float64) -> str:
    return "-" if np.ma.is_masked(value) else f"{value:.4f}" if value else "0"


def _block(names: Sequence[str], columns: Sequence[Column]) -> Iterator[Text]:
    blank = " " * cell_len(names[0])
    for line in (0, 1):
        heads = (f" {_right(str(column[line]))}" for column in columns)
        yield Text((blank + "".join(heads)).rstrip(), "dim")
    for place, name in enumerate(names):
        yield Text(name + "".join(f" {_right(column[2][place])}" for column in columns))


def _right(text: str) -> str:
    return " " * (WEIGHT - cell_len(text)) + text


def _sentences(window: Window, rows: Sequence[int | None], shown: Sequence[int | None]) -> Iterator[str]:
    said = [f"Rows are destinations, columns sources; {window.unit}", WHAT_ZERO_IS]
    if np.ma.getmaskarray(window.values).any():
        said.append(WHAT_A_DASH_IS)
    if window.sinks is not None:
        said.append(WHAT_A_SINK_IS)
    yield "; ".join(said) + "."
    counts = [(window.destinations, rows, "destinations"), (window.sources, shown, "sources")]
    missing = [
        f"{len(asked) - len(listed) + 1:,} of {len(asked):,} {what}" for asked, listed, what in counts if None in listed
    ]
    if missing:
        yield f"Not shown: {' and '.join(missing)}, between the corners."
    yield window.exactness
    yield from window.said_of_gaps
