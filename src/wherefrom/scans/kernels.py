"""The loops of the scan on a processor (floor 2), compiled by numba when they are first called.

`read` takes a tile, float32 [R, C]: R destinations of one head by C sources, and lets every statistic that is wanted
look at it. Row r may read the columns low[r] <= c < high[r]; what lies beside is never looked at. Logarithms come in
units of log 2, since 2^x is cheaper than e^x. Sums are float32 within a tile's row or column and float64 beyond.

Why the loops run at eight numbers at once: those with `sums` may be regrouped (`reassoc`), which the compiler needs
for adding by lanes; all numbers are finite (what is not permitted scores `FORBIDDEN`), so that a maximum is one
instruction (`nnan`, `nsz`). `power` alone must not be regrouped, as its rounding trick would be optimised away. All
stand in one file, since compiled code on disk is believed for as long as the file of its outermost function is as old.
"""

# mypy: ignore-errors
# The types within are those that numba infers.
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

F, I = np.float32, np.int32  # noqa: E741 the 32-bit formats
FORBIDDEN = F(-1e30)
"""The score of a pair that is not permitted: finite, and below all others."""
LOWEST = F(-3e38)
"""Below every score: where a maximum begins."""
UNDERFLOW = F(-127.0)
"""At this log and below it a weight is exactly 0: one step before, float32 has only its slow numbers left."""
LANES = 32
"""The search for the strongest sources puts every 32nd column in one class."""
DENSE = 8
"""Where one earlier position in as many holds the destination's token, all are compared, not looked up one by one."""


def _kept() -> bool:
    """Return whether there is anywhere to keep compiled code; where not, each process compiles again."""
    try:
        return njit(cache=True)(lambda: None) is not None
    except RuntimeError:
        return False


compiled = njit(cache=_kept(), nogil=True)
sums = njit(cache=_kept(), nogil=True, fastmath={"reassoc", "nsz", "nnan", "contract"})
exact = njit(cache=_kept(), nogil=True, fastmath={"contract"})


@intrinsic
def _float_of(_: Any, bits: Any) -> Any:
    """Return the float32 that has these 32 bits."""
    return types.float32(types.int32), lambda context, build, signature, args: build.bitcast(args[0], ir.FloatType())


@intrinsic
def _bits_of(_: Any, number: Any) -> Any:
    """Return the 32 bits of a float32 as a whole number."""
    return types.int32(types.float32), lambda context, build, signature, args: build.bitcast(args[0], ir.IntType(32))


@intrinsic
def _higher(_: Any, one: Any, other: Any) -> Any:
    """Return the larger of two float32 that are no NaN; marked so, or a loop over it would run one by one."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        flags = ("nnan", "nsz")
        larger = build.fcmp_ordered(">", args[0], args[1], flags=flags)
        return build.select(larger, args[0], args[1], flags=flags)

    return types.float32(types.float32, types.float32), generate


_SERIES = Chebyshev.interpolate(np.exp2, 6, domain=(-0.5, 0.5)).convert(kind=Polynomial).coef
"""Of 2^f over |f| <= 1/2, from f^0 up; exact at 0, which is one of the seven points, so that 2^0 is 1."""
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (F(c) for c in _SERIES)
_TO_WHOLE = F(12582912.0)  # 1.5 x 2^23: adding it leaves the nearest whole number in the lowest bits


@exact
def power(x: float) -> float:
    """Return 2^x with a relative error of at most 1.8e-7, three roundings, of -126 < x < 127; of -127 exactly 0."""
    shifted = x + _TO_WHOLE
    f = x - (shifted - _TO_WHOLE)
    value = (((((_C6 * f + _C5) * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    return _float_of(I(_bits_of(value) + I(_bits_of(shifted) << I(23))))


@sums
def _add_up(a):
    """Return the sum of float32 [C]."""
    total = F(0)
    for c in range(a.size):
        total += a[c]
    return total


@sums
def _add_to(into, a):
    """Add each number of a [C] to its place."""
    for c in range(a.size):
        into[c] += a[c]


@sums
def _add_and_raise(total, largest, a):
    """Add each number of a [C] to its place in total, and keep the larger in largest."""
    for c in range(a.size):
        total[c] += a[c]
        largest[c] = _higher(a[c], largest[c])


@sums
def _largest_of(a):
    """Return the largest of float32 [C], `LOWEST` of none."""
    highest = LOWEST
    for c in range(a.size):
        highest = _higher(a[c], highest)
    return highest


@sums
def _weigh_row(x, lse, ramp, i):
    """Turn a row of scores into weights; return the largest score and the sums of a, a log2 a and a |i - j|."""
    highest, total, loss, reach = LOWEST, F(0), F(0), F(0)
    for c in range(x.size):
        highest = _higher(x[c], highest)
        y = _higher(x[c] - lse, UNDERFLOW)
        a = power(y)
        x[c] = a
        total += a
        loss += a * y
        reach += a * abs(i - ramp[c])
    return highest, total, loss, reach


@compiled
def _weigh(x, low, high, lse, ramp, i, rows, seen):
    """Turn scores into weights in place; rows [4, R] keeps the largest score and the sums of a, a log2 a and a |i - j|.

    `i` is the position of the first row, counted from the tile's first column. Of this tile alone, seen [2, R] is
    given the log2 of each row's largest weight and the sum of its weights.
    """
    for r in range(x.shape[0]):
        if low[r] < high[r]:
            row, places = x[r, low[r] : high[r]], ramp[low[r] : high[r]]
            highest, total, loss, reach = _weigh_row(row, lse[r], places, F(i + r))
            rows[0, r] = max(rows[0, r], highest)
            rows[1, r] += total
            rows[2, r] += loss
            rows[3, r] += reach
            seen[0, r], seen[1, r] = highest - lse[r], total


@compiled
def _pick(x, low, high, column, i, picked):
    """Write each row's weight on column 0, on its own position and on the one before into picked [3, R]."""
    for r in range(x.shape[0]):
        for n, c in enumerate((-column, i + r, i + r - 1)):
            if low[r] <= c < high[r]:
                picked[n, r] = x[r, c]


@compiled
def _bin(distance):
    """Return the number of a distance's bin, and the distance at which it ends."""
    number, end = 0, 1
    while end <= distance:
        number, end = number + 1, 2 * end
    return number, end


@compiled
def _by_distance(x, low, high, i, total, bins):
    """Add each row's weight to the bins of the distances it lies at: 0, 1, 2 to 3, 4 to 7 and so on.

    `i` is the position of the first row, counted from the tile's first column; total [R] is the weight of its rows.
    """
    for r in range(x.shape[0]):
        at, left, end = i + r, low[r], min(high[r], i + r + 1)
        while end > left:  # from the destination, or the column nearest to it, leftwards
            number, beyond = _bin(at - (end - 1))
            begin = max(left, at - beyond + 1)
            bins[number] += total[r] if begin == low[r] and end == high[r] else _add_up(x[r, begin:end])
            end = begin
        begin = max(low[r], at + 1)
        while begin < high[r]:  # and rightwards
            number, beyond = _bin(begin - at)
            end = min(high[r], at + beyond)
            bins[number] += _add_up(x[r, begin:end])
            begin = end


@sums
def _count(x, threshold, row, readers, last):
    for c in range(x.size):
        reads = x[c] >= threshold
        readers[c] += I(1) if reads else I(0)
        last[c] = row if reads else last[c]


@compiled
def _find_readers(x, low, high, peak, threshold, row, readers, last):
    """Count each source's readers, int32 [C], and note the row of the last one, int32 [C].

    A row is looked at only where its largest weight in this tile, 2^peak, comes near the threshold.
    """
    near = np.log2(threshold) - 1e-3
    for r in range(x.shape[0]):
        if low[r] < high[r] and peak[r] >= near:
            a, b = low[r], high[r]
            _count(x[r, a:b], threshold, I(row + r), readers[a:b], last[a:b])


@compiled
def _fill_columns(x, low, high, work, row, column, received, block, largest, total):
    """Add the weights to what each source received, float64 [C], and enter them into the blocks of the zoom.

    Room to work in holds the sums and the largest of each column, over no more rows than a block has.
    """
    total_, highest = work[0, : x.shape[1]], work[1, : x.shape[1]]
    work[:] = F(0)
    for r in range(x.shape[0]):
        a, b = low[r], high[r]
        if largest.size:
            _add_and_raise(total_[a:b], highest[a:b], x[r, a:b])
        else:
            _add_to(total_[a:b], x[r, a:b])
        if (row + r + 1) % block == 0 or r + 1 == x.shape[0]:
            if received.size:
                _add_to(received, total_)
            if largest.size:
                _fill_blocks(total_, highest, column, block, largest[(row + r) // block], total[(row + r) // block])
            work[:] = F(0)


@compiled
def _fill_blocks(sums_of, largest_of_, column, block, largest, total):
    """Enter sums and largest of columns into a row of blocks."""
    c, width = 0, sums_of.size
    while c < width:
        n = (column + c) // block
        end = min(width, (n + 1) * block - column)
        total[n] += _add_up(sums_of[c:end])
        largest[n] = max(largest[n], _largest_of(largest_of_[c:end]))
        c = end


@sums
def _sum_where(a, codes, code):
    total = F(0)
    for c in range(a.size):
        total += a[c] if codes[c] == code else F(0)
    return total


@compiled
def _look_up(x, positions, at, end, begin, low, high):
    """Return the sum of x at positions[at] - begin and on, from low to before high, and the place where that ends."""
    if at < end and positions[at] - begin < low:  # a window has moved on: go to the first position within
        at += np.searchsorted(positions[at:end], begin + low)
    total = 0.0
    while at < end and positions[at] - begin < high:
        total += x[positions[at] - begin]
        at += 1
    return total, at


@compiled
def _find_same(x, low, high, row, column, same, reached, rows):
    """Add each row's weight on earlier positions of its token, and on those right after them, to rows [2, R].

    Row r and column r of the map are one position. `same` [4, S] holds the positions sorted by code; for each position,
    where those of its code begin among them, how many of them are earlier, and its code. Of the earlier ones, the tiles
    before this have dealt with as many as reached [2, R] says.
    """
    positions, codes = same[0], same[3]
    for r in range(x.shape[0]):
        start, earlier, code = same[1, row + r], same[2, row + r], codes[row + r]
        if earlier == 0 or low[r] >= high[r]:
            continue
        for step in range(2):  # the source stands there after the position of the same token
            begin = column - step
            if earlier * DENSE > row + r:
                a, b = max(low[r], -begin), min(high[r], row + r - begin)
                if a < b:
                    rows[step, r] += _sum_where(x[r, a:b], codes[begin + a : begin + b], code)
            else:
                at, end = start + reached[step, r], start + earlier
                total, at = _look_up(x[r], positions, at, end, begin, low[r], high[r])
                rows[step, r] += total
                reached[step, r] = at - start


@sums
def _raise_all(largest, a):
    for c in range(a.size):
        largest[c] = _higher(a[c], largest[c])


@compiled
def _fill_lanes(x, lanes):
    """Write the largest of every LANES-th number of x, from each of the first on, into the first LANES of lanes.

    By way of four times as many lanes, as a loop of only 32 steps would cost more to enter than to run.
    """
    lanes[:] = LOWEST
    for start in range(0, x.size, lanes.size):
        part = x[start : start + lanes.size]
        _raise_all(lanes[: part.size], part)
    for start in range(LANES, lanes.size, LANES):
        _raise_all(lanes[:LANES], lanes[start : start + LANES])


@compiled
def _search(x, first, lanes, scores, sources):
    """Enter those of a row's sources, numbered from `first`, that belong among the strongest so far."""
    last = scores.size - 1
    worst, held = scores[last], sources[last]
    while True:
        highest = _largest_of(lanes)
        if highest == LOWEST or highest < worst or (highest == worst and 0 <= held < first):
            return
        lane = 0
        while lanes[lane] != highest:
            lane += 1
        lanes[lane] = LOWEST
        for c in range(lane, x.size, LANES):
            score, source = x[c], I(first + c)
            if score < worst or (score == worst and 0 <= held < source):
                continue
            n = last
            while n > 0 and (scores[n - 1] < score or (scores[n - 1] == score and sources[n - 1] > source)):
                scores[n], sources[n] = scores[n - 1], sources[n - 1]
                n -= 1
            scores[n], sources[n] = score, source
            worst, held = scores[last], sources[last]


@compiled
def _find_strongest(x, low, high, column, lanes, scores, sources):
    """Keep each row's strongest sources so far; of scores, before they become weights.

    The class of columns with the highest score is looked through first, and the search ends where no class can hold a
    source that belongs among the strongest: after as many classes as sources are kept, whatever the order of scores.
    Scores and sources [R, top] descend, of equal scores the lower source first; `LOWEST` and -1 where there is none.
    """
    for r in range(x.shape[0]):
        if low[r] < high[r]:
            row = x[r, low[r] : high[r]]
            _fill_lanes(row, lanes)
            _search(row, column + low[r], lanes[:LANES], scores[r], sources[r])


@compiled
def read(x, row, column, offset, limits, lse, room, rows, columns, threshold, same, zoom):
    """Turn a tile of scores into weights and let every statistic that is wanted look at it.

    Arrays of size 0 stand for what is not wanted. Those with an axis T or S are a whole head's.

    What it is given:
        x: float32 [R, C], scores in units of log 2.
        row, column: where its first row and column stand in the map.
        offset: the position of row 0 of the map.
        limits: int64 [2, T], from which column to before which each row may read.
        lse: float32 [T], in units of log 2, -inf where a row may read nothing.
        room: low and high, int64 [2, R]; ramp, float32 [C], that counts from 0; seen, float32 [2, R]; work, float32
            [2, C]; lanes, float32 [4 * LANES].
        rows: sums, float64 [4, T], see `_weigh`; picked, float64 [3, T]; on the same token, float64 [2, T], and how
            far, int32 [2, T]; the strongest, float32 [T, top] and int32 [T, top].
        columns: received, float64 [S]; counts of readers, int32 [2, S]; bins of distances, float64.
        threshold: from which weight a destination is a reader.
        same: int32 [4, S], see `_find_same`.
        zoom: the size of a block; the largest, float32 [R', C'], and the total, float64.
    """
    ends, ramp, seen, work, lanes = room
    sums, picked, on_same, reached, scores, sources = rows
    received, counts, bins = columns
    block, largest, total = zoom
    count, width = x.shape
    low, high, here, across = ends[0, :count], ends[1, :count], slice(row, row + count), slice(column, column + width)
    for r in range(count):
        low[r] = min(max(limits[0, row + r] - column, 0), width)
        high[r] = low[r] if lse[row + r] == -np.inf else max(min(limits[1, row + r] - column, width), low[r])
    i = offset + row - column
    if scores.size:
        _find_strongest(x, low, high, column, lanes, scores[here], sources[here])
    _weigh(x, low, high, lse[here], ramp, i, sums[:, here], seen)
    if picked.size:
        _pick(x, low, high, column, i, picked[:, here])
    if on_same.size:
        _find_same(x, low, high, row, column, same, reached[:, here], on_same[:, here])
    if bins.size:
        _by_distance(x, low, high, i, seen[1], bins)
    if counts.size:
        _find_readers(x, low, high, seen[0], threshold, row, counts[0, across], counts[1, across])
    if received.size or largest.size:
        _fill_columns(x, low, high, work, row, column, received[across], block, largest, total)
