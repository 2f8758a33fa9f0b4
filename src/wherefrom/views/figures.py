"""Figures for a paper (floor 6): a head's map, all heads at a glance, and a text with what a position reads.

Each is drawn from what the terminal and the explorer show: the answers of `wherefrom.heads` and `wherefrom.sources`,
and the tiles of a head's map. What the colours mean, their range and unit, and what is not shown, stands below it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.questions import heads, sources
from wherefrom.questions.answer import Column
from wherefrom.questions.asked import NOTHING_LEFT, checked_scope, sink_share
from wherefrom.questions.exact import permitted_pairs
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import kind_of
from wherefrom.questions.maps import EMPTY, WEIGHTS, HeadMap, Tile
from wherefrom.questions.moved import moved_in_all
from wherefrom.readable import LEFT_TO_RIGHT_MARK, readable
from wherefrom.recording import Call, Recording, check_recording
from wherefrom.spans import Tokens
from wherefrom.views import picture
from wherefrom.views.cells import count, fitted, own_texts, shortened
from wherefrom.views.colours import BEHIND_TEXT, HAIRLINE, INK, QUIET, STEPS, ramp, step_of
from wherefrom.views.picture import ADVANCE, MONO, Area, Box, Frame, Picture, Words, cells_of, width_of
from wherefrom.views.sheet import MARGIN, MARKS, Sheet, head_of

Place: TypeAlias = tuple[int, int]
"""A layer and a head."""
MAP_SIDE, LARGEST_CELL = 560.0, 24.0
NAMED_FROM = 11.0
"""A map's cells of this size or more have the tokens' names beside them."""
NAME_CELLS = 14
WHAT_A_KIND_IS = (
    "A kind says where most of a head's weight lies in this text: 30 % or more of its rows, on the mean, on what "
    "followed the same token before (induction), on the token before, on the same token before (duplicate) or on "
    "itself; else half of it on the first token (sink); else local, at most eight tokens back, or broad. Induction and "
    "duplicate are about repeated tokens, five at least. It does not say what the head is for."
)
TEXT_CELLS, TEXT_SIZE, TEXT_LINE = 84, 14.0, 25.0
MOST_TOKENS = 1200
"""Of a longer text the part before the destination is shown."""
SCALES = ("linear", "log")
DECADES = 4
"""Powers of ten below its top that a logarithmic scale shows, as the explorer's does."""
DIRECTION = "A row is the token that reads, a column the token it reads from."


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


def figure_of_map(
    recording: Recording,
    layer: int,
    head: int,
    *,
    kind: str = "self",
    part: str | None = None,
    repeat: int = 0,
    of: str = "largest",
    scale: str = "linear",
) -> Picture:
    """Return a head's map of weights as a picture; of more than 256 positions in blocks.

    Args:
        recording: of any model.
        layer: from 0.
        head: from 0.
        kind: "self" or "cross".
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of the layer's module.
        of: whether a block shows its "largest" or its "mean" weight.
        scale: of the colours, "linear" or "log".

    Raises:
        InputError: no such layer, head or execution; another `of` or `scale`.
    """
    if of not in ("largest", "mean"):
        raise InputError("a block's value", expected="largest or mean", given=f"{of!r}", way_out="Choose one.")
    call = check_recording(recording).call(layer, kind, part, repeat)
    map_ = HeadMap(call, head)
    tile = map_.tile(map_.levels - 1, 0, 0)
    values = tile.largest if of == "largest" else tile.mean
    sinks = call.sinks is not None and tile.block == 1 and call.all_rows
    shares = np.asarray(sink_share(call, head, range(call.destinations) if sinks else range(0)), np.float32)
    drawn = values[tile.marks == WEIGHTS]
    colours = _Scale.to(max(float(drawn.max(initial=0.0)), float(shares.max(initial=0.0))), scale)
    rows, columns = values.shape
    cell = max(2.0, min(LARGEST_CELL, MAP_SIDE // max(rows, columns)))
    named = tile.block == 1 and cell >= NAMED_FROM
    reading, read = recording.texts_of(call)
    names = _name_room(reading) if named else 38.0, _name_room(read) if named else 22.0
    strip = 2 * cell if sinks else 0.0
    sheet = Sheet(f"Weights of head {head} of {_called(recording, call.layer, kind, call.part, repeat)}")
    left, top = MARGIN + names[0] + strip, sheet.y + names[1]
    sheet.add(*_cells(tile.marks, colours.shares(values), left, top, cell))
    if sinks:
        marks = np.where((tile.marks == EMPTY).any(axis=1, keepdims=True), EMPTY, WEIGHTS).astype(np.uint8)
        sheet.add(*_cells(marks, colours.shares(shares[:, None]), left - strip, top, cell))
        sheet.add(Words(left - cell, top - 6, "sink", size=9, anchor="end", colour=QUIET))
    sheet.add(Frame((left, top, columns * cell, rows * cell), HAIRLINE))
    if named:
        sheet.add(*_names(reading, read, left - strip - 4, left, top, cell))
    else:
        sheet.add(*_ticks(tile, left - strip - 4, left, top, cell))
    sheet.take(left + columns * cell + 12, top + rows * cell + 14)
    sheet.legend(
        colours.high, colours.unit("weight"), [mark for mark in MARKS if (tile.marks == mark).any()], low=colours.low
    )
    block = f"Each cell is a block of {tile.block} destinations by {tile.block} sources: the {of} weight in it. "
    sheet.note(f"{DIRECTION} Mask: {call.mask.describe()}.")
    sheet.note(
        f"{block if tile.block > 1 else ''}Colour: weight, the share of the destination's row, "
        f"{colours.said(np.append(drawn, shares), 'cell')}."
    )
    if sinks:
        sheet.note("The strip on the left is the sink's share of each row, which is no token's.")
    elif call.sinks is not None:
        sheet.note("The sink's share of each row is not drawn.")
    return sheet.done(recording, tile.exactness)


def figure_of_heads(
    recording: Recording, by: str = "kind", *, part: str | None = None, repeat: int | None = None
) -> Picture:
    """Return every head of every layer as a cell of a picture.

    Args:
        recording: of any model.
        by: "kind", what most of the head's weight lies on in this text, or a column of `wherefrom.heads`.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module, where some ran several times.

    Raises:
        InputError: as `wherefrom.heads`; no such column; several executions and none named.
    """
    answer = heads(check_recording(recording), part=part, repeat=repeat)
    rows = {(_whole(row["layer"]), _whole(row["head"])): row for row in answer}
    if len(rows) < len(answer):
        way_out = "Name one, such as repeat=0, or --repeat 0."
        raise InputError("the repeat", expected="one execution of each module", given="several", way_out=way_out)
    columns = {column.name: column for column in answer.columns if column.name not in ("layer", "head", "repeat")}
    if by != "kind" and by not in columns:
        expected = f"kind, {', '.join(columns)}"
        raise InputError("what heads are coloured by", expected=expected, given=f"{by!r}", way_out="Choose one.")
    sheet = Sheet(f"Heads by {by}: {recording.model.name}, {count(len(recording), 'token')}")
    boxes = _grid(sheet, recording, part, list(rows))
    if by == "kind":
        repeats = repeats_of(recording, recording.calls_of("self", part)[0])
        kinds = {
            place: kind_of({name: own for name, own in row.items() if isinstance(own, int | float)}, repeats).name
            for place, row in rows.items()
        }
        for place, kind in kinds.items():
            sheet.add(*head_of(kind, boxes[place]))
        sheet.kinds(Counter(kinds.values()))
        sheet.note(WHAT_A_KIND_IS)
    else:
        _coloured(sheet, boxes, {place: row[by] for place, row in rows.items()}, columns[by])
    return sheet.done(recording, answer.exactness, answer.left_out)


def _whole(value: Any) -> int:
    return int(value)


def _grid(sheet: Sheet, recording: Recording, part: str | None, heads: list[Place]) -> dict[Place, Box]:
    """Draw the numbers of layers and heads, and why a layer has none; return the place of each head."""
    layers, most, gaps = recording.layers_of(part), 1 + max(head for _, head in heads), recording.gaps_of(part)
    cell = min(LARGEST_CELL, max(10.0, MAP_SIDE // most))
    left, top = MARGIN + 48, sheet.y + 20
    sheet.add(Words(left - 8, top - 6, "layer", size=9, anchor="end", colour=QUIET))
    sheet.add(Words(left, top - 18, "head", size=9, colour=QUIET))
    for head in range(0, most, 1 if cell >= 16 else 4):
        sheet.add(Words(left + (head + 0.5) * cell - 1, top - 6, str(head), size=9, anchor="middle", colour=QUIET))
    held = {layer for layer, _ in heads}
    for layer in range(layers):
        y = top + layer * cell + cell / 2 + 2.5
        sheet.add(Words(left - 8, y, str(layer), size=9, anchor="end", colour=QUIET))
        if layer not in held:
            why = gaps[layer].what if layer in gaps else "not recorded as a whole"
            sheet.add(Words(left, y, why, size=9, colour=QUIET))
    sheet.take(left + most * cell, top + layers * cell + 14)
    return {(layer, head): (left + head * cell, top + layer * cell, cell - 2, cell - 2) for layer, head in heads}


def _coloured(sheet: Sheet, boxes: dict[Place, Box], values: dict[Place, Any], column: Column) -> None:
    """Draw heads by a column of their answer, and say which it is."""
    known = [float(value) for value in values.values() if value is not None]
    shares = column.unit.startswith("share") or not known
    low, high = (0.0, 1.0) if shares else (min(0.0, *known), max(known))
    for place, value in values.items():
        if value is None:
            sheet.add(Area((boxes[place],), picture.UNRECORDED), Frame(boxes[place], HAIRLINE))
        else:
            colour = ramp()[step_of((float(value) - low) / ((high - low) or 1.0))]
            sheet.add(Area((boxes[place],), colour), Frame(boxes[place], HAIRLINE, 0.5))
    sheet.legend(high, column.name, low=low)
    unit = f"{column.unit}, " if column.unit else ""
    sheet.note(f"Colour: {column.name}, {unit}linear, {low:.3g} to {high:.3g}; nothing is clipped.")
    sheet.note(f"{column.meaning[:1].upper()}{column.meaning[1:]}.")
    if len(known) < len(values):
        sheet.note(f"Dots: {count(len(values) - len(known), 'head')} without one.")


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
        values[_whole(row["source"])] = row["weight"]
    allowed = np.any([_may_read(call, head, at) for call, its_heads in chosen for head in its_heads], axis=0)
    own = kind == "self"
    stop = min(len(tokens), max(MOST_TOKENS, at + 1)) if own else min(len(tokens), MOST_TOKENS)
    shown = range(max(0, stop - MOST_TOKENS), stop)
    drawn = values[shown.start : shown.stop]
    behind, colours = ramp(BEHIND_TEXT, lens), _Scale.to(float(drawn.max(initial=0.0)), scale)
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


@dataclass(frozen=True)
class _Scale:
    """From values to shares of a ramp of colours.

    Attributes:
        low: what is drawn as the least: 0 of a linear scale.
        high: what is drawn as the most.
        known: whether there is a value above 0.
    """

    low: float
    high: float
    known: bool

    @classmethod
    def to(cls, most: float, kind: str) -> _Scale:
        """Return a scale up to a value; a logarithmic one shows some powers of ten below it."""
        if kind not in SCALES:
            raise InputError("the scale", expected=" or ".join(SCALES), given=f"{kind!r}", way_out="Choose one.")
        high = most if most > 0 else 1.0
        return cls(high / 10**DECADES if kind == "log" else 0.0, high, most > 0)

    def shares(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return what share of the ramp each value has; of what is no number, 0."""
        found: NDArray[np.float64] = np.nan_to_num(values).astype(np.float64) / self.high
        if self.low > 0:
            found = 1 + np.log10(np.maximum(found, 10.0**-DECADES)) / DECADES
        return found

    def unit(self, what: str) -> str:
        """Return what a legend says of it."""
        return f"{what}, log scale" if self.low else what

    def said(self, values: NDArray[Any], one: str) -> str:
        """Return what it is in words, and how many of the values it does not tell apart."""
        largest = f"{self.high:.3g}, {'the largest here' if self.known else 'though all are 0'}"
        if self.low == 0.0:
            return f"linear, 0 to {largest}; nothing is clipped"
        under = int(((values > 0) & (values < self.low)).sum())
        below = f"{count(under, one)} with less, above 0, {'is' if under == 1 else 'are'} drawn as the least"
        return f"logarithmic, {self.low:.3g} to {largest}; {below if under else 'nothing is clipped'}"


def _called(recording: Recording, layer: int, kind: str, part: str, repeat: int) -> str:
    """Return whose attention it is, in words."""
    other = "" if kind == "self" and part == recording.model.part else f" ({part}, {kind}-attention)"
    return f"layer {layer}{f', execution {repeat},' if repeat else ''}{other}, {recording.model.name}"


def _cells(
    marks: NDArray[np.uint8], shares: NDArray[np.float64], left: float, top: float, cell: float
) -> Iterator[Area]:
    """Yield a map's cells: an area for each colour and each mark, neighbours in a row as one box."""
    kinds = np.where(marks == WEIGHTS, np.floor(shares * (STEPS - 1) + 0.5), -1.0 - marks).astype(int)
    boxes: dict[int, list[Box]] = {}
    for row, line in enumerate(kinds):
        starts = np.flatnonzero(np.diff(line, prepend=line[0] - 1))
        for start, stop in zip(starts, [*starts[1:], len(line)], strict=True):
            box = left + start * cell, top + row * cell, (stop - start) * cell, cell
            boxes.setdefault(int(line[start]), []).append(tuple(map(float, box)))  # type: ignore[arg-type]
    for kind, own in sorted(boxes.items()):
        yield Area(tuple(own), ramp()[min(kind, STEPS - 1)] if kind >= 0 else MARKS[-1 - kind])


def _name(tokens: Tokens, position: int) -> str:
    return fitted(_alone(tokens[position].label), NAME_CELLS, pad=False)


def _alone(label: str) -> str:
    """Return a label without the mark that keeps the rest of its line in order: here it has none."""
    return label.replace(LEFT_TO_RIGHT_MARK, "")


def _name_room(tokens: Tokens) -> float:
    return 34 + max(width_of(_name(tokens, position), 10) for position in range(len(tokens)))


def _names(reading: Tokens, read: Tokens, right: float, left: float, top: float, cell: float) -> Iterator[Words]:
    """Yield the tokens' names and positions along both sides."""
    for position in range(len(reading)):
        y = top + (position + 0.5) * cell + 3.5
        yield Words(right, y, f"{_name(reading, position)}  {position}", size=10, anchor="end")
    for position in range(len(read)):
        x = left + (position + 0.5) * cell + 3.5
        yield Words(x, top - 6, f"{position}  {_name(read, position)}", size=10, turned=True)


def _ticks(tile: Tile, right: float, left: float, top: float, cell: float) -> Iterator[Words]:
    """Yield positions along both sides, a round number apart."""
    each = cell / tile.block
    step = next(step for power in range(9) for step in (10**power, 2 * 10**power, 5 * 10**power) if step * each >= 44)
    for position in tile.destinations[::step]:
        yield Words(right, top + position * each + 4, f"{position:,}", size=9, anchor="end", colour=QUIET)
    for position in tile.sources[::step]:
        yield Words(left + position * each, top - 6, f"{position:,}", size=9, anchor="middle", colour=QUIET)


def _flow(tokens: Tokens, shown: range, sheet: Sheet) -> Iterator[tuple[int, bool, str, Box]]:
    """Yield the tokens of a text in lines: whether it begins a character, what is seen of it, and its box."""
    wide = ADVANCE * TEXT_SIZE
    cells, y = 0, sheet.y
    for run in _unbroken(zip(shown, own_texts(tokens, shown.start), strict=False)):
        pieces = [_alone(readable(own) if own else tokens[position].label) for position, own in run]
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
