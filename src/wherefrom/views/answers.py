"""Answers on a terminal (floor 6): a question, its table, what that leaves out and how exact it is.

It takes an `Answer` and gives lines that fit a width, broken here and not by the terminal. A table keeps every column:
where it is too wide its headers are broken, then its numbers get two decimals, then it is cut between columns into
blocks that stand below one another. A bar is never alone, its number is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from wherefrom.questions import Answer, Column
from wherefrom.questions.answer import Cell
from wherefrom.readable import printable
from wherefrom.views.cells import bar, fitted, quoted
from wherefrom.views.terminal import PipeConsole

WIDTH = 80
PROSE = 100
"""Sentences are broken here at the latest, however wide the terminal is."""
TOKEN, LEAST_TOKEN = 22, 12
"""Cells of a token's label: so many if there is room, and if there is none."""
BAR, LEAST_BAR = 12, 4
UNIT = 8
"""A unit of more cells is broken at a blank, where headers are broken."""
BARRED = ("share", "rows")
"""A bar stands behind the first column that has a unit, if that begins so: numbers from 0 that add up to something."""
HYPHENATED = {
    "destination": ("desti-", "nation"),
    "destinations": ("desti-", "nations"),
    "distance": ("dis-", "tance"),
    "duplicate": ("dupli-", "cate"),
    "effective": ("effec-", "tive"),
    "entropy": ("en-", "tropy"),
    "induction": ("induc-", "tion"),
    "position": ("posi-", "tion"),
    "previous": ("previ-", "ous"),
    "received": ("recei-", "ved"),
}
"""Where the words of a header may be broken."""


def print_lines(lines: Callable[[int], Iterable[Text]], *, console: Console | None = None) -> None:
    """Print lines that are made for the terminal's width; without colour where the output is none, or by NO_COLOR.

    Raises:
        OSError: the output cannot be written; a BrokenPipeError if its reader has gone.
    """
    out = console or PipeConsole(highlight=False)
    if out.width < 1:  # COLUMNS=0, with which rich prints nothing
        out.width = WIDTH
    for line in lines(out.width):
        out.print(line, soft_wrap=True)


def answer_lines(answer: Answer, *, width: int = WIDTH) -> Iterator[Text]:
    """Yield an answer line by line: its question, its table, what is left out, how exact it is.

    Args:
        answer: to any question.
        width: cells of a line.
    """
    yield from flowing(answer.question, width, style="bold")
    if answer.rows:
        yield from _table(answer, width)
    else:
        yield Text("  none")
    for sentence in (answer.left_out, answer.exactness):
        yield from flowing(sentence, width, style="dim")


def flowing(text: str, width: int, *, style: str = "", first: str = "", indent: str = "") -> Iterator[Text]:
    """Yield a text on lines that fit, broken at its blanks, and inside a word only where that alone is too wide.

    Args:
        text: whatever in it does not print becomes an escape.
        width: cells of a line.
        style: of all of it.
        first: in front of the first line.
        indent: in front of every other.
    """
    width = min(width, PROSE)
    line, begins = first, True
    for word in _words(printable(text), max(1, width - len(indent))):
        longer = line + word if begins else f"{line} {word}"
        if cell_len(longer) > width and not begins:
            yield Text(line.rstrip(), style)
            longer = indent + word
        line, begins = longer, False
    yield Text(line.rstrip(), style)


def _words(text: str, most: int) -> Iterator[str]:
    """Yield the words of a text, those of more cells than fit on a line in pieces."""
    for word in text.split(" "):
        yield from [word] if cell_len(word) <= most else chop_cells(word, most)


@dataclass(frozen=True)
class _Form:
    """How a table is drawn: decimals of its numbers at most, cells between columns, whether headers are broken."""

    decimals: int
    between: int
    broken: bool


FORMS = (_Form(4, 2, broken=False), _Form(4, 2, broken=True), _Form(2, 1, broken=True))
"""From roomy to narrow: the first that fits is taken."""


@dataclass(frozen=True)
class _Laid:
    """A column laid out.

    Attributes:
        name: the lines of its name.
        unit: the lines of its unit.
        cells: one a row, not yet cut or filled to the width.
        width: cells that it takes; at first of words the least.
        text: whether it holds words, and begins on the left.
        shares: what its bars show, one a row; none without bars.
        bar: cells of a full bar.
    """

    name: tuple[str, ...]
    unit: tuple[str, ...]
    cells: tuple[str, ...]
    width: int
    text: bool
    shares: tuple[float, ...] = ()
    bar: int = 0

    @property
    def widest(self) -> int:
        """The cells that it takes where there is room."""
        return max(map(cell_len, (*self.name, *self.unit, *self.cells)))

    def head(self, names: int, units: int) -> list[str]:
        """Return its header, of so many lines of names and of units: the name stands right above the unit."""
        lines = [""] * (names - len(self.name)) + [*self.name, *self.unit] + [""] * (units - len(self.unit))
        return [self._placed(line) + " " * (self.bar + (self.bar > 0)) for line in lines]

    def row(self, place: int) -> Text:
        """Return a cell, and the bar behind it."""
        cell = Text(self._placed(self.cells[place]))
        if self.bar:
            drawn = bar(self.shares[place], max(self.shares), self.bar)
            cell.append(" ").append(drawn.ljust(self.bar), "blue")
        return cell

    def _placed(self, text: str) -> str:
        return fitted(text, self.width) if self.text else " " * (self.width - cell_len(text)) + text


def _table(answer: Answer, width: int) -> Iterator[Text]:
    """Yield a table, in as few blocks as fit; the columns that name a row stand in each of them."""
    form = _form(answer, width)
    keys = len(list(takewhile(lambda column: not column.unit, answer.columns)))
    for place, block in enumerate(_blocks(_laid_out(answer, form), keys, form, width)):
        if place:
            yield Text()
        yield from _lines(_spread(block, width - _total(block, form)), " " * form.between)


def _form(answer: Answer, width: int) -> _Form:
    """Return the roomiest form that fits; for a bar headers are broken, but no decimals given up."""
    laid = [(form, _laid_out(answer, form)) for form in FORMS]
    beside = LEAST_BAR + 1 if any(column.shares for column in laid[0][1]) else 0
    fitting = [form for form, columns in laid if _total(columns, form) + beside * (form.decimals > 2) <= width]
    return next(iter(fitting), FORMS[-1])


def _lines(columns: Sequence[_Laid], between: str) -> Iterator[Text]:
    names, units = (max(map(len, lines)) for lines in zip(*((c.name, c.unit) for c in columns), strict=True))
    for line in zip(*(column.head(names, units) for column in columns), strict=True):
        if any(map(str.strip, line)):
            yield Text(between.join(line).rstrip(), "dim")
    for place in range(len(columns[0].cells)):
        row = Text(between).join(column.row(place) for column in columns)
        row.rstrip()
        yield row


def _laid_out(answer: Answer, form: _Form) -> list[_Laid]:
    barred = next((at for at, column in enumerate(answer.columns) if column.unit), None)
    laid = []
    for at, (column, values) in enumerate(zip(answer.columns, zip(*answer.rows, strict=True), strict=True)):
        one = _column(column, values, form)
        shares = tuple(value if isinstance(value, float) else 0.0 for value in values)
        laid.append(replace(one, shares=shares) if at == barred and column.unit.startswith(BARRED) else one)
    return laid


def _column(column: Column, values: Sequence[Cell], form: _Form) -> _Laid:
    text = any(isinstance(value, str) for value in values)
    decimals = min(form.decimals, _decimals(values))
    cells = tuple(_written(column, value, decimals) for value in values)
    name = _broken_name(column.name) if form.broken else (column.name,)
    unit = _broken_unit(column.unit) if form.broken else (column.unit,)
    one = _Laid(name, unit, cells, 0, text)
    return replace(one, width=min(one.widest, LEAST_TOKEN) if text else one.widest)


def _decimals(values: Sequence[Cell]) -> int:
    """Return how many decimals a column is worth: fewer the larger its largest number is."""
    largest = max((abs(value) for value in values if isinstance(value, float)), default=0.0)
    return 4 if largest < 10 else 2 if largest < 1000 else 1


def _written(column: Column, value: Cell, decimals: int) -> str:
    """Return a cell as it is shown: a token quoted, a hole as a dash."""
    if isinstance(value, float):
        return f"{value:.{decimals}f}"
    if isinstance(value, str):
        return quoted(printable(value)) if column.name == "token" else printable(value)
    return "-" if value is None else str(value)


def _broken_name(name: str) -> tuple[str, ...]:
    return tuple(part for word in name.split("_") for part in HYPHENATED.get(word, (word,)))


def _broken_unit(unit: str) -> tuple[str, ...]:
    lines = [""]
    for word in (part for whole in unit.split() for part in HYPHENATED.get(whole, (whole,))):
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines, word] if lines[-1] and len(longer) > UNIT else [*lines[:-1], longer]
    return tuple(lines)


def _total(columns: Sequence[_Laid], form: _Form) -> int:
    return sum(column.width for column in columns) + form.between * (len(columns) - 1)


def _blocks(columns: Sequence[_Laid], keys: int, form: _Form, width: int) -> list[list[_Laid]]:
    """Return the columns in groups that fit; each begins with the first ones, which name a row."""
    named = list(columns[:keys])
    blocks = [named]
    for column in columns[keys:]:
        longer = [*blocks[-1], column]
        if _total(longer, form) > width and len(blocks[-1]) > keys:
            blocks.append([*named, column])
        else:
            blocks[-1] = longer
    return blocks


def _spread(columns: Sequence[_Laid], spare: int) -> list[_Laid]:
    """Return the columns with the room that is left: for a bar, then for words."""
    room = min(spare, BAR + 1) if any(column.shares for column in columns) else 0
    cells = room - 1 if room > LEAST_BAR else 0
    spare -= cells + (cells > 0)
    found = []
    for column in columns:
        more = min(spare, max(0, min(TOKEN, column.widest) - column.width)) if column.text else 0
        spare -= more
        found.append(replace(column, width=column.width + more, bar=cells if column.shares else 0))
    return found
