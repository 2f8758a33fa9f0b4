"""Any weight, exactly (floor 4): a_ij = exp(s_ij - lse_i) from the recorded q, k and lse, in double precision.

Each function costs what it returns: a row and a column are one matrix-vector product a head, a window one small matrix
product. Weights of sources that are not permitted are exactly 0; a destination that may read nothing has no row, and
its entries are NaN in a masked array, masked. These are the plain numbers; `wherefrom.questions.asked` puts words to
them. Heads and positions are true numbers; what a recording does not keep is refused by name.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.recording import Array, Call

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Masked: TypeAlias = np.ma.MaskedArray[tuple[int, ...], np.dtype[np.float64]]

KEYS_AT_ONCE = 512
"""Keys turned into double precision together: 256 KB at a head size of 64, which stays in a core's cache."""
SHORT = 4096
"""Up to so many sources, every score of a row is computed in double precision."""
WORTH = 1e-4
"""Weights above this are computed in double precision, however long the row. Of a smaller one in a long row score and
exp are float32, the score off by some 1e-5, and so the weight by less than 1e-8."""
LARGE = 2**14
"""A window of so many weights is worth the compiled exp, which takes half a second to load, once."""


def window_of_weights(call: Call, head: int, destinations: range, sources: range) -> Masked:
    """Return the weights [len(destinations), len(sources)] of one head; rows that may read nothing are masked.

    Raises:
        InputError: a head or destination that the recording does not keep.
    """
    return _window(call, head, destinations, sources, np.float64)


def window_in_single(call: Call, head: int, destinations: range, sources: range) -> Masked:
    """Return the same in float32 throughout, several times as quickly: for who goes over whole maps, in strips.

    Scores are off by some 1e-5, and so is a weight, relatively.

    Raises:
        InputError: as `window_of_weights`.
    """
    return _window(call, head, destinations, sources, np.float32)


def _window(call: Call, head: int, destinations: range, sources: range, kind: type[np.floating[Any]]) -> Masked:
    place, columns = call.place_of_head(head), slice(sources.start, sources.stop)
    rows = _places(call, destinations)
    lse = call.lse[place, rows]
    empty = np.isneginf(lse)
    pivot = np.where(empty, 0, lse)  # whatever comes of an empty row is masked
    q, k = call.q[place, rows], call.k[call.key_heads[place], columns]  # T D, S D
    if call.softcap is None and call.bias is None:
        scores = _less(q, k, call.scale, pivot, kind)  # T S
    else:
        scores = capped(call, (call.scale * q.astype(np.float64)).astype(kind) @ k.astype(kind).T)
        if call.bias is not None:
            scores += call.bias[place if len(call.bias) > 1 else 0][rows, columns]
        scores -= pivot.astype(kind)[:, None]
    weights = _exp_over(scores)
    permitted = _permitted(call, head, destinations, sources)
    if permitted is not None:
        weights[~permitted] = 0.0
    return _marked(weights, empty[:, None])


def row_of_weights(call: Call, destination: int) -> Masked:
    """Return what one destination reads in every head that was kept, [H, S].

    Raises:
        InputError: a destination that the recording does not keep.
    """
    at = call.place_of_row(destination)
    reach = call.mask.reach(destination, call.sources)
    weights = np.zeros((call.heads, call.sources))
    lse = call.lse[:, at].astype(np.float64)  # H
    keys, readers = np.asarray(call.key_heads), call.head_numbers
    for key_head in np.unique(keys):
        own = np.flatnonzero(keys == key_head)  # the heads that read these keys
        weights[own, reach.start : reach.stop] = _rows(call, own, at, int(key_head), reach, lse[own])
    if call.mask.padding is not None or call.mask.explicit is not None:
        permitted = call.mask.permitted([destination], reach)  # [H] 1 S
        allowed = permitted[list(readers), 0] if permitted.ndim == 3 else permitted
        weights[:, reach.start : reach.stop][np.broadcast_to(~allowed, (call.heads, len(reach)))] = 0.0
    return _marked(weights, np.isneginf(lse)[:, None])


def column_of_weights(call: Call, source: int) -> Masked:
    """Return who reads one source in every head that was kept, [H, T], T the destinations that were kept."""
    weights = np.empty(call.shapes["lse"])
    lse = call.lse.astype(np.float64)
    for place, key_head in enumerate(call.key_heads):
        k = call.scale * call.k[key_head, source].astype(np.float64)  # D
        scores = capped(call, _products(call.q[place], k[:, None])[:, 0])  # T
        if call.bias is not None:
            scores += call.bias[place if len(call.bias) > 1 else 0, :, source]
        weights[place] = scores
    permitted = call.mask.permitted(call.rows, [source])[..., 0]  # T or H T
    allowed = permitted[list(call.head_numbers)] if permitted.ndim == 2 else permitted
    exponent = np.where(allowed, weights - pivot_of(lse), -np.inf)
    return _marked(_exp(exponent), np.isneginf(lse))


def _rows(call: Call, own: NDArray[np.int64], at: int, key_head: int, reach: range, lse: Floats) -> Floats:
    """Return the weights [len(own), len(reach)] of heads that read the same keys; of a long row in two steps."""
    columns = slice(reach.start, reach.stop)
    q, k = call.q[own, at], call.k[key_head, columns]  # H D, S D
    pivot = pivot_of(lse)[:, None]
    bias: Array | float = 0.0
    if call.bias is not None:
        bias = call.bias[own if len(call.bias) > 1 else [0], at, columns]
    double = call.scale * q.astype(np.float64).T  # D H
    if len(reach) <= SHORT or k.dtype != np.float32:
        return _exp(capped(call, _products(k, double).T) + bias - pivot)
    rough = capped(call, (k @ (np.float32(call.scale) * q).T).T)  # float32 scores, H S
    weights = _exp(rough + bias - pivot.astype(np.float32)).astype(np.float64)
    for place in range(len(own)):
        worth = np.flatnonzero(weights[place] > WORTH)
        exact = capped(call, k[worth].astype(np.float64) @ double[:, place])
        added = np.broadcast_to(bias, weights.shape)[place, worth]
        weights[place, worth] = _exp(exact + added - pivot[place])
    return weights


def _products(many: Array, few: Floats) -> Floats:
    """Return many [N, D] @ few [D, C] in double precision, a part of the many at a time."""
    out = np.empty((len(many), few.shape[1]))
    for start in range(0, len(many), KEYS_AT_ONCE):
        part = slice(start, start + KEYS_AT_ONCE)
        np.matmul(many[part].astype(np.float64), few, out=out[part])
    return out


def _less(q: Array, k: Array, scale: float, pivot: Array, kind: type[np.floating[Any]]) -> NDArray[Any]:
    """Return scale q k^T - pivot [T, S]: the pivot is one more number of q, against a 1 in k, and costs no pass."""
    wide, ones = (np.ones((len(one), one.shape[1] + 1), kind) for one in (q, k))
    wide[:, :-1] = q
    wide[:, :-1] *= scale
    np.negative(pivot, out=wide[:, -1])
    ones[:, :-1] = k
    return np.asarray(wide @ ones.T)


def _exp(exponent: NDArray[Any]) -> NDArray[Any]:
    """Return exp, written over the exponents.

    That of a source that is not permitted may be beyond every number; it is replaced by 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(exponent, out=exponent))


def _exp_over(exponent: NDArray[Any]) -> NDArray[Any]:
    """Return the same, of a large window in double precision by a compiled loop: numpy's takes four times as long."""
    if exponent.size < LARGE or exponent.dtype != np.float64:
        return _exp(exponent)
    from wherefrom.scans.exponential import exp_over

    exp_over(exponent.ravel(order="K"))  # a view of a fresh array, transposed or not
    return exponent


def pivot_of(lse: NDArray[Any]) -> NDArray[Any]:
    """Return what leaves the scores before exp: lse, and for a row that may read nothing what makes its weights 0."""
    return np.where(np.isneginf(lse), np.inf, lse)


def capped(call: Call, scores: NDArray[Any]) -> NDArray[Any]:
    """Return scores under the call's softcap, if it has one."""
    if call.softcap is None:
        return np.asarray(scores)
    return np.asarray(call.softcap * np.tanh(scores / call.softcap))


def permitted_pairs(call: Call, head: int, destinations: range, sources: range) -> Bools:
    """Return which pairs of one head are permitted, bool [T, S], by the mask and by the bias."""
    own = _permitted(call, head, destinations, sources)
    permitted = np.ones((len(destinations), len(sources)), bool) if own is None else own
    if call.bias is None:
        return permitted
    bias = call.bias[call.place_of_head(head) if len(call.bias) > 1 else 0]
    finite: Bools = permitted & ~np.isneginf(bias[_places(call, destinations), sources.start : sources.stop])
    return finite


def _permitted(call: Call, head: int, destinations: range, sources: range) -> Bools | None:
    """Return which pairs the mask permits, bool [T, S], or None where it permits all of them."""
    if call.mask.padding is None and call.mask.explicit is None:
        reaches = [call.mask.reach(row, call.sources) for row in (destinations[0], destinations[-1])]
        if all(reach.start <= sources.start and sources.stop <= reach.stop for reach in reaches):
            return None  # both ends of a row's reach grow with the row
    permitted = call.mask.permitted(destinations, sources)  # T S or H T S
    return permitted[head] if permitted.ndim == 3 else permitted


def _places(call: Call, destinations: range) -> slice | NDArray[np.int64]:
    """Return where the rows stand along the second axis of q."""
    if call.all_rows:
        return slice(destinations.start, destinations.stop)
    return np.array([call.place_of_row(row) for row in destinations])


def _marked(weights: Array, empty: Bools) -> Masked:
    """Return weights whose empty rows are masked, and NaN under the mask."""
    mask = np.zeros(weights.shape, bool)
    if empty.any():
        mask |= empty
        weights[mask] = np.nan
    # every weight is at most one: what rounding puts above is kept, it is within the exactness that is stated
    return np.ma.MaskedArray(weights, mask=mask, fill_value=np.nan)
