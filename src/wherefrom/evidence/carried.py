"""Heads that carry (floor 5): the frozen result of `wherefrom.find_carriers`, that views draw and programs read.

It holds the scores of every head, and for each set of heads that was knocked out together what every held-out answer
lost, beside what it lost without as many random heads. What was not measured is None or NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.evidence.scored_answer import rounded
from wherefrom.evidence.without_heads import Head, Knockout
from wherefrom.questions.answer import Answer, Column

Numbers: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Among: TypeAlias = Literal["layers", "model"]
SCHEMA = "wherefrom.carriers/1"
RESAMPLED = 2000
"""Times that cases and draws are drawn again for an interval."""
ENOUGH = 5
"""Cases from which on there is an interval."""
TAILS = (0.025, 0.975)
RANKINGS = {
    "first order": "what the answer loses, to first order, if the head may not read the place",
    "retrieval": "of the answer's tokens in the place: share written while its largest weight lay on that token there",
    "induction": "weight on what followed the same token before, in random tokens that come twice",
    "weight": "of the answer's rows on the place",
}
EXACTNESS = {
    "first order": "estimate: first order in the change of the head's output, which itself is exact",
    "retrieval": "exact, within rounding",
    "induction": "exact, within rounding, of the tokens that were drawn",
    "weight": "exact, within rounding",
}
MEASURED = "exact: measured by running each text with the heads knocked out, within the noise of the number format"


class Mean(NamedTuple):
    """A mean over cases, and the interval of 95 % of the means of cases that were drawn again; NaN below 5 cases."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """Return it as what `json.dumps` takes."""
        return {"mean": rounded(self.value), "interval": _interval(self.low, self.high)}


@dataclass(frozen=True, eq=False)
class Together:
    """Some heads knocked out together, and as many random others, several times: what each of C answers lost.

    Intervals are from the bootstrap (Efron 1979): cases, and draws of others, are drawn again with replacement.

    Attributes:
        by: the score that the heads were found by.
        heads: those of the highest score, the highest first; all are above 0, so that they may be fewer than asked for.
        lost: [C], the answer's value with all heads less that without these.
        answered: [C], whether each token of the answer is still the likeliest.
        ordinary: nats a token that ordinary text loses.
        others: R sets of random other heads.
        others_lost: [R, C].
        others_answered: [R, C].
        others_ordinary: [R].
    """

    by: str
    heads: tuple[Head, ...]
    lost: Numbers
    answered: Bools
    ordinary: float
    others: tuple[tuple[Head, ...], ...]
    others_lost: Numbers
    others_answered: Bools
    others_ordinary: Numbers

    @property
    def effect(self) -> Mean:
        """What the answers lose on the mean."""
        return self._mean(float(self.lost.mean()), self._again[0])

    @property
    def others_effect(self) -> Mean:
        """What they lose without random others, on the mean over cases and draws."""
        return self._mean(float(self.others_lost.mean()), self._again[1])

    @property
    def others_size(self) -> float:
        """The mean size of what a case loses or gains without random others."""
        return float(np.abs(self.others_lost).mean())

    @property
    def ratio(self) -> Mean:
        """The effect over `others_size`, in which help and harm do not cancel.

        Sizes are of single cases and draws: others that hurt one answer and help the next have a mean near 0 and do
        much all the same. Infinite, with the effect's sign, where the others change nothing at all; NaN where the found
        change nothing either.
        """
        value = _over(self.effect.value, self.others_size)
        return Mean(value, value, value) if math.isnan(value) else self._mean(value, self._again[2])

    def only(self, cases: Collection[int]) -> Together:
        """Return the same of some of the cases alone; ordinary text is as it was."""
        kept = np.array(sorted(cases), dtype=np.intp)
        return replace(
            self,
            lost=self.lost[kept],
            answered=self.answered[kept],
            others_lost=self.others_lost[:, kept],
            others_answered=self.others_answered[:, kept],
        )

    @cached_property
    def _again(self) -> tuple[Numbers, Numbers, Numbers]:
        """The effect, that of others, and their ratio, of cases and draws drawn again, each [RESAMPLED].

        Where nothing changes anything in what was drawn, the ratio counts as 0.
        """
        draw = np.random.default_rng(0)
        cases = draw.integers(len(self.lost), size=(RESAMPLED, len(self.lost)))
        draws = draw.integers(len(self.others), size=(RESAMPLED, len(self.others)))
        found = self.lost[cases].mean(axis=1)
        others, size = (
            np.take_along_axis(lost[:, cases].mean(axis=-1).T, draws, axis=1).mean(axis=1)  # RESAMPLED
            for lost in (self.others_lost, np.abs(self.others_lost))
        )
        ratio = np.array(list(map(_over, found.tolist(), size.tolist())))
        return found, others, np.nan_to_num(ratio, nan=0.0, posinf=math.inf, neginf=-math.inf)

    def _mean(self, value: float, again: Numbers) -> Mean:
        if len(self.lost) < ENOUGH:
            return Mean(value, float("nan"), float("nan"))
        low, high = np.quantile(again, TAILS, method="inverted_cdf")  # never between a number and an infinity
        return Mean(value, float(low), float(high))

    def to_json(self) -> dict[str, Any]:
        """Return it as what `json.dumps` takes."""
        return {
            "by": self.by,
            "heads": [list(head) for head in self.heads],
            "effect": self.effect.to_json(),
            "answered": int(self.answered.sum()),
            "ordinary": rounded(self.ordinary),
            "lost": [rounded(value) for value in self.lost],
            "others": {
                "draws": [[list(head) for head in heads] for heads in self.others],
                "effect": self.others_effect.to_json(),
                "size": rounded(self.others_size),
                "answered": rounded(float(self.others_answered.sum(axis=1).mean())),
                "ordinary": [rounded(value) for value in self.others_ordinary],
                "lost": [[rounded(value) for value in own] for own in self.others_lost],
            },
            "ratio": self.ratio.to_json(),
        }


@dataclass(frozen=True)
class CarriersCost:
    """What was run.

    Attributes:
        forward: texts read, a version without some heads counted as one; those by which the model's heads are counted,
            an answer is spelled, or noise is measured are among them.
        backward: gradients with respect to a text, each about the work of two forward passes.
        seconds: wall clock.
    """

    forward: int
    backward: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Carriers:
    """Heads that fetch an answer from where it stands: the scores of every head, and sets of them knocked out.

    Attributes:
        model: its name.
        fingerprint: of its weights.
        heads: every head, (layer, head), ascending.
        scores: by name, each [heads]: "first order" in the unit of the answers' values, "retrieval", "induction" and
            "weight" as shares; NaN where one has no meaning.
        found_on: how many cases the heads were found on.
        families: of the C cases that they were tested on.
        before: [C], the value of each answer with all heads.
        answered: [C], whether each token of the answer is the likeliest then.
        unit: of the values: "log-odds" or "log-probability".
        how: what of the heads was knocked out: "zero", "mean" or "reads".
        among: where random others are drawn from.
        seed: of the draws.
        count: how many heads were asked for of each set; it holds fewer where no more have a score above 0.
        sets: what was knocked out together, one for each score that heads were found by.
        left_out: scores that are not above 0 for any head here, and that were not asked for by name.
        ordinary_nats: a token, of ordinary text with all heads; its sets' numbers are what is added to that.
        ordinary_tokens: of which text, so many tokens.
        noise: differences of one answer's value below this are rounding.
        cost: what was run.
    """

    model: str
    fingerprint: str
    heads: tuple[Head, ...]
    scores: Mapping[str, Numbers] = field(repr=False)
    found_on: int
    families: tuple[str, ...]
    before: Numbers = field(repr=False)
    answered: Bools = field(repr=False)
    unit: str
    how: Knockout
    among: Among
    seed: int
    count: int
    sets: tuple[Together, ...]
    left_out: tuple[str, ...]
    ordinary_nats: float
    ordinary_tokens: int
    noise: float
    cost: CarriersCost

    @property
    def first(self) -> Together:
        """The set found by the first score that was asked for."""
        return self.sets[0]

    def by_family(self, of: Together) -> dict[str, Together]:
        """Return a set's effects for each family of cases, in the order in which they first come."""
        return {
            family: of.only([place for place, own in enumerate(self.families) if own == family])
            for family in dict.fromkeys(self.families)
        }

    def ranked(self, by: str = "first order") -> tuple[Head, ...]:
        """Return all heads by a score, the highest first; equal ones by their weight on the place.

        Raises:
            InputError: there is no such score, or it has no meaning for these cases.
        """
        return rank(self.heads, self.scores, by)

    def table(self, by: str = "first order", top: int | None = None) -> Answer:
        """Return the scores of heads as a table, by one of them.

        Args:
            by: which.
            top: list so many; all unless given.

        Raises:
            InputError: there is no such score; a top below 1.
        """
        order = self.ranked(by)
        most = len(order) if top is None else whole("top", top, least=1, way_out="Say how many heads you want.")
        rest = max(0, len(order) - most)
        place = {head: number for number, head in enumerate(self.heads)}
        units = {"first order": self.unit}
        return Answer(
            question=f"Which heads carry the answer from its place? by {by}, mean over {self.found_on} cases",
            columns=(
                Column("layer"),
                Column("head"),
                *(Column(name, units.get(name, "share"), meaning) for name, meaning in RANKINGS.items()),
            ),
            rows=tuple((*head, *(_cell(self.scores[name][place[head]]) for name in RANKINGS)) for head in order[:most]),
            exactness="\n".join(f"{name}: {said}" for name, said in EXACTNESS.items()),
            left_out=f"Not listed: {rest} head{'s' * (rest != 1)}.",
            remainder=float(rest),
        )

    def __str__(self) -> str:
        return str(self.table(self.first.by, len(self.first.heads)))

    def __repr__(self) -> str:
        own = self.first
        return (
            f"Carriers({self.model}, {len(own.heads)} of {len(self.heads)} heads by {own.by}: {self.unit} "
            f"{own.effect.value:.2f} lost, {own.others_effect.value:.2f} without as many others)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as what `json.dumps` takes; docs/carriers.schema.json describes it."""
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "fingerprint": self.fingerprint},
            "unit": self.unit,
            "how": self.how,
            "among": self.among,
            "seed": self.seed,
            "count": self.count,
            "scores": {
                name: {
                    "unit": self.unit if name == "first order" else "share",
                    "meaning": said,
                    "exact": EXACTNESS[name],
                }
                for name, said in RANKINGS.items()
            },
            "heads": [
                {
                    "layer": layer,
                    "head": head,
                    **{name: rounded(values[place]) for name, values in self.scores.items()},
                }
                for place, (layer, head) in enumerate(self.heads)
            ],
            "found_on": self.found_on,
            "cases": [
                {"family": family, "before": rounded(value), "answered": bool(answered)}
                for family, value, answered in zip(self.families, self.before, self.answered, strict=True)
            ],
            "sets": [
                {
                    **own.to_json(),
                    "families": [
                        {
                            "family": family,
                            "cases": len(part.lost),
                            "effect": part.effect.to_json(),
                            "others": part.others_effect.to_json(),
                            "size": rounded(part.others_size),
                            "ratio": part.ratio.to_json(),
                        }
                        for family, part in self.by_family(own).items()
                    ],
                }
                for own in self.sets
            ],
            "left_out": list(self.left_out),
            "ordinary": {"tokens": self.ordinary_tokens, "nats": rounded(self.ordinary_nats)},
            "measured": MEASURED,
            "noise": rounded(self.noise),
            "cost": {
                "forward": self.cost.forward,
                "backward": self.cost.backward,
                "seconds": rounded(self.cost.seconds),
            },
        }


def rank(heads: tuple[Head, ...], scores: Mapping[str, Numbers], by: Any) -> tuple[Head, ...]:
    """Return heads by a score, the highest first; equal ones by their weight on the place, then in their order.

    Raises:
        InputError: there is no such score, or it is no number for any head.
    """
    require_score(by)
    values = scores[by]
    if np.isnan(values).all():
        raise InputError(
            f"the score {by!r}",
            expected="one that has a meaning for these cases",
            given="none for any head",
            way_out="No token of any answer stands in its place: mark the words that are the answer."
            if by == "retrieval"
            else "The model is too small for a row of different tokens that come twice.",
            by=by,
        )
    order = np.lexsort((-scores["weight"], -np.nan_to_num(values, nan=-np.inf)))
    return tuple(heads[int(place)] for place in order)


def require_score(by: Any) -> None:
    """Refuse a score that there is not.

    Raises:
        InputError: it is none.
    """
    if not isinstance(by, str) or by not in RANKINGS:
        raise InputError(
            "the score to find heads by",
            expected=f"one of {', '.join(map(repr, RANKINGS))}",
            given=repr(by),
            way_out="They are told apart in docs/carriers.md.",
            by=by,
        )


def _over(found: float, size: float) -> float:
    """Return a ratio; over nothing at all it is infinite, with the sign of what was found, or NaN of nothing too."""
    return found / size if size > 0 else math.copysign(math.inf, found) if found else math.nan


def _cell(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _interval(low: float, high: float) -> list[float | None] | None:
    return None if np.isnan(low) else [rounded(low), rounded(high)]
