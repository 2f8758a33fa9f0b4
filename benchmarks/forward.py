"""A forward pass with and without a recording, ours and transformers', and the usual way to see attention."""

from __future__ import annotations

import gc
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import wherefrom
from benchmarks.measure import Result, at_most, in_fresh_process, paired, require
from benchmarks.texts import text_of
from wherefrom.model.store import default_folder
from wherefrom.questions import window_of_weights

MODULE = "benchmarks.forward"


def theirs(attention: str) -> Any:
    """Return transformers' model on the same dequantised weights."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        default_folder(), attn_implementation=attention, dtype=torch.float32
    ).eval()


@torch.inference_mode()
def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    model = wherefrom.load()
    sdpa = theirs("sdpa")
    for length in (512, 2048):
        yield from _at_length(model, sdpa, length, rounds)
    yield from _against_eager(model, rounds=3)


def _at_length(model: wherefrom.LanguageModel, sdpa: Any, length: int, rounds: int) -> Iterator[Result]:
    tokens = text_of(model, length)
    ids = torch.tensor([tokens.ids])

    def ours() -> torch.Tensor:
        return model.transformer(ids, last_only=True)

    def theirs_() -> torch.Tensor:
        return sdpa(ids, logits_to_keep=1, use_cache=False).logits

    logits = ours()
    difference = float((theirs_() - logits).abs().max())
    require(difference <= 1e-3, f"logits differ from transformers' by {difference}")
    kept = wherefrom.record(model, tokens).prediction(length - 1)
    expected = torch.log_softmax(logits[0, -1], dim=-1)[kept.ids[0]]
    require(abs(float(expected) - kept.log_probabilities[0]) < 1e-4, "the recorded prediction is another one")
    yield at_most(
        f"forward with recording / without, {length:,} tokens",
        paired(lambda: wherefrom.record(model, tokens), ours, rounds=rounds),
        1.03,
        "every call passed its self-check; same prediction",
    )
    yield at_most(
        f"our forward / transformers' SDPA forward, {length:,} tokens",
        paired(ours, theirs_, rounds=rounds),
        1.05,
        f"logits within {difference:.1e}",
    )


def _against_eager(model: wherefrom.LanguageModel, *, rounds: int) -> Iterator[Result]:
    """Yield time and memory of a recording against `output_attentions=True` at 2,048 tokens."""
    eager = theirs("eager")
    tokens = text_of(model, 2048)
    ids = torch.tensor([tokens.ids])

    def usual_way() -> Any:
        out = eager(ids, logits_to_keep=1, use_cache=False, output_attentions=True)
        gc.collect()
        return out

    attentions = usual_way().attentions
    recording = wherefrom.record(model, tokens)
    worst = 0.0
    for layer, weights in enumerate(attentions):
        head = layer % 9
        rows = range(2000, 2048)
        ours = window_of_weights(recording.call(layer), head, rows, range(2048)).filled(0.0)
        worst = max(worst, float(abs(weights[0, head, 2000:2048].numpy() - ours).max()))
    require(worst <= 1e-5, f"weights differ from the eager ones by {worst}")
    del attentions, weights, recording
    checked = f"weights of every layer within {worst:.1e}"
    ratios = paired(lambda: wherefrom.record(model, tokens), usual_way, rounds=rounds)
    yield at_most("recording / transformers output_attentions=True, time, 2,048 tokens", ratios, 0.25, checked)
    yield extra_memory()


def extra_memory() -> Result:
    """Return the line of what each way takes beyond its own plain forward, at its peak."""
    peaks = {way: in_fresh_process(MODULE, way)["peak_bytes"] for way in ("ours", "recorded", "sdpa", "attentions")}
    extra, usual = peaks["recorded"] - peaks["ours"], peaks["attentions"] - peaks["sdpa"]
    require(usual > 0, "transformers' attentions took no memory")
    return Result(
        "the same, extra memory over the plain forward",
        f"{extra / usual:.4f} ({extra / 1e6:.0f} MB against {usual / 1e6:.0f} MB)",
        "<= 1/20",
        extra / usual <= 1 / 20,
        "peak resident memory, each in a process of its own",
    )


@torch.inference_mode()
def peak(way: str) -> float:
    """Run one way of reading 2,048 tokens and return the process's peak resident memory in bytes."""
    model = wherefrom.load()
    tokens = text_of(model, 2048)
    ids = torch.tensor([tokens.ids])
    if way == "recorded":
        held: Any = wherefrom.record(model, tokens)
    elif way == "ours":
        held = model.transformer(ids, last_only=True)
    elif way == "sdpa":
        held = theirs("sdpa")(ids, logits_to_keep=1, use_cache=False)
    else:
        held = theirs("eager")(ids, logits_to_keep=1, use_cache=False, output_attentions=True)
    require(held is not None, "nothing was computed")
    return peak_resident_bytes()


def peak_resident_bytes() -> float:
    """Return this process's own peak; getrusage would count what its parent held when it was forked."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return 1024.0 * float(peaks[0])


if __name__ == "__main__":
    print(json.dumps({"peak_bytes": peak(sys.argv[1])}))
