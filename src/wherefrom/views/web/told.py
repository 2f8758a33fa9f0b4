"""What the page is told of a recording's edges (floor 6): every number from the questions, nothing computed here.

Each function takes a recording and plain values, and returns a message. Positions, layers and heads are true numbers;
what a recording does not keep is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.questions import column_of_weights, row_of_weights, window_of_weights
from wherefrom.questions import heads as heads_of
from wherefrom.questions.asked import exactness_of, sink_share
from wherefrom.questions.exact import Masked, permitted_pairs
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import Kind, kind_of
from wherefrom.questions.maps import EMPTY, NOT_PERMITTED, NOT_RECORDED, WEIGHTS, HeadMap
from wherefrom.questions.moved import lengths_of, moved
from wherefrom.questions.scanned import scan
from wherefrom.questions.worked import worked_row
from wherefrom.readable import readable
from wherefrom.recording import Call, Recording
from wherefrom.views.web.kept import Kept
from wherefrom.views.web.wire import Message

Lens = Literal["weight", "moved"]
LENSES = ("weight", "moved")
NO_KIND = Kind("unknown", "it reads another text: kinds are of a text that reads itself")
THUMB = 32
"""Blocks along a side of a head's thumbnail, at most."""
MEANING = {
    "weight": "share of the destination's row",
    "moved": "length of what is added to the residual stream, |a W_O v|",
}


@dataclass(frozen=True)
class Chosen:
    """Whose rows are asked about: heads of calls over the same positions.

    Attributes:
        pairs: calls, and heads of each by their true numbers.
    """

    pairs: tuple[tuple[Call, tuple[int, ...]], ...]

    @classmethod
    def of(cls, recording: Recording, call: int | None, head: int | None, like: int) -> Chosen:
        """Return one head or all heads of a call, or of every call of the same kind and part as another.

        Raises:
            InputError: no such call or head; calls over different positions.
        """
        one = call_of(recording, like if call is None else call)
        if call is not None:
            return cls(((one, one.head_numbers if head is None else (_kept(one, head),)),))
        alike = [own for own in recording.calls_of(one.kind, one.part) if own.repeat == one.repeat]
        sizes = (one.destinations, one.sources)
        if any((own.destinations, own.sources) != sizes for own in alike):
            raise InputError(
                "the layers",
                expected="calls that all go over the same positions",
                given="some that do not",
                way_out="Choose one layer.",
            )
        return cls(tuple((own, own.head_numbers if head is None else (_kept(own, head),)) for own in alike))

    @property
    def heads(self) -> int:
        """How many there are."""
        return sum(len(heads) for _, heads in self.pairs)


def call_of(recording: Recording, index: int) -> Call:
    """Return a call by its place in the recording.

    Raises:
        InputError: there is none.
    """
    return recording.calls[check_index("call", index, len(recording.calls))]


def _kept(call: Call, head: int) -> int:
    return call.head_numbers[call.place_of_head(head)]


def heads(recording: Recording, index: int) -> Message:
    """Return what kind each head of a call is, its figures, and its map in a few blocks.

    Kinds are those of a text that reads itself: of cross-attention there are only the maps; of a call of which some
    destinations were not kept there are neither, and `why_not` says so.

    Raises:
        InputError: no such call.
    """
    call = call_of(recording, index)
    own: dict[str, Any] = {"kind": call.kind, "part": call.part, "repeat": call.repeat}
    try:
        zoom = scan(recording, call.layer, ("zoom",), **own).zoom
        rows, names = _figures(recording, call)
    except InputError as error:
        return Message({"heads": list(call.head_numbers), "whole": False, "why_not": str(error)})
    repeats = repeats_of(recording, call) if call.kind == "self" else 0
    kinds = [NO_KIND if call.kind != "self" else kind_of(row, repeats) for row in rows]
    level = next(level for level in zoom if max(level.largest.shape[1:]) <= THUMB)
    facts = {
        "heads": list(call.head_numbers),
        "figures": names,
        "kinds": [kind.name for kind in kinds],
        "why": [kind.why for kind in kinds],
        "blocks": level.block,
        "whole": True,
        "why_not": None,
    }
    figures = np.array([[row[name] for name in names] for row in rows], np.float32).reshape(len(rows), len(names))
    return Message(facts, {"figures": figures, "thumbs": level.largest.filled(np.nan).astype(np.float32)})


def _figures(recording: Recording, call: Call) -> tuple[list[dict[str, float | None]], list[str]]:
    """Return the figures of each head of a call, and their names; of cross-attention none."""
    if call.kind != "self":
        return [{} for _ in call.head_numbers], []
    answer = heads_of(recording, layer=call.layer, part=call.part, repeat=call.repeat)
    names = [column.name for column in answer.columns if column.name not in ("layer", "head", "repeat")]
    return [{name: _number(row[name]) for name in names} for row in answer], names


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def row(recording: Recording, chosen: Chosen, destination: int, lens: str) -> Message:
    """Return what a destination reads of every source: by weight the mean over heads, moved is added up.

    Raises:
        InputError: a destination that is not kept, an unknown lens, a recording without output projections.
    """
    require_lens(lens)
    total, permitted, counted = _Sum.empty(chosen, 1), None, 0
    sinks: list[float] = []
    for call, own in chosen.pairs:
        weights = row_of_weights(call, destination)[[call.place_of_head(head) for head in own]]
        reading = np.flatnonzero(~np.ma.getmaskarray(weights).all(axis=1))
        heads = [own[place] for place in reading]
        counted += len(heads)
        total.add(weights[reading], call, heads, lens)
        for head in _masks(call, heads):
            one = permitted_pairs(call, head, range(destination, destination + 1), range(call.sources))[0]
            permitted = one if permitted is None else permitted | one
        if call.sinks is not None:
            at = range(destination, destination + 1)
            sinks.extend(float(np.sum(sink_share(call, head, at))) for head in heads)
    return total.message(lens, permitted, counted, np.mean(sinks).item() if sinks else None)


def column(recording: Recording, chosen: Chosen, source: int, lens: str) -> Message:
    """Return who reads a source; see `row`. A destination that was not recorded has 2 instead of "permitted".

    Of one head with a sink there is beside it "sinks", the share of each row that the sink takes.

    Raises:
        InputError: no such source, an unknown lens, a recording without output projections.
    """
    require_lens(lens)
    total, permitted, counted = _Sum.empty(chosen, 0), None, 0
    for call, own in chosen.pairs:
        check_index("source", source, call.sources)
        counted += len(own)
        weights = np.ma.MaskedArray(np.zeros((len(own), call.destinations)), mask=True)
        weights[:, call.rows] = column_of_weights(call, source)[[call.place_of_head(head) for head in own]]
        total.add(weights, call, own, lens, source)
        for head in _masks(call, own):
            one = np.full(call.destinations, 2, np.uint8)
            for start, stop in _runs(call):
                one[start:stop] = permitted_pairs(call, head, range(start, stop), range(source, source + 1))[:, 0]
            permitted = one if permitted is None else np.maximum(permitted, one)
    told, sinks = total.message(lens, permitted, counted, None), _sinks(chosen)
    return told if sinks is None else Message(told.facts, {**told.arrays, "sinks": sinks})


def _sinks(chosen: Chosen) -> NDArray[np.float32] | None:
    """Return the share of each row that a head's sink takes, NaN without a row; None: no sink, or several heads."""
    call, heads = chosen.pairs[0]
    if chosen.heads > 1 or call.sinks is None:
        return None
    shares = np.full(call.destinations, np.nan, np.float32)
    for start, stop in _runs(call):
        shares[start:stop] = sink_share(call, heads[0], range(start, stop))
    shares[call.rows[np.isneginf(call.lse[call.place_of_head(heads[0])])]] = np.nan
    return shares


def _masks(call: Call, heads: Sequence[int]) -> Sequence[int]:
    """Return those heads that between them have every mask of the call: mostly all have the same one."""
    explicit, bias = call.mask.explicit, call.shapes.get("bias", (1,))  # a bias of minus infinity permits nothing
    return heads if (explicit is not None and explicit.ndim == 3) or bias[0] > 1 else heads[:1]


def _runs(call: Call) -> Any:
    """Yield the runs of neighbouring destinations that were recorded."""
    rows = call.rows
    for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


_count = count()
_numbers: WeakKeyDictionary[Call, int] = WeakKeyDictionary()
_held: Kept[NDArray[np.float64]] = Kept()


def _lengths(call: Call, head: int) -> NDArray[np.float64]:
    """Return |W_O v| of every source; those asked for last are held, since every row of a head needs them."""
    key = _numbers.setdefault(call, next(_count)), head
    return _held.get(key, lambda: lengths_of(call, head), lambda found: found.nbytes)


@dataclass
class _Sum:
    """Values of several heads, added up."""

    values: NDArray[np.float64]

    @classmethod
    def empty(cls, chosen: Chosen, axis: int) -> _Sum:
        call = chosen.pairs[0][0]
        return cls(np.zeros((call.destinations, call.sources)[axis]))

    def add(self, weights: Masked, call: Call, heads: Sequence[int], lens: str, source: int | None = None) -> None:
        """Add the rows of heads, or their columns of a source."""
        if lens == "weight":
            self.values += weights.filled(0.0).sum(axis=0)
            return
        for head, own in zip(heads, weights, strict=True):
            lengths = _lengths(call, head)
            self.values += (moved(own, lengths) if source is None else own * lengths[source]).filled(0.0)

    def message(self, lens: str, permitted: Any, counted: int, sink: float | None) -> Message:
        """Return the mean of weights, the sum of what is moved."""
        values, together = (self.values / max(counted, 1), "mean") if lens == "weight" else (self.values, "sum")
        best = int(values.argmax()) if counted else 0
        facts = {
            "unit": "share" if lens == "weight" else "length",
            "meaning": MEANING[lens] + (f", {together} over {counted:,} heads" if counted > 1 else ""),
            "empty": not counted,
            "heads": counted,
            "sink": sink,
            "largest": {"at": best, "value": float(values[best])} if counted else None,
        }
        shown = np.zeros(len(values), np.uint8) if permitted is None else permitted.astype(np.uint8)
        return Message(facts, {"values": values.astype(np.float32), "permitted": shown})


def require_lens(lens: str) -> None:
    """Refuse a lens that a recording alone has not.

    Raises:
        InputError: it is another.
    """
    if lens not in LENSES:
        raise InputError("the lens", expected=" or ".join(LENSES), given=readable(lens)[:40], way_out="Choose one.")


def tile(map_: HeadMap, level: int, row: int, column: int, *, of: str) -> Message:
    """Return a piece of a head's map: the largest or the mean weight of each block.

    Raises:
        InputError: no such level or tile, or another statistic.
    """
    if of not in ("largest", "mean"):
        raise InputError("the statistic", expected="largest or mean", given=readable(of)[:40], way_out="Choose one.")
    piece = map_.tile(level, row, column)
    facts = {
        "block": piece.block,
        "destinations": [piece.destinations.start, piece.destinations.stop],
        "sources": [piece.sources.start, piece.sources.stop],
        "exact": piece.exactness,
    }
    return Message(facts, {"values": piece.largest if of == "largest" else piece.mean, "marks": piece.marks})


def pair(recording: Recording, index: int, head: int, destination: int, source: int) -> Message:
    """Return one weight, exactly.

    Raises:
        InputError: no such call, head or position.
    """
    call = call_of(recording, index)
    place = call.place_of_head(head)
    check_index("source", source, call.sources)
    check_index("destination", destination, call.destinations)
    at, to = range(destination, destination + 1), range(source, source + 1)
    if destination not in call.rows:
        return Message({"weight": None, "score": None, "moved": None, "mark": NOT_RECORDED})
    lse = float(call.lse[place, call.place_of_row(destination)])
    if np.isneginf(lse):
        return Message({"weight": None, "score": None, "moved": None, "mark": EMPTY})
    if not permitted_pairs(call, head, at, to)[0, 0]:
        return Message({"weight": 0.0, "score": None, "moved": 0.0, "mark": NOT_PERMITTED})
    weight = float(window_of_weights(call, head, at, to)[0, 0])
    length = None if "output" not in call.shapes else weight * float(lengths_of(call, head)[source])
    score = math.log(weight) + lse if weight > 0 else None
    return Message({"weight": weight, "score": score, "moved": length, "mark": WEIGHTS})


def numbers(recording: Recording, index: int, head: int, destination: int, *, top: int) -> Message:
    """Return a row worked through: scores, softmax, weighted sum, and the sums that have to hold.

    Raises:
        InputError: no such call, head or destination.
    """
    call = call_of(recording, index)
    found = worked_row(call, head, destination, top=min(top, 64))
    if found is None:
        return Message({"empty": True})
    check = max((own.output_error for own in call.checks), default=None)
    facts = {
        "empty": False,
        "scale": call.scale,
        "softcap": call.softcap,
        "lse": found.lse,
        "sink": found.sink,
        "sources": found.sources.tolist(),
        "rest": {"count": found.others, "weight": found.rest_weight},
        "off": {"sum": found.off, "output": check},
        "exact": exactness_of([call]),
    }
    names = ("q", "k", "v", "products", "scores", "weights", "parts", "rest", "output")
    return Message(facts, {name: np.asarray(getattr(found, name)).astype(np.float32) for name in names})
