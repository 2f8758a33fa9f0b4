"""Which pairs of a map are permitted, without forming it (floor 2): each row's reach, and the count in every block."""

from __future__ import annotations

import numpy as np

from wherefrom.attention import Mask
from wherefrom.scans.contract import Attention, Ints


def reach(mask: Mask, rows: int, columns: int) -> tuple[Ints, Ints]:
    """Return the first column that causal and window permit to each row, and the end of them, both [T].

    That is `Mask.reach` of every row at once.
    """
    i = mask.offset + np.arange(rows)
    stop = i + 1 if mask.causal else np.full(rows, columns)
    first = np.zeros(rows, np.int64)
    if mask.window is not None:
        first = np.maximum(i - mask.window + 1, 0)
        stop = np.minimum(stop, i + mask.window)
    stop = np.minimum(stop, columns)
    return np.minimum(first, stop), stop


def count_pairs(attention: Attention, block: int) -> Ints:
    """Return how many pairs each block of rows by columns permits, [R, C], or [H, R, C] where heads differ.

    Those of an empty row are not permitted.
    """
    mask, empty = attention.mask, attention.empty
    first, stop = reach(mask, attention.destinations, attention.sources)
    banded = mask.padding is None and mask.explicit is None and attention.bias is None
    if banded and not (empty & (stop > first)).any():
        return _of_band(mask, attention.destinations, attention.sources, block)
    biased = attention.bias is not None and len(attention.bias) > 1
    alike = (empty == empty[0]).all() and not biased and (mask.explicit is None or mask.explicit.ndim == 2)
    counts = np.stack([_of_head(attention, head, block) for head in range(1 if alike else attention.heads)])
    return counts[0] if (counts == counts[0]).all() else counts


def _of_band(mask: Mask, rows: int, columns: int, block: int) -> Ints:
    """Return the counts of causal and window alone, from no more than the edges of each block."""
    top, left = np.arange(0, rows, block)[:, None], np.arange(0, columns, block)  # R 1 and C
    bottom, width = np.minimum(top + block, rows), np.minimum(block, columns - left)
    # A row at position i permits clip(stop - left, 0, width) - clip(first - left, 0, width) columns of a block, where
    # both ends go up by one a row: the sums over the rows from top to bottom are differences of those up to a row.
    height = bottom - top
    before = _sum_up_to(mask.offset + bottom - left, width) - _sum_up_to(mask.offset + top - left, width)
    counts = before if mask.causal else np.broadcast_to(height * width, before.shape)
    if mask.window is not None:
        ahead = mask.offset + mask.window - 1 - left
        if not mask.causal:
            counts = _sum_up_to(ahead + bottom, width) - _sum_up_to(ahead + top, width)
        behind = mask.offset - mask.window - left
        counts = counts - (_sum_up_to(behind + bottom, width) - _sum_up_to(behind + top, width))
    return np.array(counts)


def _sum_up_to(last: Ints, width: Ints) -> Ints:
    """Return the sum of clip(n, 0, width) over all n up to `last`."""
    inside = np.clip(last, 0, width)
    return np.asarray(inside * (inside + 1) // 2 + np.maximum(last - width, 0) * width)


def _of_head(attention: Attention, head: int, block: int) -> Ints:
    """Return the counts of one head, by looking at every pair."""
    T, S = attention.destinations, attention.sources
    starts, bias = np.arange(0, S, block), attention.bias
    counts = np.zeros((-(-T // block), starts.size), np.int64)
    strip = max(1, 64 // block) * block  # whole rows of blocks
    for start in range(0, T, strip):
        rows = slice(start, min(start + strip, T))
        permitted = attention.mask.permitted(range(rows.start, rows.stop), range(S))
        permitted = (permitted[head] if permitted.ndim == 3 else permitted) & ~attention.empty[head, rows, None]
        if bias is not None:
            permitted &= ~np.isneginf(bias[head if len(bias) > 1 else 0, rows])
        across = np.add.reduceat(permitted, starts, axis=1, dtype=np.int64)
        counts[start // block : -(-rows.stop // block)] = np.add.reduceat(
            across, np.arange(0, rows.stop - start, block), axis=0
        )
    return counts
