"""One destination of one head, worked through (floor 4): scores, softmax, weighted sum, as the lesson does it by hand.

The numbers are the head's own. The strongest sources are shown one by one, the others as one remainder, so that what is
shown adds up to the output; and the sums that have to hold are told with how far they are off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import whole
from wherefrom.questions.exact import capped, permitted_pairs, window_of_weights
from wherefrom.recording import Call

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Worked:
    """A row of attention with what it is made of. Of n sources shown, D numbers a key, V a value.

    Attributes:
        sources: the n strongest, the largest weight first.
        q: [D], the destination's query.
        k: [n, D], their keys.
        v: [n, V], their values.
        products: [n], q . k.
        scores: [n], what the softmax is taken of: scaled, capped, with the bias.
        weights: [n].
        parts: [n, V], a v: what each moves, before the output projection.
        rest: [V], what all other sources move together.
        output: [V], the weighted sum of all values, y.
        others: how many other sources it may read.
        rest_weight: their weight together.
        lse: log of the sum of exp(score) over all permitted sources, and the sink.
        sink: the share of the row that the head's sink takes; None without one.
        off: by how much the row's weights, the sink's share included, miss 1.
    """

    sources: NDArray[np.int64]
    q: Floats
    k: Floats
    v: Floats
    products: Floats
    scores: Floats
    weights: Floats
    parts: Floats
    rest: Floats
    output: Floats
    others: int
    rest_weight: float
    lse: float
    sink: float | None
    off: float


def worked_row(call: Call, head: int, destination: int, *, top: int = 8) -> Worked | None:
    """Return a row with what it is made of; None where the destination may read nothing.

    Args:
        call: of a recording.
        head: its number.
        destination: that reads.
        top: how many sources are shown one by one.

    Raises:
        InputError: a head or destination that the recording does not keep; a top below 1.
    """
    most = whole("the number of sources", top, least=1, way_out="Eight are readable.")
    place, row = call.place_of_head(head), call.place_of_row(destination)
    lse = float(call.lse[place, row])
    if np.isneginf(lse):
        return None
    reach = call.mask.reach(destination, call.sources)
    weights = np.zeros(call.sources)
    weights[reach.start : reach.stop] = window_of_weights(call, head, range(destination, destination + 1), reach)[0]
    readable = np.zeros(call.sources, bool)
    readable[reach.start : reach.stop] = permitted_pairs(call, head, range(destination, destination + 1), reach)[0]
    order = np.argsort(np.where(readable, -weights, 1.0), kind="stable")[: min(most, int(readable.sum()))]
    q = call.q[place, row].astype(np.float64)
    keys, values = (array[call.key_heads[place]] for array in (call.k, call.v))
    k, v = keys[order].astype(np.float64), values[order].astype(np.float64)
    output = _weighted(weights, values, reach)
    parts = weights[order, None] * v
    sink = None if call.sinks is None else float(np.exp(float(call.sinks[place]) - lse))
    products = k @ q
    scores = capped(call, call.scale * products)
    if call.bias is not None:
        scores = scores + call.bias[place if len(call.bias) > 1 else 0][row, order]
    return Worked(
        sources=order,
        q=q,
        k=k,
        v=v,
        products=products,
        scores=scores,
        weights=weights[order],
        parts=parts,
        rest=output - parts.sum(axis=0),
        output=output,
        others=int(readable.sum()) - len(order),
        rest_weight=float(weights.sum() - weights[order].sum()),
        lse=lse,
        sink=sink,
        off=abs(1.0 - float(weights.sum()) - (sink or 0.0)),
    )


def _weighted(weights: Floats, values: NDArray[np.floating], reach: range) -> Floats:
    """Return the weighted sum [V] of the values within reach, in double precision, some at a time."""
    total = np.zeros(values.shape[1])
    for start in range(reach.start, reach.stop, 4096):
        stop = min(start + 4096, reach.stop)
        total += weights[start:stop] @ values[start:stop].astype(np.float64)
    return total
