"""Numbers and ranges as they are typed (floor 7): "0:3,5" is 0, 1, 2 and 5. As in Python, a range's end is not in it.

What is typed is taken apart before anything is loaded; what it stands for is known when the size is: of a text, or of
a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from wherefrom.errors import InputError

PIECE = re.compile(r"([0-9]{1,12})|([0-9]{0,12})\s*:\s*([0-9]{0,12})")
LAST = "last"
METAVAR = "NUMBERS"


@dataclass(frozen=True)
class Numbers:
    """Numbers that were typed, still without the size that closes an open range.

    Attributes:
        option: as it was typed, for errors.
        text: likewise.
        pieces: the first number and the end of each piece; an end of None is the size, a first of None the last one.
    """

    option: str
    text: str
    pieces: tuple[tuple[int | None, int | None], ...]

    @classmethod
    def of(cls, option: str, text: str, *, last: bool = False) -> Numbers:
        """Return what was typed, taken apart.

        Args:
            option: such as "--layers".
            text: numbers and ranges, apart by commas.
            last: whether "last" is one of them.

        Raises:
            InputError: anything else; a range without a number in it.
        """
        found = [_piece(part.strip(), last) for part in text.split(",")]
        if None in found:
            expected = 'numbers and ranges such as "0:3,5", which is 0, 1, 2 and 5' + (', or "last"' if last else "")
            way_out = "They count from 0; a range's end is not part of it, and is behind its start."
            raise InputError(option, expected=expected, given=f'"{text}"', way_out=way_out, text=text)
        return cls(option, text, tuple(piece for piece in found if piece is not None))

    def within(self, what: str, size: int) -> tuple[int, ...]:
        """Return the numbers, ascending, each once.

        Args:
            what: what is numbered, such as "layer".
            size: how many there are.

        Raises:
            InputError: a number, or a range's end, that is beyond them; or none at all.
        """
        ranges = [self._range(start, stop, size) for start, stop in self.pieces]
        if any(numbers.stop > size or not numbers for numbers in ranges):
            self._refuse(what, size)
        return tuple(sorted(set().union(*ranges)))

    def window(self, what: str, size: int) -> range:
        """Return the one range that was typed, or of one number the range with nothing else in it.

        Raises:
            InputError: several pieces, a range's end that is beyond the size, or none at all.
        """
        if len(self.pieces) != 1:
            expected, way_out = "one range, such as 0:20", "Ask for one window at a time."
            raise InputError(self.option, expected=expected, given=f'"{self.text}"', way_out=way_out, text=self.text)
        numbers = self._range(*self.pieces[0], size)
        if numbers.stop > size or not numbers:
            self._refuse(what, size)
        return numbers

    def _range(self, start: int | None, stop: int | None, size: int) -> range:
        return range(size - 1 if start is None else start, size if stop is None else stop)

    def _refuse(self, what: str, size: int) -> NoReturn:
        raise InputError(
            self.option,
            expected=f"numbers from 0 to {size - 1}, and ranges that end at {size} or before",
            given=f'"{self.text}"',
            way_out=f"{what.capitalize()}s are numbered from 0; there are {size:,}.",
            text=self.text,
            size=size,
        )


def _piece(text: str, last: bool) -> tuple[int | None, int | None] | None:
    """Return the first number and the end of a piece; None for what is none, or a range that nothing is in."""
    if last and text == LAST:
        return None, None
    found = PIECE.fullmatch(text)
    if found is None:
        return None
    one, first, end = found.groups()
    if one is not None:
        return int(one), int(one) + 1
    start, stop = int(first or 0), int(end) if end else None
    return (start, stop) if stop is None or start < stop else None
