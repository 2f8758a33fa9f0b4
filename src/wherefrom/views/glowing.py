"""Figures of a text (floor 6), each token on a ground as strong as what one position reads of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.questions import sources
from wherefrom.questions.asked import NOTHING_LEFT, checked_scope
from wherefrom.questions.exact import permitted_pairs
from wherefrom.questions.moved import moved_in_all
from wherefrom.readable import readable
from wherefrom.recording import Call, Recording
from wherefrom.spans import Tokens
from wherefrom.views.cells import own_texts, shortened
from wherefrom.views.colours import BEHIND_TEXT, INK, QUIET, ramp, step_of
from wherefrom.views.picture import ADVANCE, MONO, Area, Box, Frame, Picture, Words, cells_of
from wherefrom.views.scale import Scale
from wherefrom.views.sheet import MARGIN, Sheet, alone

TEXT_CELLS, TEXT_SIZE, TEXT_LINE = 84, 14.0, 25.0
MOST_TOKENS = 1200
"""Of a longer text the part before the destination is shown."""


@dataclass(frozen=True)
class _Lens:
    """By what a text's sources are coloured, in words.

    Attributes:
        title: of the figure; the reading token goes in.
        unit: below the colours.
        meaning: what a source's colour is.
        whole: what all sources have together.
    """

    title: str
    unit: str
    meaning: str
    whole: str


LENSES = {
    "weight": _Lens(
        "What position {}, {}, reads", "weight", "its weight, the share of the destination's row", "the weight"
    ),
    "moved": _Lens(
        "What moves to position {}, {}", "moved, length", "what it moves, the length |a W_O v|", "what they move"
    ),
}


def figure_of_text(
    recording: Recording,
    destination: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    lens: str = "weight",
    scale: str = "linear",
) -> Picture:
    """Return a text as a picture, each token on a ground as strong as what one position reads of it.

    By weight it is the mean over heads; what is moved, the length of the a W_O v that each adds to the residual stream,
    is added up over them.

    Args:
        recording: of any model.
        destination: the position that reads; the last of the text unless given.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        kind: "self" or "cross".
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module.
        lens: "weight", or "moved" of a recording that keeps the layers' output projections.
        scale: of the colours, "linear" or "log".

    Raises:
        InputError: as `wherefrom.sources`; another `lens` or `scale`; what was moved is not known.
    """
    if lens not in LENSES:
        raise InputError("the lens", expected=" or ".join(LENSES), given=f"{lens!r}", way_out="Choose one.")
    by = LENSES[lens]
    scope = {"layer": layer, "head": head, "kind": kind, "part": part, "repeat": repeat}
    answer = sources(recording, destination, top=sys.maxsize, **scope)  # type: ignore[arg-type]
    heads_asked = checked_scope(recording, **scope)  # type: ignore[arg-type]
    chosen = list(heads_asked.calls(recording))
    first = chosen[0][0]
    readers, tokens = recording.texts_of(first)
    last = min(recording.last_position(first.part), first.destinations - 1)
    at = last if destination is None else check_index("position", destination, len(readers))
    values = moved_in_all(chosen, at) if lens == "moved" else np.zeros(len(tokens))
    for row in answer if lens == "weight" else ():
        source: Any = row["source"]
        values[source] = row["weight"]
    allowed = np.any([_may_read(call, head, at) for call, its_heads in chosen for head in its_heads], axis=0)
    own = kind == "self"
    stop = min(len(tokens), max(MOST_TOKENS, at + 1)) if own else min(len(tokens), MOST_TOKENS)
    shown = range(max(0, stop - MOST_TOKENS), stop)
    drawn = values[shown.start : shown.stop]
    behind, colours = ramp(BEHIND_TEXT, lens), Scale.to(float(drawn.max(initial=0.0)), scale)
    steps = colours.shares(values)
    sheet = Sheet(by.title.format(at, shortened(readers[at].label)))
    pieces = 0
    for position, whole, piece, box in _flow(tokens, shown, sheet):
        if values[position] > 0:
            sheet.add(Area((box,), behind[step_of(float(steps[position]))]))
        x, y, wide, high = box
        cells, colour, reads = cells_of(piece), INK if allowed[position] else QUIET, own and position == at
        sheet.add(Words(x, y + 15.5, piece, TEXT_SIZE, colour, font=MONO, bold=reads, cells=cells))
        if reads:
            sheet.add(Frame((x - 1, y, wide + 2, high), INK, 1.6))
        elif not whole:
            sheet.add(Frame(box, QUIET, 0.6))
            pieces += 1
    sheet.take(sheet.x, sheet.y + 8)
    sheet.legend(colours.high, colours.unit(by.unit), low=colours.low, colours=behind)
    moving = f'How much does each source move to position {at} ("{readers[at].label}")?'
    sheet.note(answer.question if lens == "weight" else f"{moving} {heads_asked.describe(recording, 'sum')}")
    sheet.note(
        f"Colour behind a source: {by.meaning}, {colours.said(drawn, 'source')}. "
        f"{'Framed: the position that reads. ' if own else ''}"
        f"{'Boxed: a later piece of the character before, or a mark without characters. ' if pieces else ''}"
        f"{'Grey: it may not read this.' if not allowed[shown.start : shown.stop].all() else ''}"
    )
    if len(shown) < len(tokens):
        beside = 1.0 - float(drawn.sum()) / (float(values.sum()) or 1.0)
        sheet.note(
            f"Not shown: {_others(shown, len(tokens))} of {len(tokens):,} tokens, with {beside:.3g} of {by.whole}."
        )
        return sheet.done(recording, answer.exactness, answer.left_out.removeprefix(NOTHING_LEFT).strip())
    return sheet.done(recording, answer.exactness, answer.left_out)


def _others(shown: range, length: int) -> str:
    """Return which positions of a text are not among those shown, in words."""
    parts = [f"the first {shown.start:,}"] if shown.start else []
    parts += [f"the last {length - shown.stop:,}"] if shown.stop < length else []
    return " and ".join(parts)


def _may_read(call: Call, head: int, at: int) -> NDArray[np.bool_]:
    """Return which sources [S] a destination may read."""
    permitted: NDArray[np.bool_] = permitted_pairs(call, head, range(at, at + 1), range(call.sources))[0]
    return permitted


def _flow(tokens: Tokens, shown: range, sheet: Sheet) -> Iterator[tuple[int, bool, str, Box]]:
    """Yield the tokens of a text in lines: whether it begins a character, what is seen of it, and its box."""
    wide = ADVANCE * TEXT_SIZE
    cells, y = 0, sheet.y
    for run in _unbroken(zip(shown, own_texts(tokens, shown.start), strict=False)):
        pieces = [alone(readable(own) if own else tokens[position].label) for position, own in run]
        room = sum(map(cells_of, pieces))
        if cells and TEXT_CELLS - cells < room <= TEXT_CELLS:
            cells, y = 0, y + TEXT_LINE
        for (position, own), piece in zip(run, pieces, strict=True):
            size = cells_of(piece)
            if cells and cells + size > TEXT_CELLS:
                cells, y = 0, y + TEXT_LINE
            box = MARGIN + cells * wide, y, size * wide, TEXT_LINE - 4
            cells += size
            sheet.take(box[0] + box[2], y + TEXT_LINE)
            yield position, bool(own), piece, box
            if "\n" in own:
                cells, y = 0, y + TEXT_LINE


def _unbroken(tokens: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of tokens between which a line may be broken: at blanks."""
    run: list[tuple[int, str]] = []
    for position, own in tokens:
        if run and (own[:1].isspace() or run[-1][1][-1:].isspace()):
            yield run
            run = []
        run.append((position, own))
    if run:
        yield run
