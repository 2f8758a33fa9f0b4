"""Any weight, exactly (floor 4): a_ij = exp(s_ij - lse_i) from the recorded q, k and lse, in double precision.

Each function costs what it returns: a row and a column are one matrix-vector product a head, a window one small matrix
product. Weights of sources that are not permitted are exactly 0; a destination that may read nothing has no row, and
its entries are NaN in a masked array, masked. These are the plain numbers; `wherefrom.questions.asked` puts words to
them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.recording import Call

Masked: TypeAlias = np.ma.MaskedArray[tuple[int, ...], np.dtype[np.float64]]


def window_of_weights(call: Call, head: int, destinations: range, sources: range) -> Masked:
    """Return the weights [len(destinations), len(sources)] of one head; rows that may read nothing are masked."""
    rows, columns = _slice(destinations), _slice(sources)
    q = call.q[head, rows].astype(np.float64)  # T D
    k = call.k[head // call.group, columns].astype(np.float64)  # S D
    scores = call.scale * (q @ k.T)  # T S
    values: Masked = _weights(call, scores[None], call.lse[head : head + 1, rows], destinations, sources, head)[0]
    return values


def row_of_weights(call: Call, destination: int) -> Masked:
    """Return what one destination reads in every head, [H, S]."""
    q = call.q[:, destination].astype(np.float64).reshape(call.k.shape[0], call.group, -1)  # K G D
    scores = call.scale * (q @ call.k.astype(np.float64).swapaxes(1, 2))  # K G S
    scores = scores.reshape(call.heads, 1, -1)  # H 1 S
    rows = range(destination, destination + 1)
    return _weights(call, scores, call.lse[:, destination, None], rows, range(call.k.shape[1]))[:, 0]


def column_of_weights(call: Call, source: int) -> Masked:
    """Return who reads one source in every head, [H, T]."""
    k = call.k[:, source].astype(np.float64)  # K D
    q = call.q.astype(np.float64).reshape(call.k.shape[0], call.group, *call.q.shape[1:])  # K G T D
    scores = call.scale * np.einsum("kgtd,kd->kgt", q, k)  # K G T
    scores = scores.reshape(call.heads, -1, 1)  # H T 1
    rows = range(call.q.shape[1])
    return _weights(call, scores, call.lse, rows, range(source, source + 1))[:, :, 0]


def _weights(
    call: Call,
    scores: NDArray[np.float64],
    lse: NDArray[np.float32],
    destinations: range,
    sources: range,
    head: int | None = None,
) -> Masked:
    """Return exp(scores [H, T, S] - lse [H, T]) with the mask applied; `head` picks one head's mask."""
    permitted = call.mask.permitted(destinations, sources)  # T S or H T S
    if permitted.ndim == 3 and head is not None:
        permitted = permitted[head : head + 1]
    exponent = np.where(permitted, scores - lse.astype(np.float64)[..., None], -np.inf)
    empty = np.broadcast_to(np.isneginf(lse)[..., None], exponent.shape)
    # every weight is at most one: what rounding puts above is kept, it is within the exactness that is stated
    return np.ma.MaskedArray(np.exp(exponent), mask=empty)


def _slice(indices: range) -> slice:
    return slice(indices.start, indices.stop)
