"""Recordings' files: what writing one costs beside the forward pass, and what opening one and asking it costs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import wherefrom
from benchmarks.forward import peak_resident_bytes
from benchmarks.measure import Result, at_most, in_fresh_process, paired, require
from benchmarks.texts import LONG, text_of
from wherefrom.capture.passes import facts_of
from wherefrom.mask import Mask
from wherefrom.questions import row_of_weights, window_of_weights
from wherefrom.recording import Call, Writer
from wherefrom.tokens import Tokens

MODULE = "benchmarks.files"
FAR = 32_768
ASK = """
import sys, wherefrom
recording = wherefrom.open_recording(sys.argv[1])
print(wherefrom.sources(recording, layer=20, head=3, top=3))
assert "torch" not in sys.modules
"""


def run(rounds: int = 3) -> Iterator[Result]:
    """Yield the lines of the table."""
    with tempfile.TemporaryDirectory(prefix="wherefrom-benchmark-") as folder:
        yield from _written(Path(folder), rounds)
        yield from _opened(Path(folder))
    yield from _exact_pieces()


@torch.inference_mode()
def _written(folder: Path, rounds: int) -> Iterator[Result]:
    model = wherefrom.load()
    tokens = text_of(model, 8192)
    ids, place = torch.tensor([tokens.ids]), folder / "written.wherefrom"

    def plain() -> torch.Tensor:
        return model.transformer(ids, last_only=True)

    def to_file() -> wherefrom.Recording:
        return wherefrom.record(model, tokens, to=place, overwrite=True)

    recording, logits = to_file(), plain()
    expected = torch.log_softmax(logits[0, -1], dim=-1)[recording.predictions[0].ids[0]]
    require(abs(float(expected) - recording.predictions[0].log_probabilities[0]) < 1e-4, "another prediction")
    wherefrom.verify_recording(place)
    yield at_most(
        "recording to a file / the same forward without, 8,192 tokens",
        paired(to_file, plain, rounds=rounds),
        1.10,
        "every call passed its self-check, every checksum holds, same prediction",
    )


def _opened(folder: Path) -> Iterator[Result]:
    """Yield what it costs a fresh process to open a file of 2 GB and print a row of it; its numbers are drawn."""
    model, place, length = wherefrom.load(), folder / "large.wherefrom", 18_000
    draw = np.random.default_rng(0)
    with Writer(place, model=facts_of(model), tokens=text_of(model, length)) as file:
        for layer in range(model.config.layers):
            q, k, v = (draw.standard_normal((heads, length, 64), np.float32) for heads in (9, 3, 3))
            lse = np.full((9, length), np.log(length), np.float32)
            file.add(Call(layer, f"blocks.{layer}", "self", q, k, v, lse, Mask(), 0.125, "drawn", ()))
        file.finish(predictions=())
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    require(size > 2e9, f"the file has only {size} bytes")
    expected = str(wherefrom.sources(wherefrom.open_recording(place), layer=20, head=3, top=3)) + "\n"
    ask = [sys.executable, "-c", ASK, str(place)]
    done = subprocess.run(ask, check=True, capture_output=True, text=True)
    require(done.stdout == expected, "the process printed another row")
    imports = [sys.executable, "-c", "import numpy, numba"]
    yield at_most(
        f"opening a recording of {size / 1e9:.1f} GB and printing a row, whole process / import numpy, numba",
        paired(
            lambda: subprocess.run(ask, check=True, capture_output=True),
            lambda: subprocess.run(imports, check=True, capture_output=True),
            rounds=9,
        ),
        3.0,
        "the same row as in this process; torch never imported",
    )


def _exact_pieces() -> Iterator[Result]:
    """Yield what one row and one window cost beside the plain products of the same numbers."""
    draw = np.random.default_rng(0)
    q, k = (1.5 * draw.standard_normal((1, FAR, 64)).astype(np.float32) for _ in range(2))
    call, exact = _call(q, k)
    row = row_of_weights(call, FAR - 1)[0]
    require(float(abs(row - exact).max()) < 1e-8, "the row is another one")
    yield at_most(
        "one exact row, 32,768 tokens / the product of the same keys and query, float32",
        paired(lambda: row_of_weights(call, FAR - 1), lambda: k[0] @ q[0, -1], rounds=200),
        5.0,
        "within 1e-8 of double precision",
    )
    rows, columns = range(FAR - 256, FAR), range(2000, 2256)
    window = window_of_weights(call, 0, rows, columns)
    require(float(abs(window[-1] - exact[2000:2256]).max()) < 1e-8, "the window is another one")
    wide = q[0, rows.start :].astype(np.float64), k[0, 2000:2256].astype(np.float64)
    yield at_most(
        "an exact window of 256 x 256 / the product of the same numbers, float64",
        paired(lambda: window_of_weights(call, 0, rows, columns), lambda: wide[0] @ wide[1].T, rounds=200),
        3.0,
        "within 1e-8 of double precision",
    )


def _call(q: np.ndarray, k: np.ndarray) -> tuple[Call, np.ndarray]:
    """Return a call of these numbers, whose lse is right in the last row, and that row in double precision."""
    scores = k[0].astype(np.float64) @ q[0, -1].astype(np.float64) / 8
    top = scores.max()
    lse = np.full((1, FAR), top + np.log(np.exp(scores - top).sum()), np.float32)
    call = Call(0, "drawn", "self", q, k, k, lse, Mask(), 0.125, "none", ())
    return call, np.exp(scores - float(lse[0, -1]))


def longest() -> Iterator[Result]:
    """Yield the lines of 32,768 tokens through the default model, recorded to disk: minutes, not part of `run`."""
    with tempfile.TemporaryDirectory(prefix="wherefrom-benchmark-") as folder:
        place = str(Path(folder) / "long.wherefrom")
        own = in_fresh_process(MODULE, "plain", place)
        recorded = in_fresh_process(MODULE, "recorded", place)
    ratio = recorded["peak_bytes"] / own["peak_bytes"]
    yield Result(
        f"peak memory of recording {FAR:,} tokens to a file / of the same run without",
        f"{ratio:.3f} ({recorded['peak_bytes'] / 1e9:.2f} GB against {own['peak_bytes'] / 1e9:.2f} GB)",
        "<= 2",
        ratio <= 2,
        f"{recorded['seconds']:.0f} s against {own['seconds']:.0f} s; same prediction",
    )
    require(own["first"] == recorded["first"], "another prediction")
    off = abs(recorded["size"] / recorded["forecast"] - 1)
    yield Result(
        "its file / the forecast",
        f"{recorded['size'] / recorded['forecast']:.4f} ({recorded['size'] / 1e9:.2f} GB)",
        "within 10 %",
        off <= 0.10,
        "every checksum holds",
    )


@torch.inference_mode()
def _long(way: str, place: str) -> dict[str, float]:
    model = wherefrom.load(context=FAR)
    tokens = _far(model)
    start = time.perf_counter()
    if way == "plain":
        logits = model.transformer(torch.tensor([tokens.ids]), last_only=True)
        seconds = time.perf_counter() - start
        return {"peak_bytes": peak_resident_bytes(), "seconds": seconds, "first": float(logits[0, -1].argmax())}
    recording = wherefrom.record(model, tokens, to=place)
    seconds, peak = time.perf_counter() - start, peak_resident_bytes()
    forecast = wherefrom.forecast_file_bytes(facts_of(model), FAR, output_width=model.config.width)
    size = wherefrom.verify_recording(place).bytes
    shutil.rmtree(place)
    first = float(recording.predictions[0].ids[0])
    return {"peak_bytes": peak, "seconds": seconds, "first": first, "forecast": forecast, "size": size}


def _far(model: wherefrom.LanguageModel) -> Tokens:
    whole = model.tokenizer.encode(LONG)
    require(len(whole) >= FAR, f"the text has only {len(whole)} tokens")
    return Tokens(LONG[: whole[FAR - 1].span[1]], tuple(whole.items[:FAR]))


if __name__ == "__main__":
    print(json.dumps(_long(*sys.argv[1:3])))
