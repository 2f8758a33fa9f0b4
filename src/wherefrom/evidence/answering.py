"""What an answer drew on (floor 5): every passage of the prompt under several lenses, then measured as a budget allows.

Three kinds of passes are run. One forward and one backward pass price every edge as the model reads (weight, moved,
attribution); one more of each, with gates on the passages, says what leaving each out would do; what is left of the
budget goes into runs with passages really taken away, of which the strongest alone and random ones together. The
evidence is the gates' estimate, corrected by all runs (a ridge fit whose prior it is), and how well each lens ranks
those very runs is told beside it.

Takes gates, gradients, ablations and the fit from beside it; gives an `AnswerTrace` to views.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.checks import check_items
from wherefrom.errors import InputError
from wherefrom.evidence.ablations import Ablations, Ablator, How, subsets
from wherefrom.evidence.answered import Agreement, AnswerCost, AnswerTrace, Lens, spearman
from wherefrom.evidence.gates import AT, gate_gradients
from wherefrom.evidence.goal import AnswerGoal, Unit
from wherefrom.evidence.gradients import price
from wherefrom.evidence.prompted import Prompted, read_prompted
from wherefrom.evidence.read_weights import read_weights
from wherefrom.evidence.running import Runner, runner_of
from wherefrom.evidence.surrogate import fit
from wherefrom.passages import Passage, passages

Progress: TypeAlias = Callable[[str, int, int], None]
READING = 1.0
"""Passes that show what the answer's rows read."""
PRICING = 2.0
"""Passes that price every edge as well; they are run where the budget allows them."""
BUDGET = 12.0
ALONE = 3
"""So many of the strongest passages are taken away alone, before random ones together."""
ENOUGH = 8
"""Measured runs from which on they correct the estimate of single passages and say how well a lens ranks them; fewer
only give the estimate its scale."""
MOST_RUNS = 256
RESERVE = 0.2
"""Passes that are kept for finding out whether runs can begin behind what they share."""
SEED = 0


def trace_answer(
    model: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    answer: str | None = None,
    *,
    question: str | None = None,
    tokenizer: Any = None,
    by: Any = "sentence",
    words: Sequence[int] | None = None,
    unit: Unit = "log-odds",
    how: How = "deletion",
    budget: float = BUDGET,
    at: Sequence[float] = AT,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> AnswerTrace:
    """Return what an answer drew on: which passages of the prompt, by several lenses and by measuring.

    Args:
        model: a decoder of `wherefrom.load`, or one of transformers.
        prompt: a text; for a model of transformers also chat messages, written out by the model's template.
        answer: a text, scored as it is given, whoever wrote it; what the model writes itself unless given.
        question: what stands between the prompt and the answer, such as "Where is it? It is", on a line of its own
            where no blank parts it. It is read, and never taken away; without one the prompt's own last part, in which
            it ends, stays.
        tokenizer: of a model of transformers.
        by: what the prompt is divided into: "token", "word", "sentence", "line", "paragraph", "document", or your own
            marks (see `wherefrom.passages.passages`): texts that occur once, token ranges, or names of those.
        words: places of the answer's tokens that count, from 0; all unless given.
        unit: the answer's "log-odds", log p - log(1 - p), or its "log-probability".
        how: the way passages are taken away: "deletion", their tokens are taken out of the text; "total", no later
            token may read them; "direct", the answer's tokens may not read them.
        budget: how many passes over the whole text may be run, forward and backward together; at least 3. Passes with
            passages left out count by the tokens that are left.
        at: the gates at which the gate gradient is taken, one after the other; each is two passes.
        max_tokens: of an answer that the model writes; 32 unless given.
        progress: told about long work.

    Raises:
        InputError: a budget too small, no passage in the prompt, marks that match nothing or twice or overlap, an empty
            answer, log-odds that are infinite, a prompt longer than the context, a model that is no decoder.
        RecordingError: a kernel failed the self-check, or a cut had no effect.
    """
    start = time.perf_counter()
    tell = progress or (lambda what, done, total: None)
    gates_at = check_items("the gates", at, expected="numbers in a row", way_out="A single one is (0.15,).")
    least = READING + 2.0 * len(gates_at)
    _require_budget(budget, least)
    runner = runner_of(model, tokenizer)
    read = read_prompted(model, runner, prompt, answer, question=question, tokenizer=tokenizer, max_tokens=max_tokens)
    goal = AnswerGoal(read.tokens.ids, read.first, unit, None if words is None else tuple(words))
    parts = _divided(read, by)
    work = _Work(runner, goal, parts, float(budget))
    tell("reading the text", 0, 3)
    work.look(pricing=budget >= least - READING + PRICING)
    tell("setting gates", 1, 3)
    work.set_gates(gates_at)
    tell("taking passages away", 2, 3)
    work.measure(how, tell)
    return work.result(read, by if isinstance(by, str) else "marks", how, time.perf_counter() - start)


GATE = "what the answer gains, to first order, by each passage while all of them are shut to a part"
WEIGHT = "share of what the answer's rows read, mean over layers, heads and rows"
ESTIMATE = "estimate: first order"
GRADIENT = "sum over all edges that read it of a (v - y) . g, the derivative by the edges' scores"


def _require_budget(budget: Any, least: float) -> None:
    """Refuse a budget that does not pay for the lenses."""
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not number or not budget >= least:
        raise InputError(
            "the budget",
            expected=f"at least {least:g} passes: one to read the text, a forward and a backward one for each gate",
            given=f"{budget:g}" if number else repr(budget),
            way_out=f"Give {least:g} to measure nothing, {least + 1:g} to price every edge too, more to check the "
            "estimates by taking passages away.",
            least=least,
        )


def _divided(read: Prompted, by: Any) -> tuple[Passage, ...]:
    """Return the passages of the prompt that can be taken away."""
    found = passages(read.tokens, by, within=range(read.sources))
    ends = isinstance(by, str) and found[-1].stop == read.first  # the row that predicts the answer is in it
    parts = found[:-1] if ends else found
    if not parts:
        raise InputError(
            "the prompt",
            expected="two parts at least, since the one that the answer goes on from stays",
            given="one",
            way_out='Divide it otherwise, for example by="token", or give what is asked as the question.',
        )
    return parts


class _Work:
    """The passes of one trace, in the order in which they are run."""

    def __init__(self, runner: Runner, goal: AnswerGoal, parts: tuple[Passage, ...], budget: float) -> None:
        self.runner, self.goal, self.parts, self.budget = runner, goal, parts, budget
        self.lenses: dict[str, Lens] = {}
        self.forward = self.backward = 0.0
        self.log_probabilities: tuple[float, ...] = ()
        self.value = self.noise = math.nan
        self.runs: Ablations | None = None

    @property
    def left(self) -> float:
        """Passes that may still be run."""
        return self.budget - self.forward - self.backward

    def look(self, *, pricing: bool) -> None:
        """See what the answer's rows read, and price every edge where there is room for it."""
        goal = _Noting(self.goal.ids, self.goal.first, self.goal.unit, self.goal.chosen)
        rows = goal.rows
        if pricing:
            priced = price(self.runner, goal)
            heads = sum(call.heads for call in priced.calls)
            read = priced.sources("weight", rows=rows) / (heads * len(rows))  # S
            weight = np.array([read[part.start : part.stop].sum() for part in self.parts])
            gradient = priced.passages(self.parts, "score gradient")
            self.value, self.backward = priced.value, self.backward + 1
        else:
            shares, logits = read_weights(self.runner, goal, self.parts)
            weight, gradient = shares.numpy(), None
            self.value = float(goal.value(logits)[0])
        self.forward += 1
        self.log_probabilities = tuple(goal.noted[0])
        self.lenses["weight"] = Lens("weight", "share", WEIGHT, "exact, within rounding", weight)
        if gradient is not None:
            self.lenses["attribution"] = Lens("attribution", goal.unit, GRADIENT, ESTIMATE, gradient)

    def set_gates(self, at: Sequence[float]) -> None:
        """Estimate what leaving each passage out would do."""
        gated = gate_gradients(self.runner, self.goal, self.parts, at=at)
        self.lenses["gate"] = Lens("gate", f"{self.goal.unit} per unit of gate", GATE, ESTIMATE, gated.scores)
        self.forward, self.backward = self.forward + len(at), self.backward + len(at)

    def measure(self, how: How, tell: Progress) -> None:
        """Take passages away as far as the budget goes: the strongest alone, then random ones together."""
        if self.left < 1:  # the whole text is run first
            return
        measurer = Ablator(self.runner, self.goal, self.parts)
        kept = self._chosen(measurer, how)
        if len(kept):
            self.runs = measurer.measure(
                kept, how=how, progress=lambda done, total: tell("taking passages away", done, total)
            )
        self.noise = measurer.noise
        self.forward += measurer.cost

    def _chosen(self, measurer: Ablator, how: How) -> NDArray[np.bool_]:
        """Return which passages are kept in each run, bool [n, P], as many as the budget pays for."""
        scores = self.lenses["gate"].values
        strongest = np.argsort(-np.abs(scores), kind="stable")[:ALONE]
        alone = np.arange(len(self.parts)) != strongest[:, None]  # n P
        drawn = subsets(self.parts, MOST_RUNS, seed=SEED)
        both = np.concatenate([alone, drawn])
        every = both[np.sort(np.unique(both, axis=0, return_index=True)[1])]
        try:
            costs = np.cumsum(measurer.costs(every, how=how))
        except InputError:  # a choice that leaves nothing of the prompt: one passage, which is all of it
            return every[:0]
        return every[costs <= self.left - measurer.cost - RESERVE]

    def result(self, read: Prompted, by: str, how: How, seconds: float) -> AnswerTrace:
        """Return all that was found."""
        gate = self.lenses["gate"].values
        measured, evidence = np.full(len(self.parts), np.nan), gate
        agreements: tuple[Agreement, ...] = ()
        if self.runs is not None:
            kept, values = self.runs.kept, self.runs.values
            for own, effect in zip(kept, self.runs.effects, strict=True):
                if (~own).sum() == 1:
                    measured[np.flatnonzero(~own)[0]] = effect
            whole = np.ones((1, len(self.parts)), np.bool_)
            fitted = fit(np.concatenate([kept, whole]), np.append(values, self.value), prior=gate)
            evidence = fitted.weights if len(kept) >= ENOUGH else fitted.scale * gate
            if len(kept) >= ENOUGH:
                agreements = tuple(
                    Agreement(lens.name, spearman(kept @ lens.values, values), len(values))
                    for lens in self.lenses.values()
                )
        return AnswerTrace(
            model=self.runner.name,
            fingerprint=self.runner.fingerprint,
            tokens=read.tokens,
            first=read.first,
            written=read.written,
            passages=self.parts,
            by=by,
            unit=self.goal.unit,
            value=self.value,
            token_log_probabilities=self.log_probabilities,
            chosen=tuple(row + 1 for row in self.goal.rows),
            lenses=self.lenses,
            measured=measured,
            evidence=evidence,
            how=how,
            runs=0 if self.runs is None else len(self.runs.values),
            agreements=agreements,
            noise=self.noise,
            cost=AnswerCost(self.forward, self.backward, self.budget, seconds),
        )


@dataclass(frozen=True)
class _Noting(AnswerGoal):
    """The same goal, which notes the log-probability of each token of the answer."""

    noted: list[list[float]] = field(default_factory=list, compare=False)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities [B, R], noted."""
        found = super().log_probabilities(logits)
        self.noted.append(found[0].tolist())
        return found
