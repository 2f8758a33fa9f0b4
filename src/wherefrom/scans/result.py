"""What a scan found (floor 2): its statistics, what they mean, the same as plain named arrays, and means by head.

It takes plain arrays from the engines beside it and gives `Scan` to the questions above. What a row without weights or
a block without permitted pairs would have is masked, with NaN (whole numbers: -1) beneath.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from wherefrom.errors import InputError
from wherefrom.scans.contract import OF_HEADS, OF_ROWS, OF_SOURCES, Array, Bools, Floats, Ints

Masked: TypeAlias = np.ma.MaskedArray[tuple[Any, ...], np.dtype[Any]]
LEVEL = re.compile(r"zoom\.(\d+)\.largest")


@dataclass(frozen=True, eq=False)
class Strongest:
    """The strongest sources of each destination, the strongest first; of equal weights the lower source first.

    Attributes:
        ids: int32 [H, T, top], the sources; masked, with -1 beneath, where fewer are permitted.
        weights: [H, T, top], their weights; masked likewise.
        remainder: [H, T], the sum of all other weights of the row, at least 0; masked where the row is empty.
    """

    ids: Masked
    weights: Masked
    remainder: Masked


@dataclass(frozen=True, eq=False)
class Level:
    """All weights of every head in blocks of `block` destinations by `block` sources: R by C blocks.

    Attributes:
        block: how many destinations and how many sources one holds; those at the ends hold what is left.
        largest: float32 [H, R, C], the largest weight of a permitted pair; masked where the block has none.
        mean: float32 [H, R, C], the mean weight of its permitted pairs; masked likewise.
        pairs: int64 [R, C], how many pairs are permitted; [H, R, C] where heads differ. Those of empty rows are not.
    """

    block: int
    largest: Masked
    mean: Masked
    pairs: Ints


@dataclass(frozen=True, eq=False)
class Scan:
    """What was asked of all weights of one call; `scan["entropy"]` and its like, `scan.strongest` and `scan.zoom`.

    Sums are taken over the weights a_ij as they are: with a sink a row sums to less than one.

    Per destination i, float64 [H, T], masked where it may read nothing; a source it may not read has weight 0:

    - entropy: -sum_j a_ij log a_ij, in nats, at least 0.
    - largest: its largest weight.
    - first, itself, previous: its weight on column 0, on its own position, on the one before.
    - duplicate: its weight on all earlier positions of its own token.
    - induction: its weight on all positions right after one of those, its own included.
    - distance: sum_j a_ij |i - j| / sum_j a_ij; masked also where float64 holds no weight, all being the sink's.
    - largest_score: its largest permitted score, before softmax.
    - sink: the sink's share, exp(sink - lse_i).

    Per head, float64 [H, bins]:

    - distances: the weight at |i - j| = 0, 1, 2 to 3, 4 to 7 and so on, mean over the destinations that are not empty.

    Per source j, [H, S]:

    - received: float64, the sum of the weights of all destinations.
    - readers: int64, how many destinations give it at least the threshold.
    - last_reader: int64, the row of the last that does; masked where none does.

    Attributes:
        arrays: the statistics by their names, in plain arrays; `to_arrays` copies them into one dict.
        empty: bool [H, T], the destinations that may read nothing.
        repeated: bool [T], the destinations whose token came before; None where no codes were given.
        sources: the number of sources, S.
        offset: the position of the first destination.
        threshold: the weight from which a destination counts as a reader.
        top: how many of the strongest sources were kept.
    """

    arrays: Mapping[str, Array]
    empty: Bools
    repeated: Bools | None
    sources: int
    offset: int
    threshold: float
    top: int

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics that it holds."""
        first = (name.split(".")[0] for name in self.arrays)
        return tuple(dict.fromkeys("top" if name == "strongest" else name for name in first))

    def __repr__(self) -> str:
        heads, rows = self.empty.shape
        return f"Scan({', '.join(self.names)}; {heads} heads, {rows} x {self.sources} positions)"

    def __getitem__(self, name: str) -> Masked:
        """Return one statistic of destinations, heads or sources by its name.

        Raises:
            InputError: it is none of those, or was not asked for.
        """
        if name not in (*OF_ROWS, *OF_HEADS, *OF_SOURCES) or name not in self.arrays:
            raise self._lacks(repr(name))
        values = self.arrays[name]
        blank = np.isnan(values) if values.dtype.kind == "f" else values < 0
        return np.ma.MaskedArray(values, mask=blank)

    @property
    def strongest(self) -> Strongest:
        """The strongest sources of each destination, asked for as "top".

        Raises:
            InputError: they were not.
        """
        if "strongest.ids" not in self.arrays:
            raise self._lacks("'top'")
        ids, weights, rest = (self.arrays[f"strongest.{name}"] for name in ("ids", "weights", "remainder"))
        few = ids < 0
        marked = np.ma.MaskedArray
        return Strongest(marked(ids, mask=few), marked(weights, mask=few), marked(rest, mask=np.isnan(rest)))

    @property
    def zoom(self) -> tuple[Level, ...]:
        """The weights in blocks, the finest level first, the last one block; asked for as "zoom".

        Raises:
            InputError: they were not.
        """
        blocks = sorted(int(found[1]) for name in self.arrays if (found := LEVEL.fullmatch(name)))
        if not blocks:
            raise self._lacks("'zoom'")
        return tuple(self._level(block) for block in blocks)

    def to_arrays(self) -> dict[str, Array]:
        """Return everything but threshold and top as plain named arrays, such as a file keeps; no copies."""
        arrays = {**self.arrays, "empty": self.empty, "size": np.array([self.sources, self.offset])}
        return arrays if self.repeated is None else {**arrays, "repeated": self.repeated}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, threshold: float, top: int) -> Scan:
        """Return the scan that `to_arrays` gave these arrays of.

        Raises:
            InputError: one that every scan has is missing.
        """
        for name in ("empty", "size"):
            if name not in arrays:
                raise InputError(
                    "the arrays of a scan",
                    expected='"empty" and "size" among them',
                    given=", ".join(sorted(arrays)) or "none",
                    way_out="Give all that `to_arrays` returned.",
                )
        kept = {name: array for name, array in arrays.items() if name not in ("empty", "size", "repeated")}
        sources, offset = (int(number) for number in arrays["size"])
        return cls(kept, arrays["empty"], arrays.get("repeated"), sources, offset, threshold, top)

    def _level(self, block: int) -> Level:
        largest, mean, pairs = (self.arrays[f"zoom.{block}.{name}"] for name in ("largest", "mean", "pairs"))
        marked = np.ma.MaskedArray
        return Level(block, marked(largest, mask=np.isnan(largest)), marked(mean, mask=np.isnan(mean)), pairs)

    def _lacks(self, name: str) -> InputError:
        return InputError(
            "the scan",
            expected=f"one of what it holds, {', '.join(self.names)}",
            given=name,
            way_out='Ask `scan` for it by name; "top" is `scan.strongest`, and "zoom" is `scan.zoom`.',
            names=self.names,
        )


def means(scan: Scan) -> dict[str, Masked]:
    """Return the mean of each statistic of destinations that a scan holds, [H], over the destinations that count.

    Those are all that may read something; for first, itself and previous the ones at position 1 and beyond; for
    duplicate and induction the ones whose token came before. Instead of the mean of the largest scores the largest
    of them is given. With the entropy comes "effective", the mean of exp(entropy): as many evenly read sources have it.
    Masked, with NaN beneath, where none counts.
    """
    later = scan.offset + np.arange(scan.empty.shape[1]) >= 1
    again = np.zeros_like(later) if scan.repeated is None else scan.repeated
    counting = {"first": later, "itself": later, "previous": later, "duplicate": again, "induction": again}
    found: dict[str, Masked] = {}
    for name in (name for name in OF_ROWS if name in scan.arrays):
        values = scan.arrays[name]
        counts = ~np.isnan(values) & counting.get(name, True)  # H T
        found[name] = _largest(values, counts) if name == "largest_score" else _mean(values, counts)
        if name == "entropy":
            found["effective"] = _mean(np.exp(values), counts)
    return found


def _mean(values: Floats, counts: Bools) -> Masked:
    number = counts.sum(axis=1)  # H
    value = np.where(counts, values, 0.0).sum(axis=1) / np.maximum(number, 1)
    return np.ma.MaskedArray(np.where(number > 0, value, np.nan), mask=number == 0)


def _largest(values: Floats, counts: Bools) -> Masked:
    some = counts.any(axis=1)  # H
    value = np.where(counts, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.ma.MaskedArray(np.where(some, value, np.nan), mask=~some)


def distance_bins(farthest: int) -> tuple[range, ...]:
    """Return the distances |i - j| of each bin of "distances" up to the farthest: 0, 1, 2 to 3, 4 to 7 and so on."""
    return (range(1), *(range(1 << n, 2 << n) for n in range(farthest.bit_length())))


def finest_block(rows: int, columns: int) -> int:
    """Return the size of the finest blocks: the smallest power of two that leaves at most 8 max(T, S) of them.

    So a map takes no more room than eight numbers a token; anything finer is a window that is computed when asked.
    """
    block = 1
    while math.ceil(rows / block) * math.ceil(columns / block) > 8 * max(rows, columns):
        block *= 2
    return block


def zoom_levels(block: int, largest: Array, total: Floats, pairs: Ints) -> dict[str, Array]:
    """Return the arrays of every level from the finest up to one block.

    Args:
        block: the size of the finest blocks.
        largest: [H, R, C], the largest weight of each; 0 where it has no pair.
        total: [H, R, C], the sum of its weights.
        pairs: [R, C] or [H, R, C], how many pairs of each are permitted.
    """
    arrays: dict[str, Array] = {}
    while True:
        none = np.broadcast_to(pairs == 0, total.shape)
        arrays[f"zoom.{block}.largest"] = np.where(none, np.nan, largest).astype(np.float32)
        mean = np.divide(total, pairs, out=np.full(total.shape, np.nan), where=~none)
        arrays[f"zoom.{block}.mean"] = mean.astype(np.float32)
        arrays[f"zoom.{block}.pairs"] = pairs
        if total.shape[1:] == (1, 1):
            return arrays
        block, pairs, total = 2 * block, _fours(pairs).sum(axis=(-3, -1)), _fours(total).sum(axis=(-3, -1))
        largest = _fours(largest).max(axis=(-3, -1))


def _fours(blocks: Array) -> Array:
    """Return [.., R, C] as [.., R / 2, 2, C / 2, 2], with zeros where a pair lacks its second."""
    *_, rows, columns = blocks.shape
    grown = np.pad(blocks, [(0, 0)] * (blocks.ndim - 2) + [(0, rows % 2), (0, columns % 2)])
    return grown.reshape(*blocks.shape[:-2], (rows + 1) // 2, 2, (columns + 1) // 2, 2)
