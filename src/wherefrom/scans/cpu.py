"""The scan on a processor (floor 2): tiles of scores by BLAS, then short compiled loops, in threads of our own.

It takes an `Attention` and gives the arrays of a scan, as the reference does. A head's destinations are cut into jobs
of equally many pairs; a job goes through its sources by some hundred, whose keys stay in the cache of one core, and
down its rows strip by strip, each a tile of scores that stays there too. Only what causal and window permit is
computed. The jobs and the order in which their sums are merged depend on the call alone, so that any number of threads
finds the same numbers to the last bit.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from wherefrom.scans.contract import OF_SAME_TOKEN, Array, Attention, Floats
from wherefrom.scans.kernels import FORBIDDEN, LANES, LOWEST, read
from wherefrom.scans.pairs import count_pairs, reach
from wherefrom.scans.reference import blank_arrays, finish
from wherefrom.scans.result import distance_bins, zoom_levels

Singles: TypeAlias = NDArray[np.float32]
Room: TypeAlias = tuple[Array, ...]

STRIP = 128
"""Destinations at once, as many as the matrix product wants to run at full speed."""
WIDTH = 512
"""Sources of a tile: with 128 destinations it takes 256 KB, half of what a core's second cache has."""
JOBS, LEAST = 8, 1 << 18
"""A head is cut into at most eight jobs, of no fewer pairs than some milliseconds take."""
LOG2_E = float(np.log2(np.e))
ON_POSITIONS = ("first", "itself", "previous")


@dataclass(frozen=True, eq=False)
class Plan:
    """What all jobs share. Arrays of what is not wanted are of size 0."""

    attention: Attention
    limits: NDArray[np.int64]  # 2 T, the first source that causal and window permit, and the end of them
    lse: Singles  # H T, in units of log 2, -inf of an empty row
    same: NDArray[np.int32]  # 4 S
    gone: Singles | None  # S, what padding adds to a score
    threshold: float
    strip: int
    sums: Floats  # H 4 T, of each row the largest score and the sums of a, of a log2 a and of a |i - j|
    picked: Floats  # H 3 T, the weights on column 0, on the position itself and on the one before
    on_same: Floats  # H 2 T, the weights on the same token and after it
    scores: Singles  # H T top, of the strongest sources
    sources: NDArray[np.int32]  # H T top, and which they are
    received: int  # S or 0
    counted: int  # S or 0
    bins: int
    block: int
    largest: Singles  # H R C, of each block of the zoom
    total: Floats  # H R C


@dataclass(frozen=True, eq=False)
class Sums:
    """What a job adds up over its rows, to be merged with the rest of its head."""

    head: int
    received: Floats  # S
    counts: NDArray[np.int32]  # 2 S, how many readers, and the last one
    bins: Floats


def scan_cpu(
    attention: Attention,
    wanted: frozenset[str],
    *,
    threshold: float,
    top: int,
    block: int,
    strip: int | None = None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the arrays of a `Scan` of what is wanted, computed in float32 with sums in float64."""
    plan = plan_of(attention, wanted, threshold, top, STRIP if strip is None else strip, block)
    arrays = blank_arrays(attention, wanted - {"top"}, 0)
    threads = threads_here() if threads is None else threads
    # threads of a product within ours would make it three to six times slower
    with one_thread_a_product(), closing(in_threads(plan, list(jobs(plan)), threads)) as found:
        for sums in found:
            merge(sums, arrays)
    fill_rows(plan, arrays)
    if "top" in wanted:
        arrays |= strongest(plan)
    arrays |= finish(attention, arrays)
    if "zoom" in wanted:
        arrays |= zoom_levels(plan.block, plan.largest, plan.total, count_pairs(attention, plan.block))
    return arrays


def one_thread_a_product() -> Any:
    """Hold numpy's matrix product to one thread, until the context that is returned ends."""
    return threadpool_limits(1, "blas")  # type: ignore[no-untyped-call]


def threads_here() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(plan: Plan, todo: list[tuple[int, range]], threads: int) -> Generator[Sums, None, None]:
    """Yield the sums of every job in the order of the jobs, which any number of threads leaves as it is."""
    if threads == 1:
        yield from (run(plan, job) for job in todo)
        return
    with ThreadPoolExecutor(threads, initializer=one_thread_a_product) as pool:  # some libraries count by thread
        yield from pool.map(lambda job: run(plan, job), todo)


def plan_of(attention: Attention, wanted: frozenset[str], threshold: float, top: int, strip: int, block: int) -> Plan:
    """Return what all jobs share."""
    H, T, S = attention.heads, attention.destinations, attention.sources
    padding = attention.mask.padding
    zoom = "zoom" in wanted
    blocks = (H, -(-T // block), -(-S // block)) if zoom else (H, 0, 0)
    same = bool(wanted & set(OF_SAME_TOKEN))
    kept = (H, T, top if "top" in wanted else 0)
    sums = np.zeros((H, 4, T))
    sums[:, 0] = -np.inf
    return Plan(
        attention=attention,
        limits=np.stack(reach(attention.mask, T, S)),
        lse=(attention.lse.astype(np.float64) * LOG2_E).astype(np.float32),
        same=_same(attention) if same else np.zeros((4, 0), np.int32),
        gone=None if padding is None else np.where(padding, np.float32(0), FORBIDDEN),
        threshold=threshold,
        strip=strip,
        sums=sums,
        picked=np.zeros((H, 3, T if wanted & set(ON_POSITIONS) else 0)),
        on_same=np.zeros((H, 2, T if same else 0)),
        scores=np.full(kept, LOWEST),
        sources=np.full(kept, -1, np.int32),
        received=S if "received" in wanted else 0,
        counted=S if wanted & {"readers", "last_reader"} else 0,
        bins=len(distance_bins(attention.farthest)) if "distances" in wanted else 0,
        block=block if zoom else S + T,
        largest=np.zeros(blocks, np.float32),
        total=np.zeros(blocks),
    )


def _same(attention: Attention) -> NDArray[np.int32]:
    """Return int32 [4, S]: the positions sorted by code; of each position where those of its code begin among them,
    how many of them are earlier, and its code as a small number.
    """
    _, codes, counts = np.unique(np.asarray(attention.codes), return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    starts = (np.cumsum(counts) - counts)[codes]
    earlier = np.empty_like(order)
    earlier[order] = np.arange(order.size)
    return np.stack([order, starts, earlier - starts, codes]).astype(np.int32)


def jobs(plan: Plan) -> Iterator[tuple[int, range]]:
    """Yield a head and a range of its destinations, all of about as many pairs, cut between blocks of the zoom."""
    pairs = np.cumsum(plan.limits[1] - plan.limits[0])
    number = max(1, min(JOBS, int(pairs[-1]) // LEAST))
    cuts = np.searchsorted(pairs, np.arange(1, number) * (pairs[-1] / number))
    block = plan.block if plan.total.size else 1
    unit = -(-plan.strip // block) * block  # so that no strip is cut either
    edges = np.unique([0, *(cuts // unit * unit), pairs.size])
    for head in range(plan.attention.heads):
        yield from ((head, range(start, end)) for start, end in pairwise(edges))


def run(plan: Plan, job: tuple[int, range]) -> Sums:
    """Go through the destinations of one job."""
    head, rows = job
    attention, limits = plan.attention, plan.limits
    k = attention.k[attention.key_heads[head]]  # S D
    q = attention.q[head, rows.start : rows.stop].astype(np.float64) * (attention.scale * LOG2_E)
    q = q.astype(np.float32)  # of the job's rows, R D
    counts = np.zeros((2, plan.counted), np.int32)
    counts[1] = -1
    sums = Sums(head, np.zeros(plan.received), counts, np.zeros(plan.bins))
    size = min(plan.strip, len(rows))
    tile, room, found = np.empty(size * WIDTH, np.float32), room_of(size), found_of(plan, sums)
    starts = range(rows.start, rows.stop, plan.strip)
    strips = [slice(start, min(start + plan.strip, rows.stop)) for start in starts]
    ends = [(int(limits[0, strip].min()), int(limits[1, strip].max())) for strip in strips]
    low, high = min(first for first, _ in ends), max(stop for _, stop in ends)
    for column in range(low, high, WIDTH):
        keys = np.asarray(k[column : column + WIDTH], np.float32)  # C D, in cache for all strips
        for strip, (first, stop) in zip(strips, ends, strict=True):
            columns = slice(column, min(column + WIDTH, stop))
            if first >= column + WIDTH or stop <= column:
                continue
            shape = (strip.stop - strip.start, columns.stop - column)
            x = tile[: shape[0] * shape[1]].reshape(shape)
            np.matmul(q[strip.start - rows.start : strip.stop - rows.start], keys[: shape[1]].T, out=x)  # R C
            change_scores(plan, head, strip, columns, x)
            read(x, strip.start, column, attention.mask.offset, limits, plan.lse[head], room, *found)
    return sums


def room_of(rows: int) -> Room:
    """Return memory that the tiles of a job use in turn; see `kernels.read`."""
    ends = np.empty((2, rows), np.int64)
    ramp = np.arange(WIDTH, dtype=np.float32)
    seen, work, lanes = (np.empty(shape, np.float32) for shape in ((2, rows), (2, WIDTH), 4 * LANES))
    return ends, ramp, seen, work, lanes


def found_of(plan: Plan, sums: Sums) -> tuple[Any, ...]:
    """Return where the compiled loops write what they find of one head; see `kernels.read`."""
    head = sums.head
    on_same = plan.on_same[head]
    rows = (plan.sums[head], plan.picked[head], on_same, np.zeros(on_same.shape, np.int32))
    columns = (sums.received, sums.counts, sums.bins)
    zoom = (plan.block, plan.largest[head], plan.total[head])
    return (*rows, plan.scores[head], plan.sources[head]), columns, plan.threshold, plan.same, zoom


def change_scores(plan: Plan, head: int, rows: slice, columns: slice, x: Singles) -> None:
    """Apply to a tile of scores, in units of log 2, what a product of q and k does not have."""
    attention = plan.attention
    if attention.softcap is not None:
        cap = np.float32(attention.softcap * LOG2_E)
        x /= cap
        np.tanh(x, out=x)
        x *= cap
    if attention.bias is not None:
        bias = attention.bias[head if len(attention.bias) > 1 else 0, rows, columns]
        x += np.multiply(bias, LOG2_E, dtype=np.float64).astype(np.float32)
        np.maximum(x, FORBIDDEN, out=x)
    if plan.gone is not None:
        x += plan.gone[columns]
    explicit = attention.mask.explicit
    if explicit is not None:
        permitted = (explicit[head] if explicit.ndim == 3 else explicit)[rows, columns]
        np.copyto(x, FORBIDDEN, where=~permitted)


def merge(sums: Sums, arrays: dict[str, Array]) -> None:
    """Add what a job found to what its head's jobs before it found."""
    head = sums.head
    if "received" in arrays:
        arrays["received"][head] += sums.received
    if "readers" in arrays:
        arrays["readers"][head] += sums.counts[0]
    if "last_reader" in arrays:
        arrays["last_reader"][head] = np.maximum(arrays["last_reader"][head], sums.counts[1])
    if "distances" in arrays:
        arrays["distances"][head] += sums.bins


def fill_rows(plan: Plan, arrays: dict[str, Array]) -> None:
    """Write the statistics of destinations, natural units; those of empty rows are marked by `finish`."""
    highest, total, loss, reached = plan.sums.swapaxes(0, 1)  # H T
    score = np.where(highest > FORBIDDEN / 2, highest / LOG2_E, -np.inf)
    if "entropy" in arrays:
        arrays["entropy"][:] = np.maximum(-loss / LOG2_E, 0.0)  # what rounding of lse puts below 0 is 0
    if "largest" in arrays:
        arrays["largest"][:] = np.exp(score - np.where(np.isneginf(plan.lse), 0.0, plan.attention.lse))
    if "largest_score" in arrays:
        arrays["largest_score"][:] = score
    if "distance" in arrays:
        np.divide(reached, total, out=arrays["distance"], where=total > 0)
    for names, values in ((ON_POSITIONS, plan.picked), (OF_SAME_TOKEN, plan.on_same)):
        for name, rows in zip(names, values.swapaxes(0, 1), strict=True):
            if name in arrays:
                arrays[name][:] = rows


def strongest(plan: Plan) -> dict[str, Array]:
    """Return the arrays of the strongest sources; here where fewer are permitted."""
    ids, kept, remainder = plan.sources, np.empty(plan.scores.shape), np.empty(plan.lse.shape)
    for head, scores in enumerate(plan.scores):  # one by one, as they are the largest arrays of all
        there = scores > FORBIDDEN / 2  # T top
        lse = np.where(np.isneginf(plan.lse[head]), 0.0, plan.attention.lse[head].astype(np.float64))
        weights = np.exp(np.where(there, scores / LOG2_E - lse[:, None], -np.inf))
        ids[head][~there], kept[head] = -1, np.where(there, weights, np.nan)
        remainder[head] = np.maximum(plan.sums[head, 1] - weights.sum(axis=1), 0.0)
    return {"strongest.ids": ids, "strongest.weights": kept, "strongest.remainder": remainder}
