"""Pricing every edge: what recording and the gradients of all outputs cost beside the same backward pass without."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import wherefrom
from benchmarks.forward import peak_resident_bytes
from benchmarks.measure import Result, at_most, in_fresh_process, paired, require
from benchmarks.texts import text_of
from wherefrom.evidence.direct import frozen
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.running import Executed, OwnRunner
from wherefrom.model.attention_function import Site, fused

MODULE = "benchmarks.gradients"
ANSWER = 8
"""Tokens of the text that are the answer."""


def goal_of(model: wherefrom.LanguageModel, length: int) -> AnswerGoal:
    """Return the log-odds of the end of a text of so many tokens."""
    return AnswerGoal(text_of(model, length).ids, length - ANSWER)


def plain(runner: OwnRunner, goal: AnswerGoal) -> Tensor:
    """Return the gradient of the first attention's output [1, H, T, V], nothing recorded: torch's own attention."""
    first: list[Tensor] = []

    def attention(one: Executed) -> Tensor:
        y = fused(one.q, one.k, one.v, mask=one.masks[0], scale=one.scale, site=Site(one.layer, one.name))
        if not first:
            first.append(y.detach().requires_grad_())
            return first[0]
        return y

    with frozen(runner.model.transformer), torch.enable_grad():
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention)
        return torch.autograd.grad(goal.value(logits).sum(), first)[0]


def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    yield _time(1024, rounds)
    yield _memory((1024, 2048, 4096))


def longest() -> Iterator[Result]:
    """Yield the line of memory up to the model's whole context, for which 12 GB must be free."""
    yield _memory((1024, 2048, 4096, 8192))


def _time(length: int, rounds: int) -> Result:
    model = wherefrom.load()
    runner, goal = OwnRunner(model), goal_of(model, length)
    own, expected = price(runner, goal), plain(runner, goal)[0]
    apart = float((own.calls[0].g - expected).abs().max() / expected.abs().max())
    require(apart < 1e-3, f"the gradient of the first output differs by {apart}")
    sums = max(float(abs(own.row(layer, 4, length // 2, "score gradient").sum())) for layer in range(30))
    size = float(own.heads("score gradient").max())
    require(sums < 1e-4 * size, f"the score gradients of a row sum to {sums}")
    return at_most(
        f"pricing every edge, forward and backward / the same with SDPA and nothing recorded, {length:,} tokens",
        paired(lambda: price(runner, goal), lambda: plain(runner, goal), rounds=rounds),
        1.10,
        f"first gradient within {apart:.0e}, relatively; every call passed its self-check",
    )


def _memory(lengths: Sequence[int]) -> Result:
    """Return the line of what both passes take beyond the loaded model, at their peak, a token."""
    loaded = in_fresh_process(MODULE, str(lengths[0]), "load")["peak_bytes"]
    whole, without = (
        [in_fresh_process(MODULE, str(n), way)["peak_bytes"] - loaded for n in lengths] for way in ("price", "plain")
    )
    growth = whole[-1] / lengths[-1] / (whole[0] / lengths[0])
    figures = zip(lengths, whole, without, strict=True)
    listed = ", ".join(f"{n:,}: {own / 1e6:,.0f} against {other / 1e6:,.0f}" for n, own, other in figures)
    return Result(
        f"peak memory of pricing beyond the model, a token, {lengths[-1]:,} tokens / {lengths[0]:,} tokens",
        f"{growth:.2f} (MB, against the same passes with nothing recorded, {listed})",
        "<= 1.15",
        growth <= 1.15,
        "peak resident memory, each in a process of its own",
    )


def peak(length: int, way: str) -> float:
    """Run one way once and return the process's peak resident memory in bytes."""
    model = wherefrom.load()
    runner, goal = OwnRunner(model), goal_of(model, length)
    ways: dict[str, Callable[[], Priced | Tensor | None]] = {
        "price": lambda: price(runner, goal),
        "plain": lambda: plain(runner, goal),
        "load": lambda: None,
    }
    held = ways[way]()
    require((held is None) == (way == "load"), "nothing was computed")
    return peak_resident_bytes()


if __name__ == "__main__":
    print(json.dumps({"peak_bytes": peak(int(sys.argv[1]), sys.argv[2])}))
