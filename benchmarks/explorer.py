"""Tiles of a head's map at 32,768 tokens, made by an explorer that holds nothing yet, against their weights alone."""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection

import numpy as np
import torch
from safetensors.numpy import load

from benchmarks.measure import Result, at_most, paired, require
from wherefrom.attention import Mask
from wherefrom.questions.exact import window_of_weights
from wherefrom.questions.maps import TILE, HeadMap
from wherefrom.recording import Call, ModelFacts, Recording
from wherefrom.tokens import Token, Tokens
from wherefrom.views.web.serve import Opened, open_place, serve
from wherefrom.views.web.shelf import Shelf
from wherefrom.views.web.told import tile

LENGTH, HEADS, SIZE = 32_768, 3, 64
BOUND = 3.0
OF_EACH_LEVEL = 7
"""Tiles of every zoom that are asked for, each of a recording of which the server holds nothing."""
ROWS = 256
"""Destinations of a strip of the plain computation."""


def run() -> Iterator[Result]:
    """Yield the lines of the table."""
    recording = _recording()
    call = recording.calls[0]
    levels = HeadMap(call, 0).levels
    asked = [(level, number) for level in range(levels) for number in range(OF_EACH_LEVEL)]
    # the same call under many names: of each the server makes its map anew
    shelf = Shelf([(f"{level} {number}", replace(recording)) for level, number in [*asked, (0, -1)]])
    place = open_place(port=0)
    listening = threading.Event()
    threading.Thread(target=lambda: serve(shelf, place, ready=listening.set), daemon=True).start()
    require(listening.wait(60), "the server did not begin")
    _asked(place, "0 -1", 0, 0, 0, 0)
    generator = np.random.default_rng(7)
    ratios: dict[int, list[float]] = defaultdict(list)
    seconds = []
    for level, number in asked:
        row = int(generator.integers(-(-LENGTH // (TILE << level))))
        column, head = int(generator.integers(row + 1)), number % HEADS
        where = head, level, row, column
        ratios[level] += paired(partial(_answer, call, *where), partial(_cells, call, *where), rounds=1)
        start = time.perf_counter()
        body = _asked(place, f"{level} {number}", *where)
        seconds.append(time.perf_counter() - start)
        _check(call, *where, body)
    for level, own in ratios.items():
        block = 1 << level
        what = f"a cold tile of 256 x 256 blocks of {block} x {block} / its weights alone, {LENGTH:,} tokens"
        yield at_most(what, own, BOUND, "the largest of blocks in double precision")
    yield Result(
        "95 in 100 such tiles, any zoom, asked of the server one by one, are there within",
        f"{np.percentile(seconds, 95):.2f} s, median {statistics.median(seconds):.2f} s, {len(seconds)} tiles",
        "stated",
        True,
        "the same tiles",
    )


def _recording() -> Recording:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, HEADS, LENGTH, SIZE, generator=generator) for _ in range(3))
    _, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    arrays = (array[0].numpy() for array in (q, k, v, lse))
    call = Call(0, "layer 0", "self", *arrays, Mask(), SIZE**-0.5, "a benchmark's", ())
    tokens = Tokens("a" * LENGTH, tuple(Token(at, 97, "a", b"a", (at, at + 1), "a") for at in range(LENGTH)))
    facts = ModelFacts("a benchmark's", "0" * 64, 1, HEADS, HEADS, SIZE, LENGTH)
    return Recording(facts, tokens, (call,), (), None, 0.0)


def _asked(place: Opened, run: str, head: int, level: int, row: int, column: int) -> bytes:
    run = run.replace(" ", "%20")
    asked = f"/api/tile?run={run}&call=0&head={head}&level={level}&row={row}&column={column}&of=largest"
    line = HTTPConnection(place.host, place.port)
    line.request("GET", asked)
    answer = line.getresponse()
    body = answer.read()
    line.close()
    require(answer.status == 200, body.decode(errors="replace")[:200])
    return body


def _answer(call: Call, head: int, level: int, row: int, column: int) -> bytes:
    """Return what the server answers, made of a map that knows nothing yet."""
    return tile(HeadMap(call, head), level, row, column, of="largest").packed()[1]


def _cells(call: Call, head: int, level: int, row: int, column: int) -> float:
    """Compute every weight of a tile, strip by strip, and nothing else."""
    side = TILE << level
    q, k, lse = call.q[head], call.k[head], call.lse[head]
    largest = 0.0
    for start in range(row * side, min(LENGTH, (row + 1) * side), ROWS):
        stop = min(start + ROWS, LENGTH)
        sources = slice(column * side, min((column + 1) * side, stop))
        weights = (call.scale * q[start:stop]) @ k[sources].T
        weights -= lse[start:stop, None]
        np.exp(weights, out=weights)
        largest = max(largest, float(weights[0, 0]))
    return largest


def _check(call: Call, head: int, level: int, row: int, column: int, body: bytes) -> None:
    """Stop unless some blocks of a tile have the largest weight of their pairs."""
    side, block = TILE << level, 1 << level
    values = load(body)["values"]
    for own in (0, TILE // 2, TILE - 1):
        rows = range(row * side + own * block, row * side + (own + 1) * block)
        columns = range(column * side, column * side + block)
        expected = window_of_weights(call, head, rows, columns).max()
        if expected is np.ma.masked:
            require(bool(np.isnan(values[own, 0])), "a block without a permitted pair has a number")
        else:
            require(abs(float(expected) - values[own, 0]) <= 1e-4 * float(expected), "a block has another weight")
