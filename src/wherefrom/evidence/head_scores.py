"""What each head did for answers whose place is known (floor 5): scores by which heads that carry are found.

For a case with an answer whose token t is written by row t - 1, and a place P in the prompt, with weights a, values v,
outputs y and g = d goal / d y of one forward and one backward pass::

    retrieval     share of the answer's tokens, of those that stand in P, at which the row's largest weight lies on
                  that very token in P
    weight        mean over the answer's rows of the weight on P
    first order   sum over all later rows i outside P of  g_i . (y_i - y_i'),  y_i' = the head's output without P

Retrieval is the score of Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality",
arXiv:2404.15574, which they divide by the tokens of the needle, and we by the answer's tokens that stand in the place.
y_i' is exact: what is left of the row, renormalised, is y_i' = (y_i - sum_P a v) / (1 - sum_P a); so first order is
what the goal loses when the head may not read P, to first order in that change. Means are over the cases.

    induction     mean weight on the token after the previous occurrence of the row's own, on random tokens that come
                  twice: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv:2209.11895

Takes the prices from gradients beside it, and induction from the recorder and the questions below. A head whose module
runs several times in a pass is one head: weights and retrieval are the mean over its executions, first order the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.capture.verbs import is_module, record
from wherefrom.errors import InputError
from wherefrom.evidence.cases import Asked, within
from wherefrom.evidence.edges import PricedCall
from wherefrom.evidence.gradients import price
from wherefrom.evidence.running import Runner
from wherefrom.evidence.without_heads import Head
from wherefrom.model.language import LanguageModel
from wherefrom.questions import heads as figures_of_heads

Floats = NDArray[np.float64]
REPEATED = 50
"""Random tokens of a probe for induction, which come twice."""
PROBES = 4


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every head, each [n], float64; NaN where a score has no meaning.

    Attributes:
        heads: which they are, ascending.
        retrieval: NaN where no token of any answer stands in its place.
        weight: on the place.
        first_order: in the goal's unit.
        induction: NaN of a model too small for a probe.
        means: each head's output [V], mean over all positions of all cases.
        cases: how many there were.
        texts: that were read: the cases, and the probes for induction.
    """

    heads: tuple[Head, ...]
    retrieval: Floats
    weight: Floats
    first_order: Floats
    induction: Floats
    means: dict[Head, Tensor] = field(repr=False)
    cases: int
    texts: int


def score_heads(
    model: Any,
    runner: Runner,
    cases: Sequence[Asked],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Return what each head did for the answers of some cases, from a forward and a backward pass for each.

    Args:
        model: a decoder of `wherefrom.load` or of transformers.
        runner: of that model.
        cases: at least one.
        seed: of the random tokens for induction.
        progress: told after each case.

    Raises:
        InputError: log-odds that are infinite, a model whose logits have no gradient.
        RecordingError: a self-check failed.
    """
    each: list[dict[Head, _OfCase]] = []
    sums: dict[Head, Tensor] = {}
    positions = 0
    for done, asked in enumerate(cases, start=1):
        try:
            calls = [call for call in price(runner, asked.goal).calls if call.kind == "self"]
        except InputError as error:
            raise within(error, asked.name) from None
        each.append(_scored(calls, asked))
        positions += len(asked.goal.ids)
        for head, own in _outputs(calls).items():
            sums[head] = sums.get(head, torch.zeros(())) + own
        if progress is not None:
            progress(done, len(cases))
    heads = tuple(sorted(sums))
    table = np.array([[one[head] for head in heads] for one in each])  # C n 3
    counted = ~np.isnan(table[:, 0, 0])  # cases of which some token of the answer stands in the place
    retrieval = table[counted, :, 0].mean(axis=0) if counted.any() else np.full(len(heads), np.nan)
    by_head = induction(model, runner, seed=seed)
    return Scores(
        heads=heads,
        retrieval=retrieval,
        weight=table[..., 1].mean(axis=0),
        first_order=table[..., 2].mean(axis=0),
        induction=np.array([by_head.get(head, np.nan) for head in heads]),
        means={head: own / positions for head, own in sums.items()},
        cases=len(cases),
        texts=len(cases) + PROBES * bool(by_head),
    )


_OfCase = tuple[float, float, float]
"""Retrieval, weight and first order of a head in one case."""


def _scored(calls: Sequence[PricedCall], asked: Asked) -> dict[Head, _OfCase]:
    """Return the scores of every head in one case."""
    found: dict[Head, list[_OfCase]] = {}
    for call in calls:
        hits, weight = _read(call, asked)
        first = first_order(call, asked.place.start, asked.place.stop)
        for head in range(call.heads):
            own = float(hits[head]), float(weight[head]), float(first[head])
            found.setdefault((call.layer, head), []).append(own)
    return {head: _joined(own) for head, own in found.items()}


def _joined(executions: Sequence[_OfCase]) -> _OfCase:
    retrieval, weight, first = np.array(executions).T
    return float(retrieval.mean()), float(weight.mean()), float(first.sum())


def _read(call: PricedCall, asked: Asked) -> tuple[Tensor, Tensor]:
    """Return the retrieval score and the mean weight on the place of the answer's rows, each [H]."""
    ids, place, rows = torch.tensor(asked.goal.ids), asked.place, asked.goal.rows
    inside = torch.zeros(len(ids), dtype=torch.bool)
    inside[place.start : place.stop] = True
    copies = inside & (ids == ids[[row + 1 for row in rows]][:, None])  # R S, what may be copied
    hits, weight, done = torch.zeros(call.heads), torch.zeros(call.heads, dtype=torch.float64), 0
    for strip in call.strips(rows, call.heads):
        columns = call.reach(strip)
        along = slice(columns.start, columns.stop)
        weights = call.prices("weight", strip, range(call.heads), None, None)  # H R C
        weight += weights[..., inside[along]].sum(dim=(1, 2), dtype=torch.float64)
        largest = weights.argmax(dim=-1) + columns.start  # H R
        hits += copies[done : done + len(strip)].gather(1, largest.T).sum(dim=0)
        done += len(strip)
    copied = int(copies.any(dim=1).sum())
    retrieval = hits / copied if copied else torch.full_like(hits, torch.nan)
    return retrieval, weight / len(rows)


def first_order(call: PricedCall, start: int, stop: int) -> Tensor:
    """Return what the goal loses, to first order, when a head may not read tokens start to stop - 1: float64 [H].

    The weights of the rest are summed as they are, not taken from 1, so that a row that reads little else keeps its
    digits. A row of which nothing would be left counts as 0: its cut is refused.
    """
    found = torch.zeros(call.heads, dtype=torch.float64)
    rows = [row for row in range(call.q.shape[1]) if not start <= row < stop]
    heads = range(call.heads)
    for strip in call.strips([row for row in rows if call.mask.reach(row, call.sources).stop > start], call.heads):
        columns = torch.tensor(call.reach(strip))
        rest = (columns < start) | (columns >= stop)
        weights = call.prices("weight", strip, heads, None, None).double()  # H R C
        worth = call.prices("direct", strip, heads, None, call.g[:, list(strip)]).double()  # H R C, a g . v
        left = weights[..., rest].sum(dim=-1)  # H R
        if call.sinks is not None:
            left += torch.exp(call.sinks[:, None] - call.lse[:, list(strip)]).double()
        without = worth[..., rest].sum(dim=-1) / left
        found += torch.where(left > 0, worth.sum(dim=-1) - without, 0.0).sum(dim=-1)
    return found


def _outputs(calls: Sequence[PricedCall]) -> dict[Head, Tensor]:
    """Return the sum over positions of each head's output, [V], mean over the executions of a module."""
    found: dict[Head, list[Tensor]] = {}
    for call in calls:
        for head in range(call.heads):
            found.setdefault((call.layer, head), []).append(call.y[head].sum(dim=0))
    return {head: torch.stack(own).mean(dim=0) for head, own in found.items()}


def induction(model: Any, runner: Runner, *, seed: int = 0) -> dict[Head, float]:
    """Return the induction score of every head, mean over some rows of random tokens that come twice.

    Args:
        model: a decoder of `wherefrom.load` or of transformers.
        runner: of that model.
        seed: of the tokens.
    """
    room = runner.vocabulary if runner.context is None else min(runner.vocabulary, runner.context // 2)
    half = min(REPEATED, room)
    if half < 2:
        return {}
    draw = np.random.default_rng(seed)
    found: dict[Head, list[float]] = {}
    for _ in range(PROBES):
        ids = 2 * draw.choice(runner.vocabulary, half, replace=False).tolist()
        for row in figures_of_heads(_recorded(model, ids)):
            value = row["induction"]
            if isinstance(value, float):
                found.setdefault((int(row["layer"] or 0), int(row["head"] or 0)), []).append(value)
    return {head: float(np.mean(values)) for head, values in found.items()}


def _recorded(model: Any, ids: list[int]) -> Any:
    if isinstance(model, LanguageModel) or not is_module(model):
        return record(model, model.tokenizer.tokens_of(ids))
    return record(model, input_ids=torch.tensor([ids]))
