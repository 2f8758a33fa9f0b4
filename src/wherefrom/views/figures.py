"""Figures for a paper (floor 6): a head's map, and all heads at a glance.

Each is drawn from what the terminal and the explorer show: the answers of `wherefrom.heads` and `wherefrom.sources`,
and the tiles of a head's map. What the colours mean, their range and unit, and what is not shown, stands below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError
from wherefrom.questions import heads
from wherefrom.questions.answer import Column
from wherefrom.questions.asked import sink_share
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import kind_of
from wherefrom.questions.maps import EMPTY, WEIGHTS, HeadMap, Tile
from wherefrom.recording import Recording, check_recording
from wherefrom.spans import Tokens
from wherefrom.views import picture
from wherefrom.views.cells import count, fitted
from wherefrom.views.colours import HAIRLINE, QUIET, STEPS, ramp, step_of
from wherefrom.views.picture import Area, Box, Frame, Picture, Words, width_of
from wherefrom.views.scale import Scale
from wherefrom.views.sheet import MARGIN, MARKS, Sheet, alone, head_of

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
DIRECTION = "A row is the token that reads, a column the token it reads from."


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
    colours = Scale.to(max(float(drawn.max(initial=0.0)), float(shares.max(initial=0.0))), scale)
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
    return fitted(alone(tokens[position].label), NAME_CELLS, pad=False)


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
