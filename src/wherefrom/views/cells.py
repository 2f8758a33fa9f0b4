"""Labels, numbers and bars measured in terminal cells (floor 6), for the view that draws a trace."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from wherefrom.readable import RIGHT_TO_LEFT
from wherefrom.spans import Tokens

LABEL = 40
"""No label in running text is wider: vocabularies hold lines of 80 signs as one token."""
EIGHTHS = " ▏▎▍▌▋▊▉"
HARD_BLANK = "\u00a0"
"""Stands for a blank at which no line is broken; labels never hold one, `readable` escapes it."""
ISOLATE, END_OF_ISOLATE = "\u2068", "\u2069"
Piece = tuple[str, str]
"""Some text and its style."""


def quoted(label: str) -> str:
    """Return a token's label between quotes, so that its blanks are seen."""
    return f'"{label}"'


def count(number: int, word: str) -> str:
    """Return a number and what is counted, in the plural where it is one."""
    return f"{number} {word}" if number == 1 else f"{number:,} {word}s"


def solid(text: str) -> str:
    """Return a text at whose blanks no line is broken."""
    return text.replace(" ", HARD_BLANK)


def shortened(label: str) -> str:
    """Return a label quoted and not too wide."""
    return fitted(quoted(label), LABEL, pad=False)


def named(label: str) -> str:
    """Return a label as it stands in running text: quoted, not too wide, on one line."""
    return solid(shortened(label))


def percent(share: float) -> str:
    """Return a share in percent; one too small to be seen is not called zero."""
    return f"{100 * share:.1f}%" if share >= 0.0005 or share == 0 else "<0.1%"


def decimals(largest: float) -> int | None:
    """Return how many decimals show the largest number of a column with three digits; None: no fixed number does."""
    return next((digits for start, digits in ((1, 2), (0.1, 3), (0.01, 4)) if largest >= start), None)


def signed(nats: float, largest: float) -> str:
    """Return nats with the decimals that the largest of their column needs; what rounds to zero has no sign."""
    digits = decimals(largest)
    text = f"{nats:+.1e}" if digits is None else f"{nats:+.{digits}f}"
    return text if float(text) else f"{0:.{digits or 2}f}"


def bar(value: float, largest: float, cells: int) -> str:
    """Return a bar, drawn to an eighth of a cell."""
    eighths = round(8 * cells * value / largest) if largest > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def own_texts(tokens: Tokens, first: int = 0) -> Iterator[str]:
    """Yield the characters that each token adds to the running text, from one on; a later piece of one adds none."""
    end = tokens[first - 1].span[1] if first else 0
    for position in range(first, len(tokens)):
        start, stop = tokens[position].span
        yield tokens.text[max(end, start) : stop]
        end = max(end, stop)


def fitted(label: str, width: int, *, pad: bool = True) -> str:
    """Return a label in at most (with `pad`, exactly) `width` cells; what does not fit is cut, visibly."""
    if cell_len(label) > width:
        label = set_cell_size(label, width - 6).rstrip() + "…" + _end(label, 5)
    return set_cell_size(label, width) if pad else label


def _end(label: str, width: int) -> str:
    end = ""
    for character in reversed(label):
        if cell_len(character + end) > width:
            break
        end = character + end
    return end


def flow(text: str, width: int, style: str = "", *, indent: str = "") -> Iterator[Text]:
    """Yield a text on lines that fit, broken at its blanks; what `solid` made stays together."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else indent + word
        if line and cell_len(longer) > width:
            yield Text(line.replace(HARD_BLANK, " "), style)
            longer = indent + word
        line = longer
    yield Text(line.replace(HARD_BLANK, " "), style)


def words(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces from one that begins with a blank up to the next: what a line had better keep together."""
    word: list[Piece] = []
    for piece in pieces:
        if word and (piece[0].startswith(" ") or word[-1][0].endswith(" ")):
            yield word
            word = []
        word.append(piece)
    yield word


def isolated(line: list[Piece]) -> list[Piece]:
    """Return the line so that right-to-left letters in it run their own way and reorder nothing outside it."""
    letters = "".join(piece for piece, _ in line)
    if any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for letter in letters):
        return [(ISOLATE, ""), *line, (END_OF_ISOLATE, "")]
    return line
