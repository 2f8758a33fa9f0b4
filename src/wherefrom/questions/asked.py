"""The questions (floor 4): the strongest sources of a destination, the readers of a source, a window of weights.

They take a recording, call `wherefrom.questions.exact` for the numbers, and return answers. A weight says how values
were mixed in one head; what mattered is measured elsewhere (`wherefrom.evidence`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index, whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Column, Window
from wherefrom.questions.exact import Masked, column_of_weights, pivot_of, row_of_weights, window_of_weights
from wherefrom.questions.scanned import require_all_rows, require_whole_text
from wherefrom.questions.scope import Scope
from wherefrom.recording import Call, Gap, Recording, check_recording
from wherefrom.recording import listed as held_in_words
from wherefrom.tokens import Tokens

EXACT = "exact: recomputed from the recorded q, k and lse, within float32 rounding (about {})"
EXACTNESS = EXACT.format("1e-5")
USUAL = 100.0
"""Up to this size of lse rounding is about 1e-5."""
NOTHING_LEFT = "Nothing is left out."
MOST_CELLS = 2**24
"""A window of more cells (16.8 million, 134 MB) is refused: nobody reads it."""


def sources(
    recording: Recording,
    destination: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    top: int = 10,
) -> Answer:
    """Which sources does a destination read most? The mean of its row over the heads asked for, the strongest first.

    Args:
        recording: of any model.
        destination: the position that reads; the last of the text unless given.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        kind: "self", or "cross" for what the decoder reads of the encoder's text.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module; all unless given.
        top: how many sources to return; the rest is the remainder.

    Raises:
        InputError: a position, layer, head or repeat out of range, or top below 1; calls over different positions.
    """
    recording = check_recording(recording)
    scope = checked_scope(recording, layer, head, kind, part, repeat)
    pairs = calls_over_the_same(recording, scope)
    readers, read = recording.texts_of(pairs[0][0])
    i = _last(recording, pairs[0][0]) if destination is None else check_index("position", destination, len(readers))
    token = readers[i].label
    return _answer(
        read,
        _tally(pairs, lambda call: row_of_weights(call, i)),
        top,
        gaps=recording.gaps,
        sink=_mean_sink(pairs, i),
        question=f'Which sources does position {i} ("{token}") read? {scope.describe(recording)}',
        listed="source",
        meaning="a source's share of the destination's row",
        rest="of the weight",
    )


def readers(
    recording: Recording,
    source: int,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    top: int = 10,
) -> Answer:
    """Who reads a source most? Each destination's weight on it, the mean over the heads asked for, the strongest first.

    The weights of different readers are shares of different rows: they do not sum to one.

    Args:
        recording: of any model.
        source: the position that is read.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        kind: "self", or "cross" for what the decoder reads of the encoder's text.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module; all unless given.
        top: how many readers to return; the rest is the remainder.

    Raises:
        InputError: a position, layer, head or repeat out of range, or top below 1; calls over different positions.
    """
    recording = check_recording(recording)
    scope = checked_scope(recording, layer, head, kind, part, repeat)
    pairs = calls_over_the_same(recording, scope)
    for call, _ in pairs:
        require_all_rows(call)
    listed, read = recording.texts_of(pairs[0][0])
    j = check_index("position", source, len(read))
    token = read[j].label
    return _answer(
        listed,
        _tally(pairs, lambda call: column_of_weights(call, j)),
        top,
        gaps=recording.gaps,
        question=f'Who reads position {j} ("{token}")? {scope.describe(recording)}',
        listed="destination",
        meaning="this source's share of the destination's row",
        rest="rows in all",
    )


def weights(
    recording: Recording,
    *,
    layer: int,
    head: int,
    destinations: range | None = None,
    sources: range | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int = 0,
) -> Window:
    """Return an exact window of one head's weights.

    Args:
        recording: of any model.
        layer: from 0.
        head: from 0.
        destinations: the rows, a range of step 1; all that the recording keeps unless given.
        sources: the columns, a range of step 1; all unless given.
        kind: "self", or "cross" for what the decoder reads of the encoder's text.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of the layer's module; the first, 0, unless given.

    Raises:
        InputError: anything out of range, no range or an empty one, or more than 16.8 million cells.
    """
    check_recording(recording)
    scope = Scope(kind=kind, part=part, repeat=repeat).checked(recording)
    call = recording.call(check_index("layer", layer, recording.layers_of(part)), kind, part, repeat)
    if call.mask.offset:  # what is asked for by position has no place there
        require_whole_text(recording, call)
    layer = call.layer
    head = call.head_numbers[call.place_of_head(head)]
    rows = _range("destinations", _kept_rows(call) if destinations is None else destinations, call.destinations)
    columns = _range("sources", sources, call.sources)
    if len(rows) * len(columns) > MOST_CELLS:
        raise InputError(
            "the window",
            expected=f"at most {MOST_CELLS:,} cells",
            given=f"{len(rows):,} destinations x {len(columns):,} sources",
            way_out="Ask for a smaller window.",
        )
    values = window_of_weights(call, head, rows, columns)
    return Window(
        question=f"How does head {head} of layer {layer}{scope.of(recording.model)}{_execution(recording, call)} "
        f"weight sources {columns.start} to {columns.stop - 1} for destinations {rows.start} to {rows.stop - 1}?",
        layer=layer,
        head=head,
        kind=call.kind,
        part=call.part,
        repeat=call.repeat,
        destinations=rows,
        sources=columns,
        values=values,
        exactness=exactness_of([call]),
        left_out=_outside(call, head, rows, columns, values),
        sinks=_sinks(call, head, rows),
        gaps=recording.gaps,
    )


def _last(recording: Recording, call: Call) -> int:
    """Return the last destination of a call that is of its text, and does not only fill up a batch."""
    last = recording.last_position(call.part)
    return last if last < call.destinations else call.destinations - 1


def _execution(recording: Recording, call: Call) -> str:
    """Return which execution of its module a call is, in words; none where the module ran once."""
    alike = recording.calls_of(call.kind, call.part)
    return f", execution {call.repeat}," if any(one.layer == call.layer and one.repeat for one in alike) else ""


def _sinks(call: Call, head: int, rows: range) -> Masked | None:
    """Return the share of some rows that a sink takes, masked where a row may read nothing; None without sinks."""
    if call.sinks is None:
        return None
    empty = np.isneginf(call.lse[call.place_of_head(head), [call.place_of_row(row) for row in rows]])
    return np.ma.MaskedArray(np.where(empty, np.nan, sink_share(call, head, rows)), mask=empty)


def _kept_rows(call: Call) -> range:
    """Return all destinations that were kept, where that is a range."""
    rows = call.rows
    if len(rows) == rows[-1] - rows[0] + 1:
        return range(int(rows[0]), int(rows[-1]) + 1)
    raise InputError(
        "the range of destinations",
        expected=f"some of those that the recording keeps, {held_in_words(rows)}",
        given="none",
        way_out="Give a range of them.",
    )


def _outside(call: Call, head: int, rows: range, columns: range, values: Masked) -> Masked:
    """Return the share of each row on sources beside a window; exactly 0 where there is none that may be read."""
    rest = np.maximum(1.0 - values.sum(axis=1) - sink_share(call, head, rows), 0.0)
    for place, row in enumerate(rows):
        reach = call.mask.reach(row, call.sources)
        if columns.start <= reach.start and reach.stop <= columns.stop and rest[place] is not np.ma.masked:
            rest[place] = 0.0
    return np.ma.MaskedArray(rest)


def sink_share(call: Call, head: int, rows: range) -> NDArray[np.float64] | float:
    """Return the share of some rows that a sink takes, which is no source's."""
    if call.sinks is None:
        return 0.0
    place, at = call.place_of_head(head), [call.place_of_row(row) for row in rows]
    lse = call.lse[place, at].astype(np.float64)
    share: NDArray[np.float64] = np.exp(float(call.sinks[place]) - pivot_of(lse))
    return share


def exactness_of(calls: Sequence[Call]) -> str:
    """Return how exact the weights of some calls are, in a sentence."""
    rounded = [call.stored for call in calls if call.stored is not None]
    if not rounded:
        most = max((_largest_lse(call) for call in calls), default=0.0)
        # A weight is exp(score - lse): it is off by as much, relatively, as a rounding of numbers of that size.
        return (
            EXACTNESS if most <= USUAL else EXACT.format(f"{most * np.finfo(np.float32).eps:.0e}".replace("e-0", "e-"))
        )
    worst = max(stored.weight_error for stored in rounded)
    return (
        f"recomputed from q and k that the file holds in {rounded[0].format}: in the rows looked at when it was "
        f"written, weights changed by at most {worst:.1e}"
    )


_lse_sizes: WeakKeyDictionary[Call, float] = WeakKeyDictionary()


def _largest_lse(call: Call) -> float:
    """Return the largest size of a call's log-sum-exps, which rounding is a share of."""
    if call not in _lse_sizes:
        lse = np.abs(call.lse)
        _lse_sizes[call] = float(np.max(lse, where=np.isfinite(lse), initial=0.0))
    return _lse_sizes[call]


def mean_row(recording: Recording, destination: int, scope: Scope) -> NDArray[np.float64]:
    """Return the mean weight [S] that a destination gives each source, over the heads in scope with a row for it."""
    return _tally(list(scope.calls(recording)), lambda call: row_of_weights(call, destination)).mean


@dataclass(eq=False)
class Tally:
    """Weights [N] over the heads seen so far: mean, the largest, and the (layer, head, repeat) [N, 3] where it is.

    A head in which a destination may read nothing has no row there: it is not in the mean; `rowless` [N] counts them.
    """

    total: NDArray[np.float64]
    largest: NDArray[np.float64]
    where: NDArray[np.int64]
    rowless: NDArray[np.int64]
    heads: int = 0
    exactness: str = EXACTNESS
    repeats: bool = False

    @classmethod
    def empty(cls, size: int) -> Tally:
        """Return the tally of nothing yet."""
        return cls(np.zeros(size), np.full(size, -1.0), np.zeros((size, 3), np.int64), np.zeros(size, np.int64))

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean over the heads that have a row."""
        return self.total / np.maximum(self.heads - self.rowless, 1)

    def add(self, call: Call, heads: NDArray[np.int64], rows: Masked) -> None:
        """Count the weights [H, N] of some heads of a call."""
        values = rows.filled(0.0)
        self.rowless += np.ma.getmaskarray(rows).sum(axis=0)
        self.heads += heads.size
        self.total += values.sum(axis=0)
        best = values.argmax(axis=0)
        peak = values[best, np.arange(best.size)]
        higher = peak > self.largest
        self.largest[higher] = peak[higher]
        self.where[higher, 0], self.where[higher, 2] = call.layer, call.repeat
        self.where[higher, 1] = heads[best][higher]


def calls_over_the_same(recording: Recording, scope: Scope) -> list[tuple[Call, tuple[int, ...]]]:
    """Return the calls in scope with their heads, if all go over the same positions, so that a mean means something.

    Raises:
        InputError: as `Scope.calls`; a call over a part of its text; calls over different positions.
    """
    pairs = list(scope.calls(recording))
    calls = [call for call, _ in pairs]
    for call in calls:
        require_whole_text(recording, call)
    first = calls[0]
    other = next((c for c in calls if (c.destinations, c.sources) != (first.destinations, first.sources)), None)
    if other is not None:
        shown = [f"{c.destinations:,} over {c.sources:,} in {_where(c)}" for c in (first, other)]
        raise InputError(
            "the calls asked for",
            expected="as many destinations and sources in each, so that a position is the same in all",
            given=" and ".join(shown),
            way_out="Ask about one layer, and of several executions about one.",
        )
    own = any(text is None for text in recording.known_texts(first))
    again = next((c for c in calls if own and c.layer == first.layer and c.repeat != first.repeat), None)
    if again is not None:
        held = [call.repeat for call in calls if call.layer == first.layer]
        raise InputError(
            "the repeat",
            expected=f"one of {held_in_words(held)}, since each execution of {first.name} has positions of its own",
            given="none",
            way_out="Name one, such as repeat=0, or --repeat 0.",
        )
    return pairs


def _where(call: Call) -> str:
    return f"layer {call.layer}" + (f", execution {call.repeat}" if call.repeat else "")


def _mean_sink(pairs: Sequence[tuple[Call, Sequence[int]]], destination: int) -> float | None:
    """Return the share of a destination's row that sinks take, mean over the heads with a row; None without sinks."""
    if all(call.sinks is None for call, _ in pairs):
        return None
    total, count = 0.0, 0
    for call, heads in pairs:
        places = [call.place_of_head(head) for head in heads]
        lse = call.lse[places, call.place_of_row(destination)].astype(np.float64)
        count += int((~np.isneginf(lse)).sum())
        if call.sinks is not None:
            total += float(np.exp(call.sinks[places].astype(np.float64) - pivot_of(lse)).sum())
    return total / max(count, 1)


def _tally(pairs: Sequence[tuple[Call, Sequence[int]]], weights_of: Callable[[Call], Masked]) -> Tally:
    """Return the tally of `weights_of` [H, N] of some calls and heads."""
    tally: Tally | None = None
    for call, heads in pairs:
        rows = weights_of(call)[[call.place_of_head(head) for head in heads]]
        tally = Tally.empty(rows.shape[1]) if tally is None else tally
        tally.add(call, np.asarray(heads), rows)
    assert tally is not None, "a scope yields a call, or refuses"
    calls = [call for call, _ in pairs]
    return replace(tally, exactness=exactness_of(calls), repeats=any(call.repeat for call in calls))


def _answer(
    tokens: Tokens,
    tally: Tally,
    top: int,
    *,
    gaps: tuple[Gap, ...],
    question: str,
    listed: str,
    meaning: str,
    rest: str,
    sink: float | None = None,
) -> Answer:
    mean, order = tally.mean, _strongest(tally.mean, top)
    remainder = max(0.0, float(mean.sum() - mean[order].sum()))
    left_out = _not_listed(mean, order, listed, f"with {remainder:.4f} {rest}")
    if tally.rowless.any():
        left_out += (
            f" Where a destination may read nothing it has no row: so in up to {tally.rowless.max()} of "
            f"{tally.heads} heads, which are not in the mean."
        )
    columns, rows = _columns(listed, meaning), _rows(tokens, order, tally)
    if tally.repeats:
        columns = (*columns, REPEAT)
        rows = tuple((*row, int(tally.where[p, 2])) for p, row in zip(order.tolist(), rows, strict=True))
    if sink is not None:
        columns, rows = (*columns, SINK), tuple((*row, sink) for row in rows)
        left_out += f" Sinks take {sink:.4f} of the row, which are no source's."
    return Answer(
        question=question,
        columns=columns,
        rows=rows,
        exactness=tally.exactness,
        left_out=left_out,
        remainder=remainder,
        gaps=gaps,
    )


def checked_scope(
    recording: Recording,
    layer: int | None,
    head: int | None,
    kind: str,
    part: str | None,
    repeat: int | None = None,
) -> Scope:
    """Return the scope of a question about one layer or all, and one head of each or all.

    Raises:
        InputError: the model has no such layer, head, or kind of attention.
    """
    scope = Scope(kind=kind, part=part, repeat=repeat).checked(recording)
    if layer is not None:
        scope = replace(scope, layers=(check_index("layer", layer, recording.layers_of(part)),))
    if head is not None:
        calls = [call for call in recording.calls_of(kind, part) if scope.has_layer(call.layer)]
        most = max(
            (call.all_heads for call in calls), default=sys.maxsize
        )  # of no layer: that is said when it is asked
        scope = replace(scope, heads=(check_index("head", head, most),))
    return scope


def _strongest(mean: NDArray[np.float64], top: int) -> NDArray[np.int64]:
    """Return the indices of the `top` largest above 0, ties in the order of the text."""
    most = whole("top", top, least=1, way_out="Say how many rows you want.")
    order = np.argsort(-mean, kind="stable")[:most]
    return order[mean[order] > 0]


def _not_listed(mean: NDArray[np.float64], order: NDArray[np.int64], what: str, rest: str) -> str:
    """Return how many more have a weight, in a sentence; those that the mask keeps out have none and do not count."""
    count = int((mean > 0).sum()) - order.size
    return f"Not listed: {count} more {what}{'' if count == 1 else 's'} {rest}." if count else NOTHING_LEFT


def _columns(who: str, meaning: str) -> tuple[Column, ...]:
    return (
        Column(who, "", f"position of the {who}, from 0"),
        Column("token", "", f"the {who}'s token"),
        Column("weight", "share of a row", f"{meaning}, mean over the heads asked for"),
        Column("largest", "share of a row", "the same in the one head where it is largest"),
        Column("layer", "", "that head's layer"),
        Column("head", "", "that head"),
    )


REPEAT = Column("repeat", "", "which execution of that layer's module in the pass")
SINK = Column(
    "sink",
    "share of a row",
    "the share of the destination's row that sinks take, no source's and on every line the same, mean over the heads "
    "asked for",
)


def _rows(tokens: Tokens, order: NDArray[np.int64], tally: Tally) -> tuple[tuple[int | str | float, ...], ...]:
    return tuple(
        (p, tokens[p].label, float(tally.mean[p]), float(tally.largest[p]), *map(int, tally.where[p, :2]))
        for p in order.tolist()
    )


def _range(what: str, asked: Any, size: int) -> range:
    given = range(size) if asked is None else asked
    if not isinstance(given, range) or given.step != 1 or not 0 <= given.start < given.stop <= size:
        raise InputError(
            f"the range of {what}",
            expected=f"a range of step 1 within 0 to {size}",
            given=f"{given!r}",
            way_out="Give a range; its end is not part of it: range(0, 3) is 0, 1 and 2.",
        )
    return given
