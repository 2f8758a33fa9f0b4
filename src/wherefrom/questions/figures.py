"""What every head reads, in figures (floor 4): how many sources, and which kinds: itself, the one before, repeats.

It takes a recording and gives an answer with a row for every head; `figures_of` gives the same of one call as arrays,
for who computes with them. Everything comes from q, k and lse in double precision, by strips of destinations, so that
memory grows with the length, never with its square. A figure says what kind of source a head's weights lie on in this
text; it does not say what the head is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.attention import Mask
from wherefrom.checks import check_index, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Cell, Column
from wherefrom.questions.asked import EXACTNESS
from wherefrom.questions.exact import Masked
from wherefrom.questions.scope import Scope
from wherefrom.recording import Call, Recording, check_recording

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

STRIP = 128
"""Destinations at once: enough for the matrix product to run at full speed, and some megabytes at 8,192 sources."""
WAY_OUT = "Ask about the call of a text that reads itself, with the ids of that text."


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """The figures of every head of one call, each an array [H]; masked, with NaN beneath, where no destination counts.

    All but the last are means over destinations i that may read something. A source that the mask keeps out has
    weight 0 and counts as that.

    Attributes:
        entropy: of the weights, in nats; over all i.
        effective: exp(entropy), how many evenly read sources that would be; over all i.
        largest: the largest weight; over all i.
        first: the weight on position 0; over i >= 1, since position 0 has nothing else to read in a decoder.
        itself: the weight on i; over i >= 1.
        previous: the weight on i - 1; over i >= 1.
        duplicate: the weight on all earlier positions of the same token as i; over the i whose token came before.
        induction: the weight on all positions right after an earlier one of the same token as i: what followed it
            then. Over the same i. The prefix matching score of Olsson et al. 2022, "In-context Learning and Induction
            Heads", arXiv:2209.11895, here of any text, theirs of a repeated random sequence.
        largest_score: the largest score of any permitted pair.
        empty: how many destinations may read nothing.
    """

    entropy: Masked
    effective: Masked
    largest: Masked
    first: Masked
    itself: Masked
    previous: Masked
    duplicate: Masked
    induction: Masked
    largest_score: Masked
    empty: Ints


FIGURES = tuple(field.name for field in fields(HeadFigures) if field.name != "empty")


def figures_of(call: Call, ids: ArrayLike, *, strip: int = STRIP) -> HeadFigures:
    """Return the figures of every head of one call of self-attention.

    Args:
        call: of kind "self", with as many destinations as sources.
        ids: the token ids [T] of the text; only whether they are equal matters.
        strip: how many destinations are computed at once; the figures do not depend on it.

    Raises:
        InputError: another kind of call, ids of another length or no whole numbers, a strip below 1.
    """
    _check_call(call)
    length = call.q.shape[1]
    codes, repeated = _codes(ids, length)
    strip = whole("the strip", strip, least=1, way_out="It is a number of destinations; 128 is a good one.")
    rows = {name: np.empty((call.heads, length)) for name in FIGURES}  # H T
    for start in range(0, length, strip):
        piece = _Piece.of(call.mask, codes, range(start, min(start + strip, length)))
        for head in range(call.heads):
            for name, values in _of_rows(call, head, piece):
                rows[name][head, start : piece.rows.stop] = values
    return _means(rows, np.isneginf(call.lse), repeated)


def head_figures(
    recording: Recording, *, layer: int | None = None, head: int | None = None, part: str | None = None
) -> Answer:
    """What does every head read? A row for each layer and head, in their order.

    Args:
        recording: of any model.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        part: "decoder" or "encoder"; the one that predicts unless given.

    Raises:
        InputError: a layer or head out of range, a part that the model has not, or no call of self-attention over the
            whole text.
    """
    recording = check_recording(recording)
    part = Scope(part=part).within(recording.model).part or recording.model.part
    layers, heads = recording.model.layers_of(part), recording.model.heads
    only_layer = None if layer is None else check_index("layer", layer, layers)
    only_head = None if head is None else check_index("head", head, heads)
    asked = [call for call in recording.calls if call.part == part and only_layer in (None, call.layer)]
    tokens = recording.tokens if part == recording.model.part or recording.source is None else recording.source
    ids = tokens.ids
    calls = [call for call in asked if _reads_itself(call) and call.q.shape[1] == len(ids)]
    if not calls:
        raise InputError(
            "the recording",
            expected="a call of self-attention in which all of the text reads itself",
            given=f"{len(asked)} call{'s' * (len(asked) != 1)} of which none does",
            way_out="Record the pass of a decoder or an encoder over a text.",
        )
    rows, empty = [], 0
    for call in calls:
        figures = figures_of(call, ids)
        chosen = range(call.heads) if only_head is None else (only_head,)
        rows += [(call.layer, h, *_cells(figures, h)) for h in chosen]
        empty += int(figures.empty[list(chosen)].sum())
    return Answer(
        question=f"What does every head read? {_scope(len(calls), only_layer, only_head)}{_beside(recording, part)}",
        columns=_columns(len(ids), int(_codes(ids, len(ids))[1].sum())),
        rows=tuple(rows),
        exactness=EXACTNESS,
        left_out=_left_out(empty, len(asked) - len(calls), any(None in row for row in rows)),
        remainder=0.0,
    )


@dataclass(frozen=True, eq=False)
class _Piece:
    """A strip of destinations, the sources that any of them may read, and what holds of the pairs in every head."""

    rows: range
    columns: range
    permitted: Bools  # T S or H T S
    same: Bools  # T S, the source is earlier and holds the same token
    after: Bools  # T S, the source comes right after such a one

    @classmethod
    def of(cls, mask: Mask, codes: Ints, rows: range) -> _Piece:
        first, last = (mask.reach(row, codes.size) for row in (rows[0], rows[-1]))  # both ends grow with the row
        columns = range(first.start, last.stop)
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(columns.start, columns.stop)
        before = np.concatenate([[-1], codes[:-1]])  # S, what the position before holds; -1 is nobody's code
        mine = codes[rows.start : rows.stop, None]
        same = (codes[columns.start : columns.stop] == mine) & (j < i)
        after = (before[columns.start : columns.stop] == mine) & (j <= i)
        return cls(rows, columns, mask.permitted(rows, columns), same, after)


def _of_rows(call: Call, head: int, piece: _Piece) -> Iterator[tuple[str, Floats]]:
    """Yield each figure of one head for every destination [T] of a piece; those of empty rows mean nothing."""
    rows, columns = piece.rows, piece.columns
    permitted = piece.permitted[head] if piece.permitted.ndim == 3 else piece.permitted  # T S
    lse = call.lse[head, rows.start : rows.stop].astype(np.float64)
    lse[np.isneginf(lse)] = 0.0  # of an empty row, so that nothing becomes infinite; `_means` leaves it out
    q = call.q[head, rows.start : rows.stop].astype(np.float64)  # T D
    k = call.k[call.key_heads[head], columns.start : columns.stop].astype(np.float64)  # S D
    logs = call.scale * (q @ k.T) - lse[:, None]  # T S, log of each weight
    held = np.where(permitted, logs, -np.inf)
    highest = held.max(axis=1, initial=-np.inf)
    a = np.exp(held, out=held)
    # the logs of what is not permitted are finite, their weights are 0; what rounding of lse puts below 0 is 0
    entropy = np.maximum(-np.einsum("ts,ts->t", a, logs), 0.0)
    i = np.arange(rows.start, rows.stop)
    yield "entropy", entropy
    yield "effective", np.exp(entropy)
    yield "largest", np.exp(highest)
    yield "first", _weight_on(np.zeros_like(i), a, columns)
    yield "itself", _weight_on(i, a, columns)
    yield "previous", _weight_on(i - 1, a, columns)
    yield "duplicate", np.einsum("ts,ts->t", a, piece.same)
    yield "induction", np.einsum("ts,ts->t", a, piece.after)
    yield "largest_score", highest + lse


def _weight_on(sources: Ints, a: Floats, columns: range) -> Floats:
    """Return each row's weight on one source of its own; one beyond the columns may not be read, its weight is 0."""
    inside = (columns.start <= sources) & (sources < columns.stop)
    at = np.where(inside, sources - columns.start, 0)
    return np.where(inside, a[np.arange(len(a)), at], 0.0)


def _means(rows: dict[str, Floats], empty: Bools, repeated: Bools) -> HeadFigures:
    """Return the means of figures [H, T] over the destinations that count for each; of the scores the largest."""
    later = np.arange(repeated.size) >= 1
    counting = {"first": later, "itself": later, "previous": later, "duplicate": repeated, "induction": repeated}
    found: dict[str, Masked] = {}
    for name, values in rows.items():
        counts = ~empty & counting.get(name, True)  # H T
        number = counts.sum(axis=1)  # H
        if name == "largest_score":
            value = np.where(counts, values, -np.inf).max(axis=1, initial=-np.inf)
        else:
            value = np.where(counts, values, 0.0).sum(axis=1) / np.maximum(number, 1)
        found[name] = np.ma.MaskedArray(np.where(number > 0, value, np.nan), mask=number == 0)
    return HeadFigures(**found, empty=empty.sum(axis=1))


def _codes(ids: ArrayLike, length: int) -> tuple[Ints, Bools]:
    """Return the ids as small numbers from 0, equal where they are equal, and which of them came before, both [T]."""
    try:
        given = np.asarray(ids)
    except ValueError:  # rows of different lengths
        given = np.asarray(None)
    if given.shape != (length,) or given.dtype.kind not in "iu":
        raise InputError(
            "the token ids",
            expected=f"whole numbers, one a position, {length}",
            given="no array of numbers" if given.dtype == object else f"{given.dtype} of shape {given.shape}",
            way_out=WAY_OUT,
            shape=given.shape,
        )
    _, first, codes = np.unique(given, return_index=True, return_inverse=True)
    return codes, first[codes] < np.arange(length)


def _check_call(call: Any) -> None:
    call = check_kind("the call", call, Call, way_out="Give one of recording.calls.")
    if not _reads_itself(call):
        raise InputError(
            "the call",
            expected="self-attention with as many destinations as sources",
            given=f"{call.kind}-attention of {call.q.shape[1]} destinations over {call.k.shape[1]} sources"
            + f" from position {call.mask.offset}" * (call.mask.offset > 0),
            way_out=WAY_OUT,
        )


def _reads_itself(call: Call) -> bool:
    """Whether row r of the call and column r are one position, so that "itself" and "the one before" mean something."""
    return call.kind == "self" and call.q.shape[1] == call.k.shape[1] and call.mask.offset == 0


def _cells(figures: HeadFigures, head: int) -> Sequence[Cell]:
    """Return one head's figures as an answer holds them: None where no destination counts."""
    return [getattr(figures, name)[head : head + 1].tolist()[0] for name in FIGURES]


def _columns(length: int, repeats: int) -> tuple[Column, ...]:
    share, of, over = "share", "share of a destination's row:", "mean over destinations"
    later = f"{over} from 1 up"
    again = f"mean over the {repeats} of {length} destinations whose token came before"
    return (
        Column("layer", "", "the layer, from 0"),
        Column("head", "", "the head, from 0"),
        Column("entropy", "nats", f"entropy of a destination's weights, {over}"),
        Column("effective", "sources", f"exp of the entropy: as many sources read evenly have it, {over}"),
        Column("largest", share, f"{of} the largest weight, {over}"),
        Column("first", share, f"{of} weight on position 0, {later}"),
        Column("self", share, f"{of} weight on the destination itself, {later}"),
        Column("previous", share, f"{of} weight on the position before, {later}"),
        Column("duplicate", share, f"{of} weight on all earlier positions of the destination's own token, {again}"),
        Column("induction", share, f"{of} weight on all positions right after one of those, {again}"),
        Column("largest_score", "score", "the largest score of any permitted pair, before softmax"),
    )


def _beside(recording: Recording, part: str) -> str:
    return f" of the {part}" if part != recording.model.part else ""


def _scope(calls: int, layer: int | None, head: int | None) -> str:
    heads = "every head" if head is None else f"head {head}"
    if layer is not None:
        return f"{heads} of layer {layer}"
    return f"{heads} of {'1 layer' if calls == 1 else f'each of {calls} layers'}"


def _left_out(empty: int, calls: int, blank: bool) -> str:
    said = ["No head is left out."]
    if calls:
        said = [f"Left out: {calls} call{'s' * (calls != 1)} in which not all of the text reads itself."]
    if empty:
        rows = "1 row of a destination" if empty == 1 else f"{empty} rows of destinations"
        said.append(f"In no mean: {rows} that may read nothing.")
    if blank:
        said.append("Where no destination counts for a figure there is none.")
    return " ".join(said)
