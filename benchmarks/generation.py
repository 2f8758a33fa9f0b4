"""Generation with a key/value cache: our SmolLM2 and transformers' `generate` on the same weights, greedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

import wherefrom
from benchmarks.forward import theirs
from benchmarks.measure import Result, at_least, require
from benchmarks.texts import text_of
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.generate import steps

WRITTEN = 64


@torch.inference_mode()
def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table: the speed of the tokens behind the first, which the pass over the prompt gives."""
    model, peer = wherefrom.load(), theirs("sdpa")
    for length in (16, 512):
        ids = text_of(model, length).ids

        def ours(count: int, ids: tuple[int, ...] = ids) -> list[int]:
            cache = KeyValueCache(model.config, len(ids) + count)
            return [step.id for step in steps(model.transformer, ids, max_tokens=count, cache=cache)]

        def others(count: int, ids: tuple[int, ...] = ids) -> list[int]:
            how = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
            written: list[int] = peer.generate(torch.tensor([ids]), **how)[0, len(ids) :].tolist()
            return written

        same = sum(one == other for one, other in zip(ours(WRITTEN), others(WRITTEN), strict=True))
        require(same >= WRITTEN - 2, f"only {same} of {WRITTEN} written tokens agree")
        ratios = []
        for number in range(rounds):
            order = (ours, others) if number % 2 else (others, ours)  # neither profits from going last
            seconds = {way: _behind_the_first(way) for way in order}
            ratios.append(seconds[others] / seconds[ours])
        what = f"generated tokens/s, ours / transformers' generate, {length} tokens read, {WRITTEN} written"
        yield at_least(what, ratios, 1.5, f"{same} of {WRITTEN} tokens the same")


def _behind_the_first(write: Callable[[int], list[int]]) -> float:
    """Return how long the tokens behind the first take: a run that writes them all, less a run that writes one."""
    seconds = []
    for count in (WRITTEN, 1):
        start = time.perf_counter()
        write(count)
        seconds.append(time.perf_counter() - start)
    return seconds[0] - seconds[1]
