"""Two recordings side by side (floor 4): in which heads does attention differ most, and by how much?

Of one text in two models every weight has its counterpart, and the difference of a head is exact: the share of a
destination's row that would have to move, ½ Σ_j |a_ij - b_ij| (the total variation distance; a sink is one of the j),
mean over the destinations. Two texts have no such pairs; then the figures of a head are compared, and the one that
differs most is named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Cell, Column
from wherefrom.questions.asked import REPEAT, checked_scope, exactness_of, sink_share
from wherefrom.questions.exact import window_in_single
from wherefrom.questions.figures import heads
from wherefrom.questions.scanned import Progress, require_all_rows, require_whole_text
from wherefrom.questions.scope import Scope
from wherefrom.recording import Call, Recording, check_recording
from wherefrom.tokens import Tokens

STRIP = 128
"""Destinations whose rows are compared together: 128 x S weights of each recording."""
SHARES = ("largest", "first", "self", "previous", "duplicate", "induction")
"""The figures that are shares of a row, and so comparable with one another."""


def diff(
    first: Recording,
    second: Recording,
    *,
    layer: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    top: int = 10,
    progress: Progress | None = None,
) -> Answer:
    """In which heads do two recordings differ most? One text in two models, or two texts in one model.

    Of the same tokens the weights themselves are compared, one by one; of different ones the figures of every head.

    Args:
        first: a recording.
        second: another, with as many layers and heads.
        layer: one layer only; all unless given.
        kind: "self", or "cross" for what the decoder reads of the encoder's text, of the same texts only.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module; all, each with its counterpart, unless given.
        top: how many heads to return; the rest is left out.
        progress: told after each layer.

    Raises:
        InputError: no recordings; models that differ in their layers or heads, or two texts in two models; a layer or
            head that is not in both; recordings without all destinations.
    """
    first, second = check_recording(first), check_recording(second)
    most = whole("top", top, least=1, way_out="Say how many rows you want.")
    scope = checked_scope(first, layer, None, kind, part, repeat)
    _require_comparable(first, second, scope)
    pairs = _pairs(first, second, scope)
    if _texts(first) == _texts(second):
        return _of_weights(first, second, scope, pairs, most, progress)
    return _of_figures(first, second, scope, most)


def _texts(recording: Recording) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of every text that was read."""
    return tuple(text.ids for text in (recording.tokens, recording.source) if text is not None)


def _require_comparable(first: Recording, second: Recording, scope: Scope) -> None:
    sizes = [(r.model.layers, r.model.encoder_layers, r.model.part) for r in (first, second)]
    own, other = ({call.layer: call.all_heads for call, _ in scope.calls(r)} for r in (first, second))
    differ = next((layer for layer in own if other.get(layer, own[layer]) != own[layer]), None)
    if sizes[0] != sizes[1] or differ is not None:
        shown = [f"{layers + beside} layers" for layers, beside, _ in sizes]
        if differ is not None:
            shown = [f"{there} of {heads[differ]} heads" for there, heads in zip(shown, (own, other), strict=True)]
        raise InputError(
            "the two recordings",
            expected="of models with as many layers and heads, so that each head has its counterpart",
            given=" and ".join(shown) + ("" if differ is None or len(own) == 1 else f" in layer {differ}"),
            way_out="Compare models of one shape; `wherefrom heads` shows the figures of each alone.",
        )
    if _texts(first) == _texts(second) or (_same_model(first, second) and scope.kind == "self"):
        return
    what = "two texts" if scope.kind == "self" else "two texts, through cross-attention"
    raise InputError(
        "the two recordings",
        expected="one text in two models, or two texts in one model, in self-attention",
        given=f"{what} ({len(first):,} and {len(second):,} tokens)"
        + ("" if _same_model(first, second) else f" in two models ({first.model.name} and {second.model.name})"),
        way_out="Record the same text with both, or both texts with one.",
    )


def _same_model(first: Recording, second: Recording) -> bool:
    """Whether one model made both, however far it was let read."""
    return first.model == replace(second.model, context=first.model.context)


def _pairs(first: Recording, second: Recording, scope: Scope) -> list[tuple[Call, Call]]:
    """Return the calls that both have, layer by layer."""
    own = {(call.layer, call.repeat): call for call, _ in scope.calls(first)}
    other = {(call.layer, call.repeat): call for call, _ in scope.calls(second)}
    pairs = [(call, other[at]) for at, call in own.items() if at in other]
    if not any(set(one.head_numbers) & set(another.head_numbers) for one, another in pairs):
        held, held_too = (", ".join(dict.fromkeys(str(layer) for layer, _ in each)) for each in (own, other))
        raise InputError(
            "the two recordings",
            expected="a layer, and a head of it, that both hold",
            given=f"layers {held} and {held_too}" if not pairs else "none that is in both",
            way_out="Record the same layers and heads of both.",
        )
    for recording, calls in ((first, own.values()), (second, other.values())):
        for call in calls:
            require_whole_text(recording, call)
            require_all_rows(call)
    for one, another in pairs:
        if (one.destinations, one.sources) != (another.destinations, another.sources) and _texts(first) == _texts(
            second
        ):
            raise InputError(
                "the two recordings",
                expected="calls over the same positions, so that each weight has its counterpart",
                given=" and ".join(f"{c.destinations:,} over {c.sources:,} in layer {c.layer}" for c in (one, another)),
                way_out="Compare the layers, or the parts, that both have alike.",
            )
    return pairs


def _of_weights(
    first: Recording,
    second: Recording,
    scope: Scope,
    pairs: Sequence[tuple[Call, Call]],
    top: int,
    progress: Progress | None,
) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    again = any(one.repeat for one, _ in pairs)
    # a head a thread: threads within the small products of a strip would wait for one another
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:  # type: ignore[no-untyped-call]
        for done, (one, other) in enumerate(pairs):
            shared = sorted(set(one.head_numbers) & set(other.head_numbers))
            listed, _ = first.texts_of(one)
            found = pool.map(partial(_distance, listed, one, other), shared)
            more = (one.repeat,) if again else ()
            rows += [(one.layer, head, *distance, *more) for head, distance in zip(shared, found, strict=True)]
            if progress is not None:
                progress(done + 1, len(pairs))
    rows.sort(key=_largest_first)
    known = first.known_texts(pairs[0][0])[1] is not None
    compared = f"the same {len(first):,} tokens" if known else "their positions"
    return Answer(
        question=f"In which heads{scope.of(first.model)} do {_named(first, second)} weight {compared} most "
        "differently?",
        columns=(
            Column("layer", "", "the layer, from 0"),
            Column("head", "", "the head, from 0"),
            Column("moved", "share", "½ Σ |a - b| of a destination's row, mean over the destinations"),
            Column("largest", "share", "the same at the destination where it is largest"),
            Column("at", "position", "that destination"),
            Column("token", "", "its token"),
            *([REPEAT] if again else []),
        ),
        rows=tuple(rows[:top]),
        exactness=exactness_of([call for pair in pairs for call in pair]),
        left_out=_left_out(len(rows), top, [row[2] for row in rows]),
        remainder=0.0,
        gaps=tuple(dict.fromkeys((*first.gaps, *second.gaps))),
    )


def _distance(listed: Tokens, one: Call, other: Call, head: int) -> tuple[Cell, ...]:
    """Return the mean and the largest total variation distance of a head's rows, and where that is."""
    distances = np.full(one.destinations, np.nan)  # NaN where one of the two may read nothing
    for start in range(0, one.destinations, STRIP):
        rows = range(start, min(start + STRIP, one.destinations))
        read = range(rows.stop if one.mask.causal and other.mask.causal else one.sources)
        apart = np.ma.getdata(window_in_single(one, head, rows, read))  # NaN where a destination may read nothing
        apart -= np.ma.getdata(window_in_single(other, head, rows, read))
        moved = np.abs(apart, out=apart).sum(axis=1, dtype=np.float64)
        moved += np.abs(sink_share(one, head, rows) - sink_share(other, head, rows))
        distances[rows.start : rows.stop] = 0.5 * moved
    if np.isnan(distances).all():
        return None, None, None, None
    at = int(np.nanargmax(distances))
    return float(np.nanmean(distances)), float(distances[at]), at, listed[at].label


def _of_figures(first: Recording, second: Recording, scope: Scope, top: int) -> Answer:
    layer = None if scope.layers is None else scope.layers[0]
    own, other = (
        {
            (row["layer"], row["head"], row.get("repeat", 0)): row
            for row in heads(recording, layer=layer, part=scope.part, repeat=scope.repeat)
        }
        for recording in (first, second)
    )
    sizes = [len(recording.read_by("self", scope.part)[0]) for recording in (first, second)]
    again = any(repeat for _, _, repeat in own)
    rows: list[tuple[Cell, ...]] = [
        (*at[:2], *_largest_difference(own[at], other[at]), *at[2:][: int(again)]) for at in own if at in other
    ]
    rows.sort(key=_largest_first)
    return Answer(
        question=f"In which heads{scope.of(first.model)} of {first.model.name} do the figures of two texts, of "
        f"{sizes[0]:,} and {sizes[1]:,} tokens, differ most?",
        columns=(
            Column("layer", "", "the layer, from 0"),
            Column("head", "", "the head, from 0"),
            Column("apart", "share", f"the largest difference among {', '.join(SHARES)}"),
            Column("figure", "", "which figure that is"),
            Column("first_text", "share", "that figure in the first text"),
            Column("second_text", "share", "the same in the second"),
            *([REPEAT] if again else []),
        ),
        rows=tuple(rows[:top]),
        exactness=exactness_of([*first.calls, *second.calls]),
        left_out=_left_out(len(rows), top, [row[2] for row in rows]),
        remainder=0.0,
        gaps=tuple(dict.fromkeys((*first.gaps, *second.gaps))),
    )


def _largest_first(row: tuple[Cell, ...]) -> float:
    return 1.0 if row[2] is None else -float(row[2])


def _largest_difference(own: dict[str, Cell], other: dict[str, Cell]) -> tuple[Cell, ...]:
    found = [
        (abs(a - b), name, a, b)
        for name in SHARES
        if isinstance(a := own[name], float) and isinstance(b := other[name], float)
    ]
    return max(found) if found else (None, None, None, None)


def _named(first: Recording, second: Recording) -> str:
    if _same_model(first, second):
        return f"two recordings by {first.model.name}"
    return f"{first.model.name} and {second.model.name}"


def _left_out(count: int, top: int, values: Sequence[Cell]) -> str:
    rest = [value for value in values[top:] if isinstance(value, float)]
    if count <= top:
        return "No head that both hold is left out."
    most = f", none of them above {max(rest):.4f}" if rest else ""
    return f"Not listed: {count - top} more heads{most}."
