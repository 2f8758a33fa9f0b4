"""The map of one head, T destinations by S sources, in tiles at every zoom (floor 4): who looks at it pays for what is
seen.

A level k has blocks of 2^k destinations by 2^k sources, and tiles of 256 by 256 blocks. A tile of few weights is a
window of them, one of many a scan of its part of the map; the coarsest level is a scan of the whole head, in memory
linear in the length, which gives all levels from `finest_block` on. What a block is without weights says its mark,
never a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import Mask
from wherefrom.checks import check_index, check_kind
from wherefrom.questions.asked import exactness_of
from wherefrom.questions.exact import permitted_pairs, window_in_single
from wherefrom.questions.scanned import mask_of
from wherefrom.recording import Call
from wherefrom.scans import Attention, Level
from wherefrom.scans import scan as scan_attention
from wherefrom.scans.result import finest_block

Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float32]
Marks: TypeAlias = NDArray[np.uint8]
TILE = 256
"""Blocks along one side of a tile."""
AT_ONCE = 2**21
"""Weights that are computed at once, 8 MB."""
FEW = 2**22
"""Up to as many weights of a tile are computed and then put into blocks: for more a scan is quicker, on any machine."""
WEIGHTS, NOT_PERMITTED, EMPTY, NOT_RECORDED = range(4)
"""The marks: there are weights; no pair of the block is permitted; its destinations may read nothing at all; none of
its destinations was recorded."""


@dataclass(frozen=True, eq=False)
class Tile:
    """A piece of a map.

    Attributes:
        block: how many destinations, and how many sources, a block holds.
        destinations: those of the tile.
        sources: likewise.
        largest: float32 [R, C], the largest weight of a permitted pair in each block; NaN where the mark is not 0.
        mean: float32 [R, C], the mean weight of the permitted pairs; likewise.
        marks: uint8 [R, C], see the module.
        exactness: how exact the weights are.
    """

    block: int
    destinations: range
    sources: range
    largest: Floats
    mean: Floats
    marks: Marks
    exactness: str


class HeadMap:
    """One head's map.

    Args:
        call: of a recording.
        head: its number.

    Raises:
        InputError: a head that the call has not, or that was not kept.
    """

    def __init__(self, call: Call, head: int) -> None:
        self._call = check_kind("the call", call, Call, way_out="Take one of a recording's calls.")
        self._place = call.place_of_head(head)
        self._head = call.head_numbers[self._place]

    @property
    def shape(self) -> tuple[int, int]:
        """How many destinations and sources there are, recorded or not."""
        return self._call.destinations, self._call.sources

    @property
    def levels(self) -> int:
        """How many levels there are: 0, with a block a pair, to the first whose blocks all lie in one tile."""
        return 1 + max(0, math.ceil(math.log2(max(self.shape) / TILE)))

    def tile(self, level: int, row: int, column: int) -> Tile:
        """Return a piece of the map.

        Args:
            level: k; a block has 2^k destinations.
            row: which tile from the top, from 0.
            column: which from the left.

        Raises:
            InputError: a level or a tile that the map does not have.
        """
        block = 2 ** check_index("level", level, self.levels)
        rows, columns = (
            _along(name, at, size, block)
            for name, at, size in zip(("tile row", "tile column"), (row, column), self.shape, strict=True)
        )
        if not self._call.all_rows:
            return self._fine(block, rows, columns)
        if block >= finest_block(*self.shape) and (level == self.levels - 1 or "_zoom" in vars(self)):
            return self._drawn(block, rows, columns, self._zoom[block], (rows, columns))
        mask = None if len(rows) * len(columns) <= FEW else self._mask_of(rows, columns)
        if mask is None:
            return self._fine(block, rows, columns)
        (found,) = self._scan(rows, columns, mask, block)[:1]
        return self._drawn(block, rows, columns, found, (range(len(rows)), range(len(columns))))

    @cached_property
    def _zoom(self) -> dict[int, Level]:
        """The levels of a scan of all of this head, by block."""
        rows, columns = (range(size) for size in self.shape)
        return {level.block: level for level in self._scan(rows, columns, _of_head(self._call, self._place), None)}

    def _scan(self, rows: range, columns: range, mask: Mask, block: int | None) -> Sequence[Level]:
        """Return the levels of a scan of a piece of the map, from a size of blocks on."""
        call, one = self._call, slice(self._place, self._place + 1)
        key = call.key_heads[self._place]
        own, read = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        bias = call.bias if call.bias is None or len(call.bias) == 1 else call.bias[one]
        piece = Attention(
            q=call.q[one, own],
            k=call.k[key : key + 1, read],
            lse=call.lse[one, own],
            mask=mask,
            scale=call.scale,
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks[one],
            bias=None if bias is None else bias[:, own, read],
            key_heads=(0,),
        )
        return scan_attention(piece, ("zoom",), block=block).zoom

    def _mask_of(self, rows: range, columns: range) -> Mask | None:
        """Return the rule of a piece of the map; None where positions would have to be negative to say it."""
        mask = _of_head(self._call, self._place)
        if mask.explicit is not None:
            mask = replace(mask, explicit=mask.explicit[rows.start : rows.stop, columns.start : columns.stop])
        if not mask.causal and mask.window is None:
            mask = replace(mask, offset=columns.start)  # which position it is does not matter
        elif mask.offset + rows.start < columns.start:
            return None
        return mask.piece(slice(rows.start, rows.stop), slice(columns.start, columns.stop))

    def _drawn(self, block: int, rows: range, columns: range, level: Level, inside: tuple[range, range]) -> Tile:
        """Return the tile of a level of a scan; `inside`: where it lies in what was scanned."""
        piece = _blocks(inside[0], block), _blocks(inside[1], block)
        largest, mean = (values[0][piece].filled(np.nan) for values in (level.largest, level.mean))
        none = np.ma.getmaskarray(level.largest[0][piece])
        still = _whole_blocks(np.isneginf(self._call.lse[self._place, rows.start : rows.stop]), block)
        marks = np.where(none, np.where(still[:, None], EMPTY, NOT_PERMITTED), WEIGHTS)
        return self._tile(block, rows, columns, largest, mean, marks)

    def _fine(self, block: int, rows: range, columns: range) -> Tile:
        """Return a tile of a level that is computed when it is asked for, strip by strip."""
        shape = math.ceil(len(rows) / block), math.ceil(len(columns) / block)
        if block == 1:  # a single strip, and no blocks to make of it
            weights, permitted, recorded, empty = self._strip(rows, columns)
            if permitted.all():
                return self._tile(block, rows, columns, weights, weights, np.full(shape, WEIGHTS, np.uint8))
            weights = np.where(permitted, weights, np.float32(np.nan))
            return self._tile(block, rows, columns, weights, weights, _marks(~permitted, recorded, empty))
        largest, mean = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        marks = np.full(shape, NOT_PERMITTED, np.uint8)
        for strip in _strips(rows, block, len(columns)):
            own = _blocks(range(strip.start - rows.start, strip.stop - rows.start), block)
            weights, permitted, recorded, empty = self._strip(strip, columns)
            most = _each(np.maximum, weights, block)
            if permitted.all():
                largest[own], marks[own] = most, WEIGHTS
                mean[own] = _each(np.add, weights, block) / _sizes(weights.shape, block)
                continue
            pairs = _each(np.add, permitted, block)
            none = pairs == 0
            largest[own] = np.where(none, np.nan, most)
            total = _each(np.add, weights, block)
            mean[own] = np.divide(total, pairs, out=np.full(pairs.shape, np.nan), where=~none)
            marks[own] = _marks(none, ~_whole_blocks(~recorded, block), _whole_blocks(empty, block))
        return self._tile(block, rows, columns, largest, mean, marks)

    def _strip(self, strip: range, columns: range) -> tuple[Floats, Bools, Bools, Bools]:
        """Return weights [R, C] of some rows, who may read whom, which rows were recorded [R], which are empty [R]."""
        weights = np.zeros((len(strip), len(columns)), np.float32)  # untouched memory costs nothing
        permitted = np.zeros(weights.shape, bool)
        recorded, empty = np.zeros(len(strip), bool), np.zeros(len(strip), bool)
        for run in self._recorded(strip):
            reach = self._reach(run, columns)
            at = slice(run.start - strip.start, run.stop - strip.start)
            place = self._call.place_of_row(run.start)
            recorded[at] = True
            empty[at] = np.isneginf(self._call.lse[self._place, place : place + len(run)])
            if run == strip and reach == columns and not empty.any():  # the usual one: nothing is put together
                found = window_in_single(self._call, self._head, run, reach)
                return np.ma.getdata(found), permitted_pairs(self._call, self._head, run, reach), recorded, empty
            if reach:
                along = slice(reach.start - columns.start, reach.stop - columns.start)
                weights[at, along] = window_in_single(self._call, self._head, run, reach).filled(0.0)
                permitted[at, along] = permitted_pairs(self._call, self._head, run, reach) & ~empty[at, None]
        return weights, permitted, recorded, empty

    def _recorded(self, strip: range) -> Iterator[range]:
        """Yield the runs of neighbouring rows of a strip that were recorded."""
        if self._call.all_rows:
            yield strip
            return
        rows = self._call.rows
        rows = rows[(rows >= strip.start) & (rows < strip.stop)]
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            if len(run):
                yield range(int(run[0]), int(run[-1]) + 1)

    def _reach(self, run: range, columns: range) -> range:
        """Return those of some columns that some rows may reach."""
        first, last = (self._call.mask.reach(row, self._call.sources) for row in (run[0], run[-1]))
        return range(max(columns.start, first.start), min(columns.stop, last.stop))

    def _tile(self, block: int, rows: range, columns: range, largest: Array, mean: Array, marks: Array) -> Tile:
        largest, mean = (values.astype(np.float32, copy=False) for values in (largest, mean))
        marks = marks.astype(np.uint8, copy=False)
        return Tile(block, rows, columns, largest, mean, marks, exactness_of([self._call]))


def _marks(none: Bools, recorded: Bools, empty: Bools) -> Marks:
    """Return the marks of blocks [R, C]: of those without a weight, whether rows were recorded, or may read nothing."""
    still = np.where(recorded, np.where(empty, EMPTY, NOT_PERMITTED), NOT_RECORDED)
    return np.where(none, still[:, None], WEIGHTS).astype(np.uint8)


def _along(what: str, at: int, size: int, block: int) -> range:
    """Return the positions along one side of a tile."""
    side = TILE * block
    start = side * check_index(what, at, math.ceil(size / side))
    return range(start, min(size, start + side))


def _strips(rows: range, block: int, columns: int) -> Iterator[range]:
    """Yield strips of whole blocks."""
    step = block * max(1, AT_ONCE // (columns * block))
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(rows.stop, start + step))


def _blocks(positions: range, block: int) -> slice:
    """Return the blocks that positions from a block's first to a block's last lie in."""
    return slice(positions.start // block, math.ceil(positions.stop / block))


def _each(ufunc: np.ufunc, values: Array, block: int) -> Array:
    """Return values [R, C] reduced over blocks of them; those at the ends hold what is left.

    It goes by halves, many times as quickly as numpy's `reduceat`; a sum of float32 is off by a rounding a halving.
    """
    if values.dtype == bool:
        values = values.astype(np.int32)
    while block > 1:
        values = _halved(ufunc, values, 0)
        values = _halved(ufunc, values, 1)
        block //= 2
    return values


def _halved(ufunc: np.ufunc, values: Array, axis: int) -> Array:
    """Return each even one along an axis together with the odd one behind it, if there is one."""
    even, odd = (values[start::2] if axis == 0 else values[:, start::2] for start in (0, 1))
    if even.shape == odd.shape:
        return np.asarray(ufunc(even, odd))
    pairs = (slice(odd.shape[0]), slice(odd.shape[1]))
    found = even.copy()
    ufunc(even[pairs], odd, out=found[pairs])
    return found


def _sizes(shape: tuple[int, ...], block: int) -> Array:
    """Return how many pairs each block of a map of that shape holds, [R, C]."""
    rows, columns = (np.diff([*range(0, size, block), size]) for size in shape)
    return np.outer(rows, columns)


def _whole_blocks(truths: Bools, block: int) -> Bools:
    """Return whether a truth holds for all rows of each block."""
    found: Bools = np.logical_and.reduceat(truths, np.arange(0, len(truths), block))
    return found


def _of_head(call: Call, place: int) -> Mask:
    """Return the mask of one of the heads that were kept."""
    mask = mask_of(call)
    explicit = mask.explicit
    return replace(mask, explicit=explicit[place]) if explicit is not None and explicit.ndim == 3 else mask
