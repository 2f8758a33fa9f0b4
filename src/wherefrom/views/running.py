"""What a model read, as running text (floor 6): a trace's text, its strongest sources, the token it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from wherefrom.tokens import LEFT_TO_RIGHT_MARK, Tokens, readable
from wherefrom.views.cells import LABEL, fitted, isolated, shortened, words

if TYPE_CHECKING:  # drawing a trace needs no torch
    from wherefrom.evidence.traced import Trace

ROOM = 200
"""Cells of the text that are shown, about three lines; its end, or what stands around a masked token."""
WRITTEN = 60
"""Cells of a second text, the one beside the sources."""


def running_text(trace: Trace, width: int) -> Iterator[Text]:
    """Yield the text whose tokens are the sources, then what stands beside it, and the target behind an arrow.

    Args:
        trace: from `wherefrom.trace`.
        width: cells of a line.
    """
    sources, strong = trace.source_tokens, {carried.source for carried in trace.carried}
    masked = trace.position if trace.mask_id is not None else None
    lines = _lines(sources, strong, masked, width)
    aim = Text.assemble((" → ", "dim"), (shortened(trace.aim.label), "bold"))
    if trace.recording.source is not None:
        lines = _with_beside(trace, lines, width)
    if lines[-1].cell_len + aim.cell_len > width:
        lines.append(Text(" "))
    yield from (*lines[:-1], lines[-1].append_text(aim))


def _with_beside(trace: Trace, lines: list[Text], width: int) -> list[Text]:
    """Return both texts of an encoder-decoder, the one that is written last: the target goes on from it."""
    room = min(WRITTEN, width - 20)
    if trace.scope.kind == "cross":
        return [*lines, Text.assemble(("  written so far: ", "dim"), _end(trace.tokens, room))]
    assert trace.recording.source is not None, "the caller has looked"
    read = Text.assemble(("  the encoder read: ", "dim"), _end(trace.recording.source, room))
    return [read, Text("  written so far:", "dim"), *lines]


def _end(tokens: Tokens, most: int) -> str:
    """Return the end of a text, on one line."""
    text = readable(tokens.text)
    while cell_len(text) > most:
        text = text[1:]
    return text if text == readable(tokens.text) else f"…{text}"


def _lines(tokens: Tokens, strong: set[int], masked: int | None, width: int) -> list[Text]:
    """Return the text's end, or its surroundings of a masked token, broken into lines; strong sources stand out."""
    pieces = _pieces(tokens, strong, masked)
    first, stop = _window(pieces, masked)
    lines: list[list[tuple[str, str]]] = [[("… ", "dim")] if first else []]
    left = width - 2 - sum(cell_len(piece) for piece, _ in lines[0])
    for word in words([(piece, style) for piece, style, _ in pieces[first:stop]]):
        whole = sum(cell_len(piece) for piece, _ in word)
        fits_alone = whole <= width - 2
        for place, (piece, style) in enumerate(word):
            if (place == 0 and fits_alone and whole > left) or cell_len(piece) > left:
                lines.append([])
                left = width - 2
                piece = piece.removeprefix(" ") if place == 0 else piece  # the line's end is a blank itself
            lines[-1].append((piece, style))
            left -= cell_len(piece)
    if stop < len(pieces):
        lines[-1].append((" …", "dim"))
    return [Text.assemble("  ", *isolated(line)) for line in lines]


def _window(pieces: list[tuple[str, str, int]], masked: int | None) -> tuple[int, int]:
    """Return which pieces are shown: the last ones that fit, or as many on both sides of a masked token."""
    sizes = [cell_len(piece) for piece, _, _ in pieces]
    stop = len(pieces)
    if masked is not None:
        at = next((place for place, (_, _, token) in enumerate(pieces) if token >= masked), stop)
        room = ROOM // 2
        stop = at
        while stop < len(pieces) and room >= sizes[stop]:
            room -= sizes[stop]
            stop += 1
    first, room = stop, ROOM
    while first > 0 and room >= sizes[first - 1]:
        first -= 1
        room -= sizes[first]
    return first, stop


def _pieces(tokens: Tokens, strong: set[int], masked: int | None) -> list[tuple[str, str, int]]:
    """Return the text as (text, style, token); tokens that share a character show it once."""
    pieces, end = [], 0
    for token in tokens:
        start, stop = max(end, token.span[0]), token.span[1]
        if stop > start:
            text = tokens.text[end:stop] if not tokens.text[end:start].strip() else tokens.text[start:stop]
            label = fitted(readable(text).removesuffix(LEFT_TO_RIGHT_MARK), LABEL, pad=False)
            style = "bold" if token.position == masked else "bold red" if token.position in strong else ""
            pieces.append((label, style, token.position))
            end = stop
    return pieces
