"""What rounding q, k and v does to the weights (floor 2): measured on some rows of every head, in double precision.

Takes masks from below and the contents from beside it. Gives the writer a `Stored` for each call that it rounds. The
log-sum-exp is never rounded: a row's weights from rounded q and k then no longer sum to exactly one, and by how much
is the error that is said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wherefrom.recording.call import Array, Call, Stored
from wherefrom.recording.layout import FORMATS
from wherefrom.recording.tensors import as_read, as_stored

ROWS = 5
"""Rows of every head that are looked at: the ends and some between."""
STRIP = 4096
"""Sources that are computed at once, so that the memory this takes does not grow with the text."""

Floats = NDArray[np.float64]


def rounded(values: Array, form: str) -> Array:
    """Return numbers as they will be read from a file that holds them in a format, such as "float16"."""
    return as_read(as_stored(np.ascontiguousarray(values), FORMATS[form]), FORMATS[form])


def measure(call: Call, form: str) -> Stored:
    """Return what rounding a call's q and k to a format changes in some rows of every head.

    Rows in which no head may read anything have no weights and are passed over; the numbers are within the range.
    """
    places = _some_rows(call.lse)
    lse = call.lse[:, places].astype(np.float64)  # H R
    lse[np.isneginf(lse)] = np.inf  # so that each weight of a row that may read nothing is 0
    change, sums = 0.0, np.zeros(lse.shape)
    for start in range(0, call.sources if len(places) else 0, STRIP):
        columns = range(start, min(start + STRIP, call.sources))
        for key_head in sorted(set(call.key_heads)):
            own = np.flatnonzero(np.array(call.key_heads) == key_head)
            q, k = call.q[np.ix_(own, places)], call.k[key_head, columns.start : columns.stop]  # G R D, S D
            before = _weights(call, own, places, columns, q, k, lse[own])
            after = _weights(call, own, places, columns, rounded(q, form), rounded(k, form), lse[own])
            change = max(change, float(np.abs(after - before).max(initial=0.0)))
            sums[own] += after.sum(axis=-1)
    if call.sinks is not None:
        sums += np.exp(call.sinks.astype(np.float64)[:, None] - lse)
    off = np.abs(sums - 1.0)[np.isfinite(lse)]
    return Stored(form, tuple(call.rows[places].tolist()), change, float(off.max(initial=0.0)))


def _some_rows(lse: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the places of at most `ROWS` rows, spread evenly, of those in which some head reads something."""
    found = np.flatnonzero(lse.max(axis=0) > -np.inf)
    return found[np.unique(np.linspace(0, len(found) - 1, min(ROWS, len(found))).round().astype(np.int64))]


def _weights(
    call: Call, own: NDArray[np.int64], places: NDArray[np.int64], columns: range, q: Array, k: Array, lse: Floats
) -> Floats:
    """Return the weights [G, R, S] of heads that read the same keys, at some rows and a strip of sources."""
    wide = q.astype(np.float64).reshape(-1, q.shape[-1])  # G * R, D: one matrix product
    scores = call.scale * (wide @ k.astype(np.float64).T).reshape(*q.shape[:2], len(k))
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.bias is not None:
        bias = call.bias[np.ix_(own if len(call.bias) > 1 else own[:1] * 0, places)]  # G or 1, R S
        scores += bias[..., columns.start : columns.stop]
    permitted = call.mask.permitted(call.rows[places], columns)  # R S or A R S
    allowed = permitted[[call.head_numbers[place] for place in own.tolist()]] if permitted.ndim == 3 else permitted
    weights: Floats = np.exp(np.where(allowed, scores - lse[..., None], -np.inf))
    return weights
