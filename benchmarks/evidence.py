"""Knock-outs: what all of them cost beside one forward pass, and whether each is what a full masked re-run gives."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import wherefrom
from benchmarks.measure import Result, at_most, paired, require
from benchmarks.texts import TWENTY, text_of
from wherefrom.evidence.target import find_target


def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    model = wherefrom.load()
    yield from _mary(model)
    yield from _against_rerun(model)
    yield from _cost(model, rounds)


def _mary(model: wherefrom.LanguageModel) -> Iterator[Result]:
    trace = wherefrom.trace(model, TWENTY[0], carried_sources=0)
    first = int(trace.order[0])
    label, nats, weight = trace.tokens[first].label, trace.nats[first], trace.weights[first]
    yield Result(
        'largest knock-out of "When Mary and John went to the store, John gave a drink to"',
        f'"{label}", {nats:.4f} nats at a mean weight of {100 * weight:.1f}%',
        '" Mary", 1.40 nats',
        label == " Mary" and abs(nats - 1.4019) < 1e-3,
        "an independent implementation gives 1.4019",
    )


@torch.inference_mode()
def _against_rerun(model: wherefrom.LanguageModel) -> Iterator[Result]:
    worst, count = 0.0, 0
    for text in TWENTY:
        recording = wherefrom.record(model, text)
        last = wherefrom.Destination(model, recording)
        target = find_target(model.tokenizer, last.logits(), None)
        measured = wherefrom.knock_out(last, target)
        ids, position = recording.tokens.ids, last.position
        before = float(target.of_logits(model.transformer(torch.tensor([ids]))[0, -1]))
        for source in range(len(ids)):
            logits = wherefrom.rerun(model, ids, wherefrom.Cut((position,), (source,)))
            again = before - float(target.of_logits(logits[-1]))
            worst, count = max(worst, abs(again - float(measured.nats[source]))), count + 1
    yield Result(
        f"a knock-out / a full masked re-run of the same cut, every source of {len(TWENTY)} prompts ({count})",
        f"within {worst:.1e} nats",
        "<= 1e-4 nats",
        worst <= 1e-4,
        "dense softmax over the whole text for each",
    )


@torch.inference_mode()
def _cost(model: wherefrom.LanguageModel, rounds: int) -> Iterator[Result]:
    tokens = text_of(model, 730)
    ids = torch.tensor([tokens.ids])
    recording = wherefrom.record(model, tokens)
    last = wherefrom.Destination(model, recording)
    logits = last.logits()
    target = find_target(model.tokenizer, logits, None)
    measured = wherefrom.knock_out(last, target)
    before = float(target.of_logits(model.transformer(ids, last_only=True)[0, -1]))
    sources = [int(s) for s in abs(measured.nats).argsort()[-3:]] + [0, 365, 729]
    worst = 0.0
    for source in sources:
        again = wherefrom.rerun(model, tokens.ids, wherefrom.Cut((729,), (source,)))[-1]
        worst = max(worst, abs(before - float(target.of_logits(again)) - float(measured.nats[source])))
    require(worst <= 1e-4, f"knock-outs differ from full re-runs by {worst}")
    checked = f"{len(sources)} of them re-run in full, within {worst:.0e} nats"
    yield at_most(
        "all 730 direct knock-outs / one forward with the logits of every position, 730 tokens",
        paired(lambda: wherefrom.knock_out(last, target), lambda: model.transformer(ids), rounds=rounds),
        1.4,
        checked,
    )
    yield at_most(
        "the same / one forward with the logits of the last position only",
        paired(
            lambda: wherefrom.knock_out(last, target),
            lambda: model.transformer(ids, last_only=True),
            rounds=rounds,
        ),
        1.5,
        checked,
    )
