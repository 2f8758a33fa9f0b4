"""Two recordings side by side (floor 4): in which heads does attention differ most, and by how much?

Of one text in two models every weight has its counterpart, and the difference of a head is exact: the share of a
destination's row that would have to move, ½ Σ_j |a_ij - b_ij| (the total variation distance), mean over the
destinations. Two texts have no such pairs; then the figures of a head are compared, and the one that differs most is
named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from wherefrom.checks import check_index, whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Cell, Column
from wherefrom.questions.asked import exactness_of
from wherefrom.questions.exact import window_in_single
from wherefrom.questions.figures import heads
from wherefrom.questions.scanned import Progress, calls_in_scope, require_all_rows
from wherefrom.recording import Call, Recording, check_recording

STRIP = 128
"""Destinations whose rows are compared together: 128 x S weights of each recording."""
SHARES = ("largest", "first", "self", "previous", "duplicate", "induction")
"""The figures that are shares of a row, and so comparable with one another."""


def diff(
    first: Recording,
    second: Recording,
    *,
    layer: int | None = None,
    top: int = 10,
    progress: Progress | None = None,
) -> Answer:
    """In which heads do two recordings differ most? One text in two models, or two texts in one model.

    Of the same tokens the weights themselves are compared, one by one; of different ones the figures of every head.

    Args:
        first: a recording.
        second: another, with as many layers and heads.
        layer: one layer only; all unless given.
        top: how many heads to return; the rest is left out.
        progress: told after each layer.

    Raises:
        InputError: no recordings; models that differ in their layers or heads, two texts in two models, or the same
            recording of both; a layer that is not in both; recordings without all destinations.
    """
    first, second = check_recording(first), check_recording(second)
    most = whole("top", top, least=1, way_out="Say how many rows you want.")
    if layer is not None:
        layer = check_index("layer", layer, first.model.layers)
    _require_comparable(first, second)
    pairs = _pairs(first, second, layer)
    if first.tokens.ids == second.tokens.ids:
        return _of_weights(first, second, pairs, most, progress)
    return _of_figures(first, second, layer, most)


def _require_comparable(first: Recording, second: Recording) -> None:
    sizes = [(r.model.layers, r.model.heads, r.model.part) for r in (first, second)]
    if sizes[0] != sizes[1]:
        raise InputError(
            "the two recordings",
            expected="of models with as many layers and heads, so that each head has its counterpart",
            given=" and ".join(f"{layers} layers of {heads} heads ({part})" for layers, heads, part in sizes),
            way_out="Compare models of one shape; `wherefrom heads` shows the figures of each alone.",
        )
    same_text, same_model = first.tokens.ids == second.tokens.ids, first.model == second.model
    if not (same_text or same_model):
        raise InputError(
            "the two recordings",
            expected="one text in two models, or two texts in one model",
            given=f"two texts ({len(first):,} and {len(second):,} tokens) in two models "
            f"({first.model.name} and {second.model.name})",
            way_out="Record the same text with both, or both texts with one.",
        )


def _pairs(first: Recording, second: Recording, layer: int | None) -> list[tuple[Call, Call]]:
    """Return the calls of self-attention that both have, layer by layer."""
    part = first.model.part
    own = calls_in_scope(first, layer, "self", part)
    other = {call.layer: call for call in calls_in_scope(second, layer, "self", part)}
    pairs = [(call, other[call.layer]) for call in own if call.layer in other]
    if not pairs:
        held = ", ".join(str(call.layer) for call in own)
        raise InputError(
            "the two recordings",
            expected="a layer that both hold",
            given=f"layers {held} and {', '.join(map(str, other))}",
            way_out="Record the same layers of both.",
        )
    for pair in pairs:
        for call in pair:
            require_all_rows(call)
    return pairs


def _of_weights(
    first: Recording,
    second: Recording,
    pairs: Sequence[tuple[Call, Call]],
    top: int,
    progress: Progress | None,
) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    # a head a thread: threads within the small products of a strip would wait for one another
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:  # type: ignore[no-untyped-call]
        for done, (one, other) in enumerate(pairs):
            shared = sorted(set(one.head_numbers) & set(other.head_numbers))
            found = pool.map(partial(_distance, first, one, other), shared)
            rows += [(one.layer, head, *distance) for head, distance in zip(shared, found, strict=True)]
            if progress is not None:
                progress(done + 1, len(pairs))
    rows.sort(key=lambda row: -1.0 if row[2] is None else -float(row[2]))
    return Answer(
        question=f"In which heads do {_named(first, second)} weight the same {len(first):,} tokens most differently?",
        columns=(
            Column("layer", "", "the layer, from 0"),
            Column("head", "", "the head, from 0"),
            Column("moved", "share", "½ Σ |a - b| of a destination's row, mean over the destinations"),
            Column("largest", "share", "the same at the destination where it is largest"),
            Column("at", "position", "that destination"),
            Column("token", "", "its token"),
        ),
        rows=tuple(rows[:top]),
        exactness=exactness_of([call for pair in pairs for call in pair]),
        left_out=_left_out(len(rows), top, [row[2] for row in rows]),
        remainder=0.0,
    )


def _distance(recording: Recording, one: Call, other: Call, head: int) -> tuple[Cell, ...]:
    """Return the mean and the largest total variation distance of a head's rows, and where that is."""
    distances = np.full(one.destinations, np.nan)  # NaN where one of the two may read nothing
    for start in range(0, one.destinations, STRIP):
        rows = range(start, min(start + STRIP, one.destinations))
        read = range(rows.stop if one.mask.causal and other.mask.causal else one.sources)
        apart = np.ma.getdata(window_in_single(one, head, rows, read))  # NaN where a destination may read nothing
        apart -= np.ma.getdata(window_in_single(other, head, rows, read))
        distances[rows.start : rows.stop] = 0.5 * np.abs(apart, out=apart).sum(axis=1, dtype=np.float64)
    if np.isnan(distances).all():
        return None, None, None, None
    at = int(np.nanargmax(distances))
    return float(np.nanmean(distances)), float(distances[at]), at, recording.tokens[at].label


def _of_figures(first: Recording, second: Recording, layer: int | None, top: int) -> Answer:
    own, other = (
        {(row["layer"], row["head"]): row for row in heads(recording, layer=layer)} for recording in (first, second)
    )
    rows: list[tuple[Cell, ...]] = [(*at, *_largest_difference(own[at], other[at])) for at in own if at in other]
    rows.sort(key=lambda row: -1.0 if row[2] is None else -float(row[2]))
    return Answer(
        question=f"In which heads of {first.model.name} do the figures of two texts, of {len(first):,} and "
        f"{len(second):,} tokens, differ most?",
        columns=(
            Column("layer", "", "the layer, from 0"),
            Column("head", "", "the head, from 0"),
            Column("apart", "share", f"the largest difference among {', '.join(SHARES)}"),
            Column("figure", "", "which figure that is"),
            Column("first_text", "share", "that figure in the first text"),
            Column("second_text", "share", "the same in the second"),
        ),
        rows=tuple(rows[:top]),
        exactness=exactness_of([*first.calls, *second.calls]),
        left_out=_left_out(len(rows), top, [row[2] for row in rows]),
        remainder=0.0,
    )


def _largest_difference(own: dict[str, Cell], other: dict[str, Cell]) -> tuple[Cell, ...]:
    found = [
        (abs(a - b), name, a, b)
        for name in SHARES
        if isinstance(a := own[name], float) and isinstance(b := other[name], float)
    ]
    return max(found) if found else (None, None, None, None)


def _named(first: Recording, second: Recording) -> str:
    if first.model == second.model:
        return f"two recordings by {first.model.name}"
    return f"{first.model.name} and {second.model.name}"


def _left_out(count: int, top: int, values: Sequence[Cell]) -> str:
    rest = [value for value in values[top:] if isinstance(value, float)]
    if count <= top:
        return "No head that both hold is left out."
    most = f", none of them above {max(rest):.4f}" if rest else ""
    return f"Not listed: {count - top} more heads{most}."
