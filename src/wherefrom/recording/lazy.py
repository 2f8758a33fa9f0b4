"""Sequences whose items are made when they are asked for (floor 2): of a file, and of positions that have no text.

Takes `Token` and `Tokens` from below. A text of 100,000 tokens, or an image of as many patches, is there without
100,000 objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

from wherefrom.spans import Token, Tokens

Item = TypeVar("Item")


class Lazy(Sequence[Item], Generic[Item]):
    """A sequence whose items are made when they are asked for; equal to any sequence of equal items."""

    def item(self, place: int) -> Item:
        """Return the item at a place from 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        places = range(len(self))[index]  # which also refuses an index that is out of range
        return self.item(places) if isinstance(places, int) else tuple(map(self.item, places))

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str | bytes) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Numbered(Lazy[Token]):
    """Positions that are no tokens of a text, such as the patches of an image: each is its own number.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def ids(self) -> tuple[int, ...]:
        """Their numbers; no two positions are alike."""
        return tuple(range(self._count))

    def __len__(self) -> int:
        return self._count

    def item(self, place: int) -> Token:
        """Return the position at a place from 0: no text, no bytes, an empty span, and the label "[12]"."""
        return Token(place, place, "", b"", (0, 0), f"[{place}]")


def is_numbered(tokens: Tokens) -> bool:
    """Whether tokens are positions without a text."""
    return isinstance(tokens.items, Numbered)


def numbered(count: int) -> Tokens:
    """Return positions that have no text, labelled "[0]", "[1]" and so on."""
    return Tokens("", Numbered(count))
