"""Generation with a key/value cache: our SmolLM2 and transformers' `generate` on the same weights, greedy."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import wherefrom
from benchmarks.forward import theirs
from benchmarks.measure import Result, at_least, paired, require
from benchmarks.texts import text_of
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.generate import steps

WRITTEN = 64


@torch.inference_mode()
def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    model, peer = wherefrom.load(), theirs("sdpa")
    for length in (16, 512):
        ids = text_of(model, length).ids

        def ours(ids: tuple[int, ...] = ids) -> list[int]:
            cache = KeyValueCache(model.config, len(ids) + WRITTEN)
            return [step.id for step in steps(model.transformer, ids, max_tokens=WRITTEN, cache=cache)]

        def others(ids: tuple[int, ...] = ids) -> list[int]:
            how = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}
            written: list[int] = peer.generate(torch.tensor([ids]), **how)[0, len(ids) :].tolist()
            return written

        same = sum(one == other for one, other in zip(ours(), others(), strict=True))
        require(same >= WRITTEN - 2, f"only {same} of {WRITTEN} written tokens agree")
        ratios = paired(others, ours, rounds=rounds)
        what = f"generated tokens/s, ours / transformers' generate, {length} tokens read, {WRITTEN} written"
        yield at_least(what, ratios, 1.5, f"{same} of {WRITTEN} tokens the same")
