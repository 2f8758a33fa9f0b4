"""What every statistic means, computed plainly (floor 2): float64, a strip of destinations by all sources at a time.

It takes an `Attention` and gives the arrays of a scan. The fast engines are tested against this page, and it answers
where a map is so small that nothing is gained by compiling. The words are those of `wherefrom.scans.Scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from wherefrom.scans.contract import OF_ROWS, Array, Attention, Bools, Floats, Ints
from wherefrom.scans.result import distance_bins, zoom_levels

STRIP = 64
"""Destinations at once; a dozen arrays of this many rows by all sources live at a time."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Some destinations of one head, by all sources."""

    head: int
    rows: slice
    i: Ints  # R 1, positions
    j: Ints  # S
    codes: Array | None  # S
    permitted: Bools  # R S, nothing in an empty row
    s: Floats  # R S, -inf where not permitted
    lse: Floats  # R 1, 0 of an empty row, so that nothing becomes infinite
    logs: Floats  # R S, s - lse
    a: Floats  # R S, exp(s - lse)


def pieces(attention: Attention, strip: int) -> Iterator[Piece]:
    """Yield all destinations of each head in turn."""
    T, S, mask = attention.destinations, attention.sources, attention.mask
    for head, key_head in enumerate(attention.key_heads):
        k = attention.k[key_head].astype(np.float64)  # S D
        for start in range(0, T, strip):
            rows = slice(start, min(start + strip, T))
            empty = attention.empty[head, rows, None]  # R 1
            permitted = mask.permitted(range(rows.start, rows.stop), range(S))
            permitted = (permitted[head] if permitted.ndim == 3 else permitted) & ~empty  # R S
            s = attention.q[head, rows].astype(np.float64) @ k.T * attention.scale  # R S
            if attention.softcap is not None:
                s = attention.softcap * np.tanh(s / attention.softcap)
            if attention.bias is not None:
                bias = attention.bias[head if len(attention.bias) > 1 else 0, rows]
                s, permitted = s + bias, permitted & ~np.isneginf(bias)
            s = np.where(permitted, s, -np.inf)
            lse = np.where(empty, 0.0, attention.lse[head, rows, None])  # R 1
            i = mask.offset + np.arange(rows.start, rows.stop)[:, None]
            yield Piece(head, rows, i, np.arange(S), attention.codes, permitted, s, lse, s - lse, np.exp(s - lse))


def entropy(p: Piece) -> Floats:
    """Return -sum a log a; where a is 0 it counts as 0, and what rounding of lse puts below 0 is 0."""
    return np.asarray(np.maximum(-np.where(p.a > 0, p.a * np.where(p.a > 0, p.logs, 0.0), 0.0).sum(axis=1), 0.0))


def on(p: Piece, back: int) -> Floats:
    """Return the weight on the position that many before the destination's own."""
    return np.asarray(np.where(p.j == p.i - back, p.a, 0.0).sum(axis=1))


def duplicate(p: Piece) -> Floats:
    """Return the weight on all earlier positions of the destination's own token."""
    assert p.codes is not None
    same = p.codes == p.codes[p.i]  # R S
    return np.asarray(np.where(same & (p.j < p.i), p.a, 0.0).sum(axis=1))


def induction(p: Piece) -> Floats:
    """Return the weight on all positions right after one of those."""
    assert p.codes is not None
    same = p.codes[:-1] == p.codes[p.i]  # R S-1, of the position before each source from 1 up
    return np.asarray(np.where(same & (p.j[1:] <= p.i), p.a[:, 1:], 0.0).sum(axis=1))


def distance(p: Piece) -> Floats:
    """Return the mean of |i - j|, each weighing a; NaN where no weight is left."""
    total = p.a.sum(axis=1)
    reached = (p.a * np.abs(p.i - p.j)).sum(axis=1)
    return np.asarray(np.divide(reached, total, out=np.full(total.shape, np.nan), where=total > 0))


EACH: dict[str, Callable[[Piece], Floats]] = {
    "entropy": entropy,
    "largest": lambda p: np.asarray(p.a.max(axis=1)),
    "first": lambda p: p.a[:, 0],
    "itself": lambda p: on(p, 0),
    "previous": lambda p: on(p, 1),
    "duplicate": duplicate,
    "induction": induction,
    "distance": distance,
    "largest_score": lambda p: np.asarray(p.s.max(axis=1)),
}


def scan_reference(
    attention: Attention, wanted: frozenset[str], *, threshold: float, top: int, block: int, strip: int | None = None
) -> dict[str, Array]:
    """Return the arrays of a `Scan` of what is wanted, in float64 (the zoom's in float32)."""
    H, T, S = attention.heads, attention.destinations, attention.sources
    arrays = blank_arrays(attention, wanted, top)
    zoom = Blocks.empty(H, T, S, block) if "zoom" in wanted else None
    for p in pieces(attention, STRIP if strip is None else strip):
        for name in (name for name in EACH if name in arrays):
            arrays[name][p.head, p.rows] = EACH[name](p)
        if "distances" in arrays:
            arrays["distances"][p.head] += by_distance(p, attention.farthest)
        if "received" in arrays:
            arrays["received"][p.head] += p.a.sum(axis=0)
        if "readers" in arrays:
            arrays["readers"][p.head] += (p.a >= threshold).sum(axis=0)
        if "last_reader" in arrays:
            row = p.rows.start + np.arange(len(p.a))[:, None]
            last = np.where(p.a >= threshold, row, -1).max(axis=0)
            arrays["last_reader"][p.head] = np.maximum(arrays["last_reader"][p.head], last)
        if "strongest.ids" in arrays:
            find_strongest(p, top, arrays)
        if zoom is not None:
            zoom.add(p)
    arrays |= finish(attention, arrays)
    if zoom is not None:
        shared = (zoom.pairs == zoom.pairs[:1]).all()
        arrays |= zoom_levels(block, zoom.largest, zoom.total, zoom.pairs[0] if shared else zoom.pairs)
    return arrays


def blank_arrays(attention: Attention, wanted: frozenset[str], top: int) -> dict[str, Array]:
    """Return the arrays that any engine fills, of what is wanted but the zoom: sums of 0, sources of -1, else NaN."""
    H, T, S = attention.heads, attention.destinations, attention.sources
    arrays: dict[str, Array] = {name: np.full((H, T), np.nan) for name in OF_ROWS if name in wanted}
    if "distances" in wanted:
        arrays["distances"] = np.zeros((H, len(distance_bins(attention.farthest))))
    if "received" in wanted:
        arrays["received"] = np.zeros((H, S))
    if "readers" in wanted:
        arrays["readers"] = np.zeros((H, S), np.int64)
    if "last_reader" in wanted:
        arrays["last_reader"] = np.full((H, S), -1)
    if "top" in wanted:
        arrays["strongest.ids"] = np.full((H, T, top), -1, np.int32)
        arrays["strongest.weights"] = np.full((H, T, top), np.nan)
        arrays["strongest.remainder"] = np.full((H, T), np.nan)
    return arrays


def finish(attention: Attention, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return sink shares, and means instead of sums; write NaN into the empty rows."""
    empty, found = attention.empty, {}
    if "sink" in arrays and attention.sinks is not None:
        logs = attention.sinks.astype(np.float64)[:, None] - np.where(empty, 0.0, attention.lse)
        found["sink"] = np.exp(np.where(empty, np.nan, logs))
    if "distances" in arrays:
        number = (~empty).sum(axis=1)[:, None]  # H 1
        found["distances"] = np.where(number > 0, arrays["distances"] / np.maximum(number, 1), np.nan)
    for name in (name for name in (*EACH, "strongest.remainder") if name in arrays):
        arrays[name][empty] = np.nan
    return found


def by_distance(p: Piece, farthest: int) -> Floats:
    """Return the sum of the weights at the distances of each bin."""
    distances = np.abs(p.i - p.j)
    bins = distance_bins(farthest)
    return np.array([p.a[(bin_.start <= distances) & (distances < bin_.stop)].sum() for bin_ in bins])


def find_strongest(p: Piece, top: int, arrays: dict[str, Array]) -> None:
    """Write the strongest sources of each row; sorting is stable, so that of equal ones the lower comes first."""
    order = np.argsort(-p.logs, axis=1, kind="stable")[:, :top]  # R top
    there = np.take_along_axis(p.permitted, order, axis=1)
    weights = np.where(there, np.take_along_axis(p.a, order, axis=1), 0.0)
    arrays["strongest.ids"][p.head, p.rows, : order.shape[1]] = np.where(there, order, -1)
    arrays["strongest.weights"][p.head, p.rows, : order.shape[1]] = np.where(there, weights, np.nan)
    others = p.a.copy()
    np.put_along_axis(others, order, 0.0, axis=1)
    arrays["strongest.remainder"][p.head, p.rows] = others.sum(axis=1)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The finest blocks of the zoom, filled row by row."""

    block: int
    largest: Floats  # H R C
    total: Floats
    pairs: Ints

    @classmethod
    def empty(cls, heads: int, rows: int, columns: int, block: int) -> Blocks:
        """Return blocks that hold nothing."""
        shape = (heads, -(-rows // block), -(-columns // block))
        return cls(block, np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64))

    def add(self, p: Piece) -> None:
        """Add each row of a piece to its row of blocks."""
        starts = np.arange(0, len(p.j), self.block)
        rows = np.arange(p.rows.start, p.rows.stop) // self.block
        np.maximum.at(self.largest[p.head], rows, np.maximum.reduceat(p.a, starts, axis=1))
        np.add.at(self.total[p.head], rows, np.add.reduceat(p.a, starts, axis=1))
        np.add.at(self.pairs[p.head], rows, np.add.reduceat(p.permitted.astype(np.int64), starts, axis=1))
