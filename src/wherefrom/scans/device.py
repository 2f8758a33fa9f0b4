"""The scan in torch, on whatever device its tensors are (floor 2): the one module of this room that imports torch.

It takes an `Attention`, or tensors that already lie on an accelerator, and gives the same `Scan` as the engines on a
processor: scores in float32, every sum in float64. A strip is as many destinations of one head, by the sources that
causal and window permit them, as memory has room for. Plain operations, so that any device with float64 will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.checks import check_kind, whole
from wherefrom.scans.contract import OF_SAME_TOKEN, Array, Attention, check_wanted
from wherefrom.scans.engines import check_threshold, check_top, scan_of
from wherefrom.scans.pairs import count_pairs, reach
from wherefrom.scans.reference import blank_arrays, finish
from wherefrom.scans.result import Scan, distance_bins, finest_block, zoom_levels

AT_ONCE = 1 << 26
"""Weights at once on an accelerator: 256 MB an array of them, of which some ten live at a time."""
UNDERFLOW = -87.0
"""Below this log a weight counts as 0, before float32 would hold it as a denormal."""


def scan_on_device(
    attention: Attention,
    wanted: Iterable[str],
    *,
    device: str | torch.device,
    threshold: float = 0.05,
    top: int = 8,
    strip: int | None = None,
) -> Scan:
    """Return what `scan` returns, computed on a device; the arguments are those of `scan`.

    Raises:
        InputError: as `scan` does.
    """
    attention = check_kind("the attention", attention, Attention, way_out="Make one of the arrays of a call.")
    q, k = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in (attention.q, attention.k))
    return _scan(attention, q, k, wanted, threshold, top, strip)


def scan_tensors(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    wanted: Iterable[str],
    *,
    threshold: float = 0.05,
    top: int = 8,
    strip: int | None = None,
    **rest: Any,
) -> Scan:
    """Return what `scan` returns of tensors q [H, T, D], k [K, S, D] and lse [H, T], computed where q is.

    Args:
        q: as `Attention` has it, in any format; bfloat16 is read as the float32 that it is.
        k: likewise.
        lse: likewise.
        mask: likewise.
        wanted: as `scan` has it.
        threshold: likewise.
        top: likewise.
        strip: likewise.
        rest: the other fields of `Attention`: scale, softcap, sinks, bias, key_heads and codes, as arrays.

    Raises:
        InputError: as `Attention` and `scan` do.
    """
    on_host = [tensor.detach().float().cpu().numpy() for tensor in (q, k, lse)]
    attention = Attention(on_host[0], on_host[1], on_host[2], mask, **rest)
    return _scan(attention, q.detach(), k.detach(), wanted, threshold, top, strip)


@dataclass(frozen=True, eq=False)
class Piece:
    """A strip of destinations of one head, by the sources that causal and window permit to any of them."""

    head: int
    rows: slice
    columns: slice
    i: Tensor  # R 1, positions
    j: Tensor  # C
    permitted: Tensor  # R C, nothing in an empty row
    s: Tensor  # R C, float32, -inf where not permitted
    logs: Tensor  # R C, s - lse
    a: Tensor  # R C, float32


@torch.no_grad()
def _scan(
    attention: Attention, q: Tensor, k: Tensor, wanted: Iterable[str], threshold: float, top: int, strip: int | None
) -> Scan:
    names = check_wanted(attention, wanted)
    threshold, top = check_threshold(threshold), check_top(top)
    if strip is None:
        strip = max(1, _at_once(q.device) // attention.sources)
    strip = whole("the strip", strip, least=1, way_out="It is a number of destinations; None chooses one.")
    arrays = blank_arrays(attention, names, top)
    block = finest_block(attention.destinations, attention.sources)
    zoom = _Zoom.empty(attention, block) if "zoom" in names else None
    strip = -(-strip // block) * block if zoom is not None else strip  # whole rows of blocks
    codes = torch.from_numpy(np.array([] if attention.codes is None else attention.codes)).to(q.device)
    with _full_precision(q.device):
        for piece in _pieces(attention, q, k, strip, block if zoom is not None else 1):
            _of_rows(piece, codes, arrays)
            _of_columns(piece, attention.farthest, threshold, arrays)
            if "strongest.ids" in arrays:
                _find_strongest(piece, top, arrays)
            if zoom is not None:
                zoom.add(piece)
    arrays |= finish(attention, arrays)
    if zoom is not None:
        arrays |= zoom_levels(block, zoom.largest, zoom.total, count_pairs(attention, block))
    return scan_of(attention, arrays, threshold=threshold, top=top)


def _at_once(device: torch.device) -> int:
    """Return how many weights to hold at once: on a processor those that stay in its cache."""
    if device.type != "cuda":
        return 1 << 20
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(AT_ONCE, free // 128))  # some 64 bytes a weight, of half of what is free


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Keep products in float32 as it is, whatever the caller allows for the sake of speed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _pieces(attention: Attention, q: Tensor, k: Tensor, strip: int, align: int) -> Iterator[Piece]:
    """Yield all destinations of each head in turn; columns begin at a multiple of `align`."""
    T, S, mask, device = attention.destinations, attention.sources, attention.mask, q.device
    firsts, stops = reach(mask, T, S)
    for head, key_head in enumerate(attention.key_heads):
        lse = torch.from_numpy(np.where(attention.empty[head], 0.0, attention.lse[head]).astype(np.float32)).to(device)
        for start in range(0, T, strip):
            rows = slice(start, min(start + strip, T))
            low, high = int(firsts[rows].min()), int(stops[rows].max())
            columns = slice(low - low % align, max(high, low - low % align))
            i = mask.offset + torch.arange(rows.start, rows.stop, device=device)[:, None]
            j = torch.arange(columns.start, columns.stop, device=device)
            s = q[head, rows].float() @ k[key_head, columns].float().T * attention.scale  # R C
            s, permitted = _changed(attention, head, rows, columns, s, _permitted(attention, head, rows, columns, i, j))
            logs = s - lse[rows, None]
            a = torch.where(logs < UNDERFLOW, 0.0, torch.exp(logs))
            yield Piece(head, rows, columns, i, j, permitted, s, logs, a)


def _permitted(attention: Attention, head: int, rows: slice, columns: slice, i: Tensor, j: Tensor) -> Tensor:
    """Return which pairs of a piece are permitted, bool [R, C]."""
    mask = attention.mask
    allowed = torch.from_numpy(~attention.empty[head, rows, None]).to(i.device) & (j >= 0)  # R C
    if mask.causal:
        allowed = allowed & (j <= i)
    if mask.window is not None:
        allowed = allowed & ((i - j).abs() < mask.window)
    if mask.padding is not None:
        allowed = allowed & torch.from_numpy(mask.padding[columns].copy()).to(i.device)
    if mask.explicit is not None:
        explicit = mask.explicit[head] if mask.explicit.ndim == 3 else mask.explicit
        allowed = allowed & torch.from_numpy(explicit[rows, columns].copy()).to(i.device)
    return allowed


def _changed(
    attention: Attention, head: int, rows: slice, columns: slice, s: Tensor, permitted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores with softcap and bias, -inf where not permitted, and what is permitted."""
    if attention.softcap is not None:
        s = attention.softcap * torch.tanh(s / attention.softcap)
    if attention.bias is not None:
        bias = attention.bias[head if len(attention.bias) > 1 else 0, rows, columns]
        b = torch.from_numpy(bias.astype(np.float32)).to(s.device)
        s, permitted = s + b, permitted & ~torch.isneginf(b)
    return s.masked_fill(~permitted, -torch.inf), permitted


def _sum(values: Tensor, dim: int = -1) -> Array:
    """Return sums in float64, on the host."""
    return np.asarray(values.sum(dim, dtype=torch.float64).cpu().numpy())


def _of_rows(p: Piece, codes: Tensor, arrays: dict[str, Array]) -> None:
    """Write the statistics of destinations that are wanted."""
    found: dict[str, Array] = {}
    if "entropy" in arrays:
        found["entropy"] = np.maximum(-_sum(torch.where(p.a > 0, p.a * p.logs, 0.0)), 0.0)
    for name, values in (("largest", p.logs), ("largest_score", p.s)):
        if name in arrays:
            grown = torch.nn.functional.pad(values, (0, 1), value=-torch.inf)  # a row of nothing has no maximum
            highest = grown.amax(-1).double().cpu().numpy()
            found[name] = np.exp(highest) if name == "largest" else highest
    for name, column in (("first", torch.zeros_like(p.i)), ("itself", p.i), ("previous", p.i - 1)):
        if name in arrays:
            found[name] = _sum(torch.where(p.j == column, p.a, 0.0))
    for name in (name for name in OF_SAME_TOKEN if name in arrays):
        found[name] = _sum(torch.where(_same_token(p, codes, step=OF_SAME_TOKEN.index(name)), p.a, 0.0))
    if "distance" in arrays:
        total, reached = _sum(p.a), _sum(p.a * (p.i - p.j).abs())
        found["distance"] = np.divide(reached, total, out=np.full(total.shape, np.nan), where=total > 0)
    for name, of_rows in found.items():
        arrays[name][p.head, p.rows] = of_rows


def _same_token(p: Piece, codes: Tensor, step: int) -> Tensor:
    """Return which sources [R, C] stand `step` after an earlier position of the destination's own token."""
    earlier = p.j - step  # below 0 it is no position: the last one's code is compared, and not let count
    return (codes[earlier] == codes[p.i]) & (earlier < p.i) & (earlier >= 0)


def _of_columns(p: Piece, farthest: int, threshold: float, arrays: dict[str, Array]) -> None:
    """Add to the statistics of heads and sources that are wanted."""
    if "distances" in arrays:
        distance = (p.i - p.j).abs()
        for number, span in enumerate(distance_bins(farthest)):
            inside = (distance >= span.start) & (distance < span.stop)
            arrays["distances"][p.head, number] += _sum(torch.where(inside, p.a, 0.0)).sum()
    if "received" in arrays:
        arrays["received"][p.head, p.columns] += _sum(p.a, 0)
    if "readers" in arrays:
        arrays["readers"][p.head, p.columns] += (p.a >= threshold).sum(0).cpu().numpy()
    if "last_reader" in arrays:
        row = torch.arange(p.rows.start, p.rows.stop, device=p.a.device)[:, None]
        last = torch.where(p.a >= threshold, row, -1).amax(0).cpu().numpy()
        kept = arrays["last_reader"][p.head, p.columns]
        np.maximum(kept, last, out=kept)


def _find_strongest(p: Piece, top: int, arrays: dict[str, Array]) -> None:
    """Write the strongest sources of each row.

    The largest of whole numbers are looked for that are ordered as the scores are and, where those are equal, by the
    lower source: the bits of a float32 in the upper half, with those of negative ones turned round, the source below.
    """
    bits = (p.logs + 0.0).view(torch.int32).long()  # + 0.0, as the bits of -0 are others than those of 0
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = bits * 2**32 + (2**31 - 1 - p.j)  # R C
    order = keys.topk(min(top, p.j.numel()), dim=-1).indices  # R top
    there = p.permitted.gather(1, order)
    a = torch.where(p.permitted, p.logs.double().exp(), 0.0)
    weights = torch.where(there, a.gather(1, order), torch.nan)
    count, at = order.shape[1], (p.head, p.rows)
    ids = torch.where(there, order + p.columns.start, -1).to(torch.int32)
    arrays["strongest.ids"][at][:, :count] = ids.cpu().numpy()
    arrays["strongest.weights"][at][:, :count] = weights.cpu().numpy()
    arrays["strongest.remainder"][at] = _sum(a.scatter(1, order, 0.0))


@dataclass(frozen=True, eq=False)
class _Zoom:
    """The finest blocks, filled by whole rows of them."""

    block: int
    largest: Array  # H R C
    total: Array

    @classmethod
    def empty(cls, attention: Attention, block: int) -> _Zoom:
        shape = (attention.heads, -(-attention.destinations // block), -(-attention.sources // block))
        return cls(block, np.zeros(shape), np.zeros(shape))

    def add(self, p: Piece) -> None:
        b = self.block
        rows, columns = p.a.shape
        if not columns:
            return
        grown = torch.nn.functional.pad(p.a, (0, -columns % b, 0, -rows % b))
        blocks = grown.view(grown.shape[0] // b, b, grown.shape[1] // b, b)
        down, across = p.rows.start // b, p.columns.start // b
        at = (p.head, slice(down, down + blocks.shape[0]), slice(across, across + blocks.shape[2]))
        self.largest[at] = blocks.amax((1, 3)).double().cpu().numpy()
        self.total[at] = blocks.sum((1, 3), dtype=torch.float64).cpu().numpy()
