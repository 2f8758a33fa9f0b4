"""Scores of faithfulness, from what `benchmarks.faithfulness` measured: each per prompt, then a mean with an interval.

- LDS, the linear datamodeling score: Spearman's correlation, over random subsets of kept parts, of the answer's
  measured log-odds with the sum of a lens's scores of the parts that were kept (Park et al. 2023, "TRAK"; for contexts
  Cohen-Wang et al. 2024, "ContextCite").
- LDS within: the same over those of the runs in which the parts that hold the answer were kept. Most of a prompt's
  log-odds hang on these, so that a lens which finds them and nothing else has a high LDS; this says how it ranks what
  is left.
- top-k drop: by how much the answer's log-probability falls when a lens's k strongest parts are gone, in nats.
- RISE: the area under the answer's log-probability as parts go in a lens's order, scaled to fall from 1 to 0 and never
  to rise (Petsiuk et al. 2018, "RISE"; scaled as by Walker et al. 2024). Lower is better.
- MAS: the same area of that curve and its distance from the share of the scores that is left, together at most 1,
  scaled to 1 to 0 (Walker et al. 2024, "Attribution Quality Metrics with Magnitude Alignment"). Negative scores count
  as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.choices import TOP, choices_to_test, gate_of, learned, order_of, steps_of, three_gates
from wherefrom.errors import InputError
from wherefrom.evidence.answered import spearman

Floats = NDArray[np.float64]
DRAWS = 10_000
"""Resamplings of a bootstrap interval."""
LEVEL = 0.95
FEWEST = 5
"""Prompts that an interval is given for."""


@dataclass(frozen=True)
class Way:
    """One lens of the comparison.

    Attributes:
        name: of it.
        passes: forward and backward ones over the whole text that it takes, a run with parts gone counted as one.
        cost: the same in words.
        ours: whether it is one of this package's.
    """

    name: str
    passes: int
    cost: str
    ours: bool


@dataclass(frozen=True)
class Mean:
    """A mean over prompts and its interval.

    Attributes:
        value: the mean over families of their prompts' means; NaN without prompts.
        low: of the interval, 95 %, by bootstrap: prompts are drawn again within each family. NaN below `FEWEST`
            prompts, and where a family has a single one, whose spread cannot be seen.
        high: likewise.
        count: prompts.
    """

    value: float
    low: float
    high: float
    count: int

    def __format__(self, spec: str) -> str:
        """Return the mean and its interval, each number as `spec` says; without one, of how many prompts it is."""
        if not self.count:
            return "none"
        value, low, high = (format(number, spec or ".3f") for number in (self.value, self.low, self.high))
        prompts = f"{self.count} prompt{'s' * (self.count > 1)}, no interval"
        return f"{value} ({prompts if np.isnan(self.low) else f'{low} to {high}'})"

    def __str__(self) -> str:
        return format(self)


def scores_of(row: Mapping[str, Any]) -> dict[str, Floats]:
    """Return what every lens says of a prompt's parts, [P] each; random numbers among them, for comparison."""
    drawn = np.random.default_rng(row["seed"]).normal(size=len(row["loo"]))
    own = {name: np.array(scores) for name, scores in row["lenses"].items()}
    strongest = np.zeros(len(drawn))
    strongest[gate_of(row, "0.6").argmax()] = 1.0
    fixed = {"random": drawn, **own, "leave one out": np.array(row["loo"]), "gates 3 + 3": three_gates(row)}
    fixed["gate 0.6, its first alone"] = strongest
    return fixed | learned(row)


def lds(row: Mapping[str, Any], scores: Floats, *, within: Sequence[int] = ()) -> float:
    """Return the linear datamodeling score of one prompt; NaN where all runs gave the same.

    Args:
        row: a measured prompt.
        scores: [P], of a lens.
        within: only runs that kept all of these parts.
    """
    kept = choices_to_test(len(scores), row["seed"])
    counts = kept[:, list(within)].all(axis=1)
    return spearman(np.asarray(kept[counts] @ scores, np.float64), np.array(row["test"])[counts])


def log_p(log_odds: Sequence[float] | Floats) -> Floats:
    """Return the log-probability that some log-odds are of."""
    found: Floats = -np.logaddexp(0.0, -np.asarray(log_odds, dtype=np.float64))
    return found


def curve_of(row: Mapping[str, Any], name: str, scores: Floats) -> Floats:
    """Return the answer's log-probability along a lens's order; NaN where another order was measured."""
    measured = row["curves"][name]
    values = log_p(measured["values"])
    return values if order_of(scores).tolist() == measured["order"] else np.full_like(values, np.nan)


def drop(row: Mapping[str, Any], name: str, scores: Floats, k: int) -> float:
    """Return by how much the answer's log-probability falls without the k strongest parts, in nats."""
    gone = [gone for gone, _ in steps_of(scores)]
    values = curve_of(row, name, scores)
    return float(values[0] - values[gone.index(k)])


def areas(row: Mapping[str, Any], name: str, scores: Floats) -> tuple[float, float]:
    """Return RISE and MAS of one prompt; NaN where the answer is no likelier with the parts than without them."""
    gone = np.array([gone for gone, _ in steps_of(scores)]) / len(scores)
    values = curve_of(row, name, scores)
    if not values[0] > values[-1]:
        return np.nan, np.nan
    response = np.minimum.accumulate(np.clip((values - values[-1]) / (values[0] - values[-1]), 0.0, 1.0))
    shares = np.maximum(scores, 0.0)
    left = [float((shares * kept).sum()) for _, kept in steps_of(scores)]
    density = np.array(left) / left[0] if left[0] > 0 else 1.0 - gone
    corrected = np.clip(response + np.abs(response - density), 0.0, 1.0)
    size = np.ptp(corrected)
    corrected = (corrected - corrected.min()) / size if size > 0 else 1.0 - gone
    return float(np.trapezoid(response, gone)), float(np.trapezoid(corrected, gone))


@dataclass(frozen=True)
class Judged:
    """One prompt's scores.

    Attributes:
        family: of the prompt.
        parts: that can be taken away.
        figures: by score ("LDS", "RISE", "MAS", "top-1 drop" ...), then by lens.
    """

    family: str
    parts: int
    figures: Mapping[str, Mapping[str, float]]


def judge(row: Mapping[str, Any]) -> Judged:
    """Return all scores of a measured prompt.

    Raises:
        InputError: a line that lacks a lens that others are made from, or that holds the curve of an unknown one.
    """
    scores = scores_of(row)
    figures: dict[str, dict[str, float]] = {"LDS": {name: lds(row, own) for name, own in scores.items()}}
    if row.get("holds"):
        figures["LDS within"] = {name: lds(row, own, within=row["holds"]) for name, own in scores.items()}
    for name in row.get("curves") or ():
        if name not in scores:
            raise InputError(
                f"the line of {row['family']} {row['seed']}",
                expected="curves of its lenses alone",
                given=f'one of "{name}"',
                way_out="Have them measured again: python -m benchmarks.faithfulness renew FILE.",
            )
        rise, mas = areas(row, name, scores[name])
        own = {f"top-{k} drop": drop(row, name, scores[name], k) for k in TOP} | {"RISE": rise, "MAS": mas}
        for score, figure in own.items():
            figures.setdefault(score, {})[name] = figure
    return Judged(row["family"], len(row["loo"]), figures)


def mean_of(rows: Sequence[Judged], score: str, name: str, *, above: str | None = None, seed: int = 0) -> Mean:
    """Return the mean of a lens's score over families, each the mean over its prompts; NaN are left out.

    Args:
        rows: judged prompts, each of them once.
        score: which.
        name: of the lens.
        above: of another, whose score is taken off prompt by prompt.
        seed: of the bootstrap.

    Returns:
        The mean, and its interval if there are `FEWEST` prompts or more, and of no family a single one.
    """
    by_family: dict[str, list[float]] = {}
    for row in rows:
        own = row.figures[score]
        value = own[name] - (0.0 if above is None else own[above])
        if not np.isnan(value):
            by_family.setdefault(row.family, []).append(value)
    if not by_family:
        return Mean(np.nan, np.nan, np.nan, 0)
    families = [np.array(values) for values in by_family.values()]
    sizes = tuple(map(len, families))
    mean, count = float(np.mean([values.mean() for values in families])), sum(sizes)
    if count < FEWEST or min(sizes) == 1:
        return Mean(mean, np.nan, np.nan, count)
    drawn = [values[again].mean(axis=1) for values, again in zip(families, _again(sizes, seed), strict=True)]
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Mean(mean, float(low), float(high), count)


@lru_cache(maxsize=8)  # the same for every lens
def _again(sizes: tuple[int, ...], seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return which prompts of each family a bootstrap draws, [DRAWS, n] each."""
    generator = np.random.default_rng(seed)
    return tuple(generator.integers(size, size=(DRAWS, size)) for size in sizes)
