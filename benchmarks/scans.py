"""Every weight of a call read once: the scan against attention itself, its memory, a needle in the zoom."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Result, at_most, in_fresh_process, paired, require
from wherefrom.attention import Mask
from wherefrom.scans import Attention, Scan, scan

MODULE = "benchmarks.scans"
HEADS, KEY_HEADS, SIZE = 9, 3, 64
BOUNDS = {4096: (1.0, 1.4, 7), 16_384: (0.75, 1.1, 3)}
"""Of each length: the bounds without and with zoom and top, as shares of the kernel's time, and the pairs timed."""
LONG = 32_768


def run() -> Iterator[Result]:
    """Yield the lines of the table."""
    for length, (plain, full, rounds) in BOUNDS.items():
        yield from _at_length(length, plain, full, rounds)
    extra = in_fresh_process(MODULE, "memory")["extra_bytes"]
    yield Result(
        f"a scan of everything, extra memory, {HEADS} heads, {LONG:,} tokens",
        f"{extra / 1e6:.0f} MB",
        "<= 256 MB",
        extra <= 256e6,
        "peak resident memory of a process of its own, arrays and compiler loaded before",
    )
    yield _needle()


def _at_length(length: int, plain: float, full: float, rounds: int) -> Iterator[Result]:
    q, k, v = _tensors(length)
    attention = _attention(q, k, v)
    without = [name for name in attention.names if name not in ("zoom", "top")]
    _check(attention, scan(attention, attention.names, engine="cpu"))

    def kernel() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    for what, names, bound in (
        ("all statistics but zoom and top", without, plain),
        ("everything, zoom and top 8 among it", attention.names, full),
    ):
        yield at_most(
            f"scan of {what} / forward of torch's attention, {HEADS} heads, {length:,} tokens",
            paired(lambda names=names: scan(attention, names, engine="cpu"), kernel, rounds=rounds),
            bound,
            "rows in double precision",
        )


def _tensors(length: int) -> list[torch.Tensor]:
    """Return q, k and v [1, H, T, D], the key heads repeated for each query head that reads them."""
    generator = torch.Generator().manual_seed(7)
    drawn = [torch.randn(1, heads, length, SIZE, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [2 * drawn[0], *(x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in drawn[1:])]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attention:
    _, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    keys = k[0, :: HEADS // KEY_HEADS].contiguous()
    return Attention(q[0].numpy(), keys.numpy(), lse[0].numpy(), Mask(), SIZE**-0.5, codes=zipf(q.shape[2]))


def zipf(length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return token ids as frequent as words are: the n-th of 5,000 in proportion to 1 / n."""
    shares = 1 / np.arange(1, 5001)
    return np.random.default_rng(7).choice(5000, length, p=shares / shares.sum())


def _check(attention: Attention, found: Scan) -> None:
    """Compare some rows with their weights in double precision, and the sources' sums with the number of rows."""
    length = attention.destinations
    for head in range(attention.heads):
        require(abs(found["received"][head].sum() / length - 1) < 1e-5, "the weights of a head do not sum to its rows")
        for row in (1, length // 3, length - 1 - head):
            keys = attention.k[attention.key_heads[head], : row + 1].astype(float)
            logs = keys @ attention.q[head, row].astype(float) * attention.scale - attention.lse[head, row]
            a, same = np.exp(logs), attention.codes[:row] == attention.codes[row]
            best = np.argsort(-a, kind="stable")[: found.top]
            for name, value in (
                ("entropy", -(a * logs).sum()),
                ("largest", a.max()),
                ("distance", (a * (row - np.arange(row + 1))).sum() / a.sum()),
                ("duplicate", a[:-1][same].sum()),
                ("induction", a[1:][same].sum()),
            ):
                off = abs(found[name][head, row] - value)
                require(off <= 2e-5 * (1 + value), f"{name} of head {head}, row {row} is off by {off}")
            strongest = found.strongest.weights[head, row].compressed()
            require(np.allclose(strongest, a[best], atol=1e-6), f"the strongest of head {head}, row {row} are others")


def _needle() -> Result:
    """One pair of weight 1 among even rows: the whole map's largest shows it, its mean does not."""
    length, row, source = LONG, 20_001, 4_321
    q, k = np.zeros((1, length, 1), np.float32), np.zeros((1, length, 1), np.float32)
    q[0, row], k[0, source] = 30.0, 1.0
    lse = np.full((1, length), np.log(length))
    lse[0, row] = np.log(length - 1 + np.exp(30.0))
    top = scan(Attention(q, k, lse, Mask.bidirectional(), 1.0), ("zoom",), engine="cpu").zoom[-1]
    largest, mean, even = float(top.largest[0, 0, 0]), float(top.mean[0, 0, 0]), 1 / length
    return Result(
        f"a needle among even rows, {length:,} tokens, in the one block of the top level",
        f"largest {largest:.4f} ({largest / even:,.0f} times the even weight), mean {mean / even:.6f} times it",
        ">= 0.99; mean within 1e-4",
        largest >= 0.99 and abs(mean / even - 1) <= 1e-4,
        "the even weight, 1 / T, on paper",
    )


def extra_memory() -> float:
    """Scan everything at 32,768 tokens and return by how many bytes the resident memory grew at its peak."""
    small = np.zeros((1, 8, SIZE), np.float32)
    near = Attention(small, small, np.log(np.arange(1.0, 9.0))[None], Mask(), 1.0, codes=np.arange(8))
    scan(near, near.names, engine="cpu")  # the compiler is loaded
    rng = np.random.default_rng(7)
    q, k = (rng.standard_normal((heads, LONG, SIZE), dtype=np.float32) for heads in (HEADS, KEY_HEADS))
    # scores are normal with variance 1: a row's sum of exponentials is near (i + 1) sqrt(e)
    lse = np.tile(np.log(np.arange(1.0, LONG + 1)) + 0.5, (HEADS, 1)).astype(np.float32)
    attention = Attention(q, k, lse, Mask(), SIZE**-0.5, codes=zipf(LONG))
    before = _resident("VmRSS")
    found = scan(attention, attention.names, engine="cpu")
    grown = _resident("VmHWM") - before
    received = float(found["received"].sum()) / (HEADS * LONG)
    require(0.9 < received < 1.1, f"a row sums to {received}")
    require(grown > 0, "no memory was taken")
    return grown


def _resident(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * float(next(line.split()[1] for line in lines if line.startswith(f"{what}:")))


if __name__ == "__main__":
    require(sys.argv[1:] == ["memory"], "the one thing to run alone is memory")
    print(json.dumps({"extra_bytes": extra_memory()}))
