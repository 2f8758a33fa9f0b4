"""Tokens in their text (floor 1): where each stands, and what a person sees of it.

Takes readable from beside it. Gives `Token` and `Tokens` to `wherefrom.tokens`, which gives them on, and to it the
spans and labels of a tokenizer's numbers. No torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from wherefrom.readable import readable

LONE_BYTE = re.compile("[\udc80-\udcff]")  # how Python's surrogateescape writes an undecodable byte (PEP 383)


@dataclass(frozen=True)
class Token:
    """One token of a prompt.

    Attributes:
        position: its place among the tokens, from 0.
        id: its number in the vocabulary.
        text: its bytes as text; empty where they are only a part of a character.
        data: its bytes.
        span: the characters of the prompt it stands for, from start up to but not including end. Tokens that
            share one character all carry that character's span; a token that is not in the text (a beginning
            mark) has an empty one.
        label: what a person sees (see `readable`); a part of a character says which: ``🙂 1/3``.
    """

    position: int
    id: int
    text: str
    data: bytes
    span: tuple[int, int]
    label: str


@dataclass(frozen=True)
class Tokens(Sequence[Token]):
    """A prompt and its tokens, in order; `items` may be any sequence, one whose tokens are made when asked for too."""

    text: str
    items: Sequence[Token]

    @property
    def ids(self) -> tuple[int, ...]:
        """The vocabulary numbers, one a token."""
        known: tuple[int, ...] | None = getattr(self.items, "ids", None)  # of tokens in a file, without making them
        return tuple(token.id for token in self.items) if known is None else known

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Token: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Token, ...]: ...
    def __getitem__(self, index: int | slice) -> Token | tuple[Token, ...]:
        return tuple(self.items[index]) if isinstance(index, slice) else self.items[index]


def whole_text(data: bytes) -> str | None:
    """Return the bytes as text, or None where they are not whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def exact_spans(text: str, data: Sequence[bytes], inside: Sequence[bool]) -> list[tuple[int, int]]:
    """Character spans of tokens whose bytes make up the text; a mark gets an empty span where it stands."""
    owner = [place for place, letter in enumerate(text) for _ in letter.encode(errors="surrogateescape")]
    spans = []  # owner: byte -> character
    first = 0
    for piece, own in zip(data, inside, strict=True):
        end = first + len(piece) if own else first
        start_character = owner[first] if first < len(owner) else len(text)
        spans.append((start_character, owner[end - 1] + 1 if end > first else start_character))
        first = end
    return spans


def given_spans(text: str, offsets: Sequence[tuple[int, int]], inside: Sequence[bool]) -> list[tuple[int, int]]:
    """Character spans as the tokenizer gives them; a mark, whose own would be (0, 0), is empty where it stands."""
    spans, at, left = [], 0, sum(inside)
    for (start, end), own in zip(offsets, inside, strict=True):
        left -= own
        at = int(end) if own else at if left else len(text)
        spans.append((int(start) if own else at, at))
    return spans


def tokens_at(text: str, ids: Sequence[int], data: Sequence[bytes], spans: Sequence[tuple[int, int]]) -> Tokens:
    """Return tokens with their labels, of their numbers, bytes and spans; a lone byte of the text becomes U+FFFD."""
    labels = _labels(text, ids, data, spans)
    items = (
        Token(position, number, whole_text(piece) or "", piece, span, label)
        for position, (number, piece, span, label) in enumerate(zip(ids, data, spans, labels, strict=True))
    )
    return Tokens(LONE_BYTE.sub("\ufffd", text), tuple(items))


def _labels(text: str, ids: Sequence[int], data: Sequence[bytes], spans: Sequence[tuple[int, int]]) -> list[str]:
    holders: defaultdict[int, list[int]] = defaultdict(list)  # character -> the broken tokens that share it
    for position, (piece, span) in enumerate(zip(data, spans, strict=True)):
        if whole_text(piece) is None:
            for character in range(*span):
                holders[character].append(position)
    return [
        _part_label(text, position, span, holders)
        if whole_text(piece) is None and span[0] < span[1] and not LONE_BYTE.search(text, *span)
        else lone_label(piece, number)
        for position, (number, piece, span) in enumerate(zip(ids, data, spans, strict=True))
    ]


def _part_label(text: str, position: int, span: tuple[int, int], holders: Mapping[int, list[int]]) -> str:
    """Return the label of a token that begins or ends inside a character: which part of which one."""
    label, after_part = "", False
    for character in range(*span):
        sharing = holders[character]
        is_part = len(sharing) > 1
        label += " + " if after_part else ""
        label += readable(text[character])
        label += f" {sharing.index(position) + 1}/{len(sharing)}" if is_part else ""
        after_part = is_part
    return label


def lone_label(data: bytes, number: int) -> str:
    """Return what a person sees for a token that stands in no text."""
    if not data:
        return f"id {number}"
    text = whole_text(data)
    return f"bytes {data.hex(' ').upper()}" if text is None else readable(text)
