"""Heads that carry: found on some prompts, knocked out together on others, beside as many random heads."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import wherefrom
from benchmarks.measure import Result, require
from benchmarks.prompts import Prompt, code, facts, indirect_object, key_value
from wherefrom.evidence.carried import Carriers, Mean, Together
from wherefrom.evidence.carriers import Plan, measure_carriers, ordinary_case
from wherefrom.evidence.cases import Asked, read_cases
from wherefrom.evidence.head_scores import score_heads
from wherefrom.evidence.running import runner_of

FOUND_ON, TESTED_ON = range(100, 106), range(5)
"""Seeds of each family: those that the heads are found on are none of those that they are tested on."""
COUNT, DRAWS, DRAWS_ANYWHERE = 8, 4, 8
"""Of the whole model more sets of others are drawn: a few heads of the first layers do most of what such sets do."""


def drawn(seed: int) -> list[Prompt]:
    """Return a prompt of each of four families, with half as many sources as the families' own, to be quick."""
    return [facts(seed, 8), indirect_object(seed, 5), key_value(seed, 8), code(seed, 7)]


def case(prompt: Prompt) -> wherefrom.Case:
    """Return a prompt whose place is the source that holds the answer."""
    return wherefrom.Case(prompt.text, prompt.answer, prompt.sources[prompt.holds[0]], prompt.family)


def run() -> Iterator[Result]:
    """Yield the lines of the table."""
    model = wherefrom.load()
    runner = runner_of(model)
    given, test = ([case(prompt) for seed in seeds for prompt in drawn(seed)] for seeds in (FOUND_ON, TESTED_ON))
    cases = read_cases(model, runner, test)
    ordinary = ordinary_case(model, runner, None, cases)
    scores = score_heads(model, runner, read_cases(model, runner, given))

    def found(draws: int = DRAWS, **how: Any) -> Carriers:
        return measure_carriers(runner, scores, cases, ordinary, Plan(count=COUNT, draws=draws, **how))

    zero = found()
    checked = _checked(model, zero, cases)
    for own in zero.sets:
        yield _line(zero, own, checked, held=own.by == "first order")
    yield _harm(zero)
    reads = found(by="first order", how="reads")
    yield _line(reads, reads.first, "every cut proven by its rerun's log-sum-exps")
    anywhere = found(DRAWS_ANYWHERE, by="first order", among="model")
    yield _line(anywhere, anywhere.first, _checked(model, anywhere, cases))


def _line(found: Carriers, own: Together, checked: str, *, held: bool = True) -> Result:
    what = {"zero": "output set to zero", "reads": "kept from reading the place"}[found.how]
    drawn_from = {"layers": "others of the same layers", "model": "others of any layer"}[found.among]
    families = ", ".join(f"{name} {part.effect.value:.2f}" for name, part in found.by_family(own).items())
    ratio, others = own.ratio, float(own.others_ordinary.mean())
    return Result(
        f"{len(own.heads)} heads found by {own.by}, {what} together / {len(own.others)} draws of as many {drawn_from}, "
        f"{len(found.before)} held-out prompts of 4 families",
        f"{ratio.value:.1f} ({ratio.low:.1f} to {ratio.high:.1f}): {found.unit} lost {_interval(own.effect)} against "
        f"{_interval(own.others_effect)}; {families}; ordinary text {own.ordinary:+.3f} against {others:+.3f} nats a "
        "token",
        ">= 5" if held else "stated",
        ratio.value >= 5 or not held,
        checked,
    )


def _interval(mean: Mean) -> str:
    return f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"


def _harm(found: Carriers) -> Result:
    own = found.first
    others = float(own.others_ordinary.mean())
    return Result(
        f"the same {len(own.heads)} heads' output set to zero in ordinary text of {found.ordinary_tokens} tokens",
        f"{own.ordinary:+.3f} nats a token on {found.ordinary_nats:.2f} (random others {others:+.3f}); "
        f"{int(own.answered.sum())} of {int(found.answered.sum())} answers left",
        "<= 0.2 nats a token",
        own.ordinary <= 0.2,
        "95 % intervals are bootstrapped over prompts and draws",
    )


@torch.inference_mode()
def _checked(model: wherefrom.LanguageModel, found: Carriers, cases: Sequence[Asked]) -> str:
    """Return how far a measured loss is from that of a model whose output projections forget the heads."""
    goal = cases[1].goal
    other, size = copy.deepcopy(model.transformer), model.config.head_size
    for layer, head in found.first.heads:
        other.blocks[layer].attention.output.weight[:, head * size : (head + 1) * size] = 0.0
    whole, less = (
        float(goal.value(own(torch.tensor([goal.ids]))[:, list(goal.rows)])[0]) for own in (model.transformer, other)
    )
    apart = abs(whole - less - float(found.first.lost[1]))
    require(apart < 1e-3, f"a knock-out differs by {apart} from a model without the heads' projections")
    return f"a model whose projections forget the heads loses the same within {max(apart, 1e-7):.0e}"
