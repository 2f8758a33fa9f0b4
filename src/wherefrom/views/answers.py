"""Answers on a terminal (floor 6): a question, its table, what that leaves out and how exact it is.

It takes an `Answer` and gives lines that fit a width, broken here and not by the terminal. A table keeps every column,
and every name whole: where it is too wide its names take turns on two lines, then its numbers get two decimals, then it
is cut between columns into blocks that stand below one another. A bar is never alone, its number is beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
"""A unit of more cells is broken at a blank, in all forms but the roomiest."""
BARRED = ("share", "rows")
"""A bar stands behind the first column that has a unit, if that begins so: numbers from 0 that add up to something."""
MEAN = ", mean over "
"""What stands in a column's meaning before what its means are over."""


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


def answer_lines(answer: Answer, *, width: int = WIDTH, without: Collection[str] = ()) -> Iterator[Text]:
    """Yield an answer line by line: its question, its table, what its means are over, what is left out, how exact.

    Last what the recording does not hold, if anything.

    Args:
        answer: to any question.
        width: cells of a line.
        without: names of columns that are not shown, since they would repeat the question on every row.
    """
    yield from flowing(answer.question, width, style="bold")
    if answer.rows:
        yield from _table(_without(answer, without), width)
        if means := _means(answer.columns):
            yield from flowing(means, width, style="dim")
    else:
        yield Text("  none")
    for sentence in (answer.left_out, answer.exactness, *answer.said_of_gaps):
        yield from flowing(sentence, width, style="dim")


def _without(answer: Answer, names: Collection[str]) -> Answer:
    kept = [at for at, column in enumerate(answer.columns) if column.name not in names]
    columns = tuple(answer.columns[at] for at in kept)
    return replace(answer, columns=columns, rows=tuple(tuple(row[at] for at in kept) for row in answer.rows))


def _means(columns: Sequence[Column]) -> str:
    """Return what the means of a table are over, by the columns' meanings; nothing where it is the same of all."""
    names: dict[str, list[str]] = {}
    for column in columns:
        _, found, over = column.meaning.partition(MEAN)
        if found:
            names.setdefault(over, []).append(column.name)
    said = "; ".join(f"{', '.join(named)} over {over}" for over, named in names.items())
    return f"Means: {said}." if len(names) > 1 else ""


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
    """How a table is drawn.

    Attributes:
        decimals: of its numbers, at most.
        between: cells between columns.
        folded: whether long units are broken at their blanks.
        turns: whether names that stand above a unit may be wider than their columns, and take turns on two lines.
    """

    decimals: int
    between: int
    folded: bool
    turns: bool


FORMS = (
    _Form(4, 2, folded=False, turns=False),
    _Form(4, 2, folded=True, turns=True),
    _Form(2, 1, folded=True, turns=False),
    _Form(2, 1, folded=True, turns=True),
)
"""From roomy to narrow: the first that fits is taken. In several blocks names have room enough on one line."""


@dataclass(frozen=True)
class _Laid:
    """A column laid out.

    Attributes:
        name: as it stands above, whole.
        unit: the lines of its unit.
        cells: one a row, not yet cut or filled to the width.
        width: cells that it takes; at first of words the least.
        text: whether it holds words, and begins on the left.
        shares: what its bars show, one a row; none without bars.
        bar: cells of a full bar.
        raised: whether its name stands a line higher, above the names beside it.
    """

    name: str
    unit: tuple[str, ...]
    cells: tuple[str, ...]
    width: int
    text: bool
    shares: tuple[float, ...] = ()
    bar: int = 0
    raised: bool = False

    @property
    def beneath(self) -> int:
        """The cells that it takes below its name."""
        return max(map(cell_len, (*self.unit, *self.cells)))

    @property
    def widest(self) -> int:
        """The cells that it takes where there is room."""
        return max(len(self.name), self.beneath)

    @property
    def name_begins(self) -> int:
        """Where its name begins, in cells from where it begins itself; a name that is wider does so further left."""
        return 0 if self.text else self.width - len(self.name)

    def units(self, lines: int) -> list[str]:
        """Return so many lines of its unit."""
        filled = [*self.unit, *[""] * (lines - len(self.unit))]
        return [self._placed(line) + " " * (self.bar + (self.bar > 0)) for line in filled]

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
    for place, block in enumerate(_blocks(answer, form, width)):
        if place:
            yield Text()
        yield from _lines(_spread(block, width - _total(block, form)), form.between)


def _form(answer: Answer, width: int) -> _Form:
    """Return the roomiest form of those in the fewest blocks; for a bar names take turns, but no decimals go."""
    barred = any(column.shares for column in _laid_out(answer, FORMS[0]))
    room = {form: width - (LEAST_BAR + 1) * (barred and form.decimals > 2) for form in FORMS}
    blocks = {form: len(_blocks(answer, form, room[form])) for form in FORMS}
    return min(FORMS, key=lambda form: (blocks[form], blocks[form] > 1 and form.turns))


def _lines(columns: Sequence[_Laid], between: int) -> Iterator[Text]:
    units = max(len(column.unit) for column in columns)
    beneath = zip(*(column.units(units) for column in columns), strict=True)
    blank = " " * between
    for line in (*_names(columns, between), *(blank.join(line) for line in beneath)):
        if line.strip():
            yield Text(line.rstrip(), "dim")
    for place in range(len(columns[0].cells)):
        row = Text(blank).join(column.row(place) for column in columns)
        row.rstrip()
        yield row


def _names(columns: Sequence[_Laid], between: int) -> tuple[str, str]:
    """Return the two lines of names."""
    upper = lower = ""
    begins = 0
    for column in columns:
        at = begins + column.name_begins
        if column.raised:
            upper = upper.ljust(at) + column.name
        else:
            lower = lower.ljust(at) + column.name
        begins += column.width + column.bar + (column.bar > 0) + between
    return upper, lower


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
    unit = _folded(column.unit) if form.folded else (column.unit,)
    one = _Laid(column.name, unit, cells, 0, text)
    width = min(one.widest, LEAST_TOKEN) if text else one.beneath if form.turns and column.unit else one.widest
    return replace(one, width=width)


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


def _folded(unit: str) -> tuple[str, ...]:
    lines = [""]
    for word in unit.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines, word] if lines[-1] and len(longer) > UNIT else [*lines[:-1], longer]
    return tuple(lines)


def _total(columns: Sequence[_Laid], form: _Form) -> int:
    return sum(column.width for column in columns) + form.between * (len(columns) - 1)


def _blocks(answer: Answer, form: _Form, width: int) -> list[list[_Laid]]:
    """Return the columns in groups that fit; each begins with the first ones, which name a row."""
    columns = _laid_out(answer, form)
    keys = len(list(takewhile(lambda column: not column.unit, answer.columns)))
    named = columns[:keys]
    blocks = [_in_turns(named, form)]
    for column in columns[keys:]:
        longer = _in_turns([*blocks[-1], column], form)
        if _total(longer, form) > width and len(blocks[-1]) > keys:
            blocks.append(_in_turns([*named, column], form))
        else:
            blocks[-1] = longer
    return blocks


def _in_turns(columns: Sequence[_Laid], form: _Form) -> list[_Laid]:
    """Return the columns with each name on the lower of two lines on which it is clear of the names before it.

    Where there is none the column gets wider. Names that are clear of one another stay so when columns get wider.
    """
    ends, begins, found = [-1, -1], 0, []
    for column in columns:
        at = begins + column.name_begins
        line = next((line for line in (0, 1) if ends[line] < at), ends.index(min(ends)))
        wider = max(0, ends[line] + 1 - at)
        ends[line] = at + wider + len(column.name)
        found.append(replace(column, width=column.width + wider, raised=line == 1))
        begins += column.width + wider + form.between
    return found


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
