"""The questions (floor 4): the strongest sources of a destination, the readers of a source, a window of weights.

They take a recording, call `wherefrom.questions.exact` for the numbers, and return answers. A weight says how values
were mixed in one head; what mattered is measured elsewhere (`wherefrom.evidence`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Column, Window
from wherefrom.questions.exact import Masked, column_of_weights, row_of_weights, window_of_weights
from wherefrom.questions.scope import Scope
from wherefrom.recording import Call, Recording, check_index

EXACTNESS = "exact: recomputed from the recorded q, k and lse, within float32 rounding (about 1e-5)"
MOST_CELLS = 2**24
"""A window of more cells (16.8 million, 134 MB) is refused: nobody reads it."""


def sources(
    recording: Recording,
    destination: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    top: int = 10,
) -> Answer:
    """Which sources does a destination read most? The mean of its row over the heads asked for, the strongest first.

    Args:
        recording: of any model.
        destination: the position that reads; the last unless given.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        top: how many sources to return; the rest is the remainder.

    Raises:
        InputError: a position, layer or head out of range, or top below 1.
    """
    i = len(recording) - 1 if destination is None else check_index("position", destination, len(recording))
    scope = _scope(recording, layer, head)
    mean, largest, where = _summed(recording, scope, lambda call: row_of_weights(call, i))
    order = _strongest(mean, top)
    remainder = max(0.0, float(mean.sum() - mean[order].sum()))
    token = recording.tokens[i].label
    return Answer(
        question=f'Which sources does position {i} ("{token}") read? {scope.describe(recording)}',
        columns=_columns("source", "a source's share of the destination's row"),
        rows=_rows(recording, order, mean, largest, where),
        exactness=EXACTNESS,
        left_out=f"Not listed: {_counted(mean, order, 'source')} with {remainder:.4f} of the weight.",
        remainder=remainder,
    )


def readers(
    recording: Recording,
    source: int,
    *,
    layer: int | None = None,
    head: int | None = None,
    top: int = 10,
) -> Answer:
    """Who reads a source most? Each destination's weight on it, the mean over the heads asked for, the strongest first.

    The weights of different readers are shares of different rows: they do not sum to one.

    Args:
        recording: of any model.
        source: the position that is read.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        top: how many readers to return; the rest is the remainder.

    Raises:
        InputError: a position, layer or head out of range, or top below 1.
    """
    j = check_index("position", source, len(recording))
    scope = _scope(recording, layer, head)
    mean, largest, where = _summed(recording, scope, lambda call: column_of_weights(call, j))
    order = _strongest(mean, top)
    remainder = max(0.0, float(mean.sum() - mean[order].sum()))
    token = recording.tokens[j].label
    return Answer(
        question=f'Who reads position {j} ("{token}")? {scope.describe(recording)}',
        columns=_columns("destination", "this source's share of the destination's row"),
        rows=_rows(recording, order, mean, largest, where),
        exactness=EXACTNESS,
        left_out=f"Not listed: {_counted(mean, order, 'destination')} with {remainder:.4f} of a row in all.",
        remainder=remainder,
    )


def weights(
    recording: Recording,
    *,
    layer: int,
    head: int,
    destinations: range | None = None,
    sources: range | None = None,
) -> Window:
    """Return an exact window of one head's weights.

    Args:
        recording: of any model.
        layer: from 0.
        head: from 0.
        destinations: the rows, a range of step 1; all unless given.
        sources: the columns, a range of step 1; all unless given.

    Raises:
        InputError: anything out of range, an empty range, or more than 16.8 million cells.
    """
    call = recording.call(check_index("layer", layer, recording.model.layers))
    head = check_index("head", head, call.heads)
    rows = _range("destinations", destinations, call.q.shape[1])
    columns = _range("sources", sources, call.k.shape[1])
    if len(rows) * len(columns) > MOST_CELLS:
        raise InputError(
            "the window",
            expected=f"at most {MOST_CELLS:,} cells",
            given=f"{len(rows):,} destinations x {len(columns):,} sources",
            way_out="Ask for a smaller window.",
        )
    values = window_of_weights(call, head, rows, columns)
    return Window(
        question=f"How does head {head} of layer {layer} weight sources {columns.start} to {columns.stop - 1} "
        f"for destinations {rows.start} to {rows.stop - 1}?",
        layer=layer,
        head=head,
        destinations=rows,
        sources=columns,
        values=values,
        exactness=EXACTNESS,
        left_out=np.ma.MaskedArray(1.0 - values.sum(axis=1)),
    )


def mean_row(recording: Recording, destination: int, scope: Scope) -> NDArray[np.float64]:
    """Return the mean weight [S] that a destination gives each source, over the heads in scope."""
    return _summed(recording, scope, lambda call: row_of_weights(call, destination))[0]


def _summed(
    recording: Recording, scope: Scope, weights_of: Callable[[Call], Masked]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean [N], the largest [N], and the (layer, head) [N, 2] where it is largest, over heads in scope."""
    total, largest, where, count = np.zeros(0), np.zeros(0), np.zeros((0, 2), np.int64), 0
    for call, heads in scope.calls(recording):
        values = weights_of(call)[list(heads)].filled(0.0)  # an empty row gives nothing to anybody
        if not count:
            total, largest = np.zeros(values.shape[1]), np.full(values.shape[1], -1.0)
            where = np.zeros((values.shape[1], 2), np.int64)
        total += values.sum(axis=0)
        best = values.argmax(axis=0)
        peak = values[best, np.arange(values.shape[1])]
        higher = peak > largest
        largest[higher] = peak[higher]
        where[higher] = np.stack([np.full(best.size, call.layer), np.asarray(heads)[best]], axis=1)[higher]
        count += len(heads)
    return total / count, largest, where


def _scope(recording: Recording, layer: int | None, head: int | None) -> Scope:
    one = Scope(None if layer is None else (layer,), None if head is None else (head,))
    return one.checked(recording)


def _strongest(mean: NDArray[np.float64], top: int) -> NDArray[np.int64]:
    """Return the indices of the `top` largest above 0, ties in the order of the text."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError(
            "top", expected="a whole number from 1 up", given=repr(top), way_out="Say how many rows you want."
        )
    order = np.argsort(-mean, kind="stable")[:top]
    return order[mean[order] > 0]


def _counted(mean: NDArray[np.float64], order: NDArray[np.int64], what: str) -> str:
    """Return how many more have a weight, in words; those that the mask keeps out have none and are not counted."""
    count = int((mean > 0).sum()) - order.size
    return f"{count} more {what}{'' if count == 1 else 's'}"


def _columns(who: str, meaning: str) -> tuple[Column, ...]:
    return (
        Column(who, "", f"position of the {who}, from 0"),
        Column("token", "", f"the {who}'s token"),
        Column("weight", "share of a row", f"{meaning}, mean over the heads asked for"),
        Column("largest", "share of a row", "the same in the one head where it is largest"),
        Column("layer", "", "that head's layer"),
        Column("head", "", "that head"),
    )


def _rows(
    recording: Recording,
    order: NDArray[np.int64],
    mean: NDArray[np.float64],
    largest: NDArray[np.float64],
    where: NDArray[np.int64],
) -> tuple[tuple[int | str | float, ...], ...]:
    return tuple(
        (int(p), recording.tokens[int(p)].label, float(mean[p]), float(largest[p]), *map(int, where[p])) for p in order
    )


def _range(what: str, asked: range | None, size: int) -> range:
    whole = range(size) if asked is None else asked
    if whole.step != 1 or not 0 <= whole.start < whole.stop <= size:
        raise InputError(
            f"the range of {what}",
            expected=f"a range of step 1 within 0 to {size}",
            given=f"{whole}",
            way_out="The end of a range is not part of it: range(0, 3) is 0, 1 and 2.",
        )
    return whole
