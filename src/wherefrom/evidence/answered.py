"""What an answer drew on (floor 5): the frozen result of `wherefrom.trace_answer`, that views draw and programs read.

Every lens has one number for each passage, positive where the passage speaks for the answer. What was not measured is
None or NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.evidence.scored_answer import AnswerCost, ScoredAnswer, rounded
from wherefrom.passages import Passage
from wherefrom.questions.answer import Answer, Column

if TYPE_CHECKING:
    from wherefrom.evidence.ablations import Ablations
    from wherefrom.evidence.surrogate import Surrogate

Numbers = NDArray[np.float64]
SCHEMA = "wherefrom.answer/1"
MATTERS = 0.1
"""A passage mattered if its effect is at least this share of the largest one's, and beyond the noise."""
ENOUGH = 8
"""Measured runs from which on they correct the estimate of single passages and say how well a lens ranks them; fewer
only give the estimate its scale."""
CLAIMS = 0.5
"""Weights point at a passage that has at least this share of the largest passage's weight."""


@dataclass(frozen=True)
class Lens:
    """One way of saying how much each passage did for the answer.

    Attributes:
        name: such as "weight".
        unit: of its numbers.
        meaning: what they are.
        exactness: how exact they are.
        values: [P].
    """

    name: str
    unit: str
    meaning: str
    exactness: str
    values: Numbers


@dataclass(frozen=True)
class HeadPrice:
    """What a passage was worth through one head, by the attribution lens: the sum over the edges of that head.

    Attributes:
        layer: from 0.
        head: from 0.
        passage: its number.
        price: in the unit of the answer's value.
    """

    layer: int
    head: int
    passage: int
    price: float


@dataclass(frozen=True)
class Agreement:
    """How well a lens ranked what was measured on this very prompt.

    Attributes:
        lens: its name.
        correlation: Spearman's, between what the lens adds up to and what was measured; NaN where it has no meaning.
        runs: over how many measured runs.
    """

    lens: str
    correlation: float
    runs: int


@dataclass(frozen=True, eq=False)
class AnswerTrace(ScoredAnswer):
    """What an answer drew on: each passage of the prompt under several lenses, and what measuring showed.

    Attributes:
        passages: of the prompt, in order.
        by: what they are.
        lenses: by name, of "weight", "moved", "attribution", "closed form", "gate" and "direct" those that were run.
        absent: why each of the others is not there.
        heads: of each passage in order its strongest heads by the attribution lens, the strongest first; empty where
            no edges were priced.
        where: in which layers and heads edges were priced, gated and cut, in words.
        measured: [P], what the answer's value lost when a passage alone was taken away; NaN where that was not run.
        evidence: [P], an estimate of each passage's effect, whatever else is there or missing; see `estimate`.
        how: how passages were taken away: "deletion", "total" or "direct".
        ablations: the measured runs, those with several passages away included; None where nothing was measured.
        fitted: the fit of those runs; None likewise.
        agreements: of the lenses with those runs.
        cost: what was run.
    """

    passages: tuple[Passage, ...]
    by: str
    lenses: Mapping[str, Lens]
    absent: Mapping[str, str]
    heads: tuple[HeadPrice, ...]
    where: str
    measured: Numbers = field(repr=False)
    evidence: Numbers = field(repr=False)
    how: str
    cost: AnswerCost
    ablations: Ablations | None = None
    fitted: Surrogate | None = None
    agreements: tuple[Agreement, ...] = ()

    @property
    def enough(self) -> int:
        """From how many measured runs on they say how well a lens ranks them."""
        return ENOUGH

    @property
    def runs(self) -> int:
        """How many runs were measured."""
        return 0 if self.ablations is None else len(self.ablations.values)

    @property
    def noise(self) -> float:
        """Differences of the value below this are rounding; NaN where nothing was measured."""
        return float("nan") if self.ablations is None else self.ablations.noise

    @property
    def estimate(self) -> str:
        """What `evidence` is, in words: the gate's numbers, the same to the scale of few runs, or a fit of many."""
        if self.runs >= ENOUGH:
            return "a fit of all runs, from the gate's numbers on"
        scaled = self.fitted is not None and self.fitted.scale > 0
        return "the gate's number, to the scale of the runs" if scaled else "the gate's number, in its own unit"

    @property
    def known(self) -> NDArray[np.bool_]:
        """[P]: which passages were taken away alone, and so measured."""
        return ~np.isnan(self.measured)

    @property
    def order(self) -> NDArray[np.int64]:
        """The passages: the measured ones by the size of their effect, then the others by that of the estimate."""
        return np.lexsort((-np.abs(self.best), ~self.known))

    @property
    def best(self) -> Numbers:
        """[P]: what was measured where it was, the estimate elsewhere."""
        return np.where(self.known, self.measured, self.evidence)

    @property
    def mattered(self) -> tuple[int, ...]:
        """The passages measured to matter, the largest first: a tenth of the largest effect at least, beyond noise."""
        return self._large(self.known)

    @property
    def suspected(self) -> tuple[int, ...]:
        """Those that were not measured and whose estimate says so, likewise."""
        return self._large(~self.known)

    @property
    def disputed(self) -> tuple[int, ...]:
        """Measured passages of which the fit of all runs says what they alone do not, the largest estimate first.

        With others away too they mattered, a tenth of the largest at least, and alone they did not or spoke for the
        other side: another passage, such as one that says the same, stands in for them.
        """
        if self.runs < ENOUGH:
            return ()
        least = MATTERS * float(np.abs([*self.best, *self.evidence]).max(initial=0.0))
        large = self.known & (np.abs(self.evidence) >= max(least, float(np.nan_to_num(self.noise))))
        apart = self.evidence * self.measured <= 0
        still = np.abs(self.measured) < least
        found = np.flatnonzero(large & (apart | still) & (np.abs(self.evidence - self.measured) >= 2 * least))
        return tuple(sorted(map(int, found), key=lambda place: -abs(float(self.evidence[place]))))

    def _large(self, among: NDArray[np.bool_]) -> tuple[int, ...]:
        size = np.abs(self.best)
        least = max(MATTERS * float(size.max(initial=0.0)), float(np.nan_to_num(self.noise)))
        return tuple(int(p) for p in np.argsort(-size, kind="stable") if among[p] and size[p] >= least and size[p] > 0)

    @property
    def misleading(self) -> tuple[int, ...]:
        """Passages that weights point at and that were measured not to matter, the heaviest first."""
        weights = self.lenses["weight"].values
        heavy = weights >= CLAIMS * float(weights.max(initial=0.0))
        still = heavy & self.known
        found = [int(place) for place in np.flatnonzero(still) if int(place) not in self.mattered]
        return tuple(sorted(found, key=lambda place: -float(weights[place])))

    def sources(self, top: int | None = None) -> Answer:
        """Return the passages as a table, the measured ones first.

        Args:
            top: list so many, in `order`; the others are summed. All unless given.
        """
        order = [int(place) for place in self.order]
        listed = order if top is None else order[:top]
        rest = order[len(listed) :]
        lenses = list(self.lenses.values())
        remainder = float(np.abs(self.evidence[rest]).sum())
        return Answer(
            question=f"What did the answer {self.answer!r} draw on? {self.unit} {self.value:.3f}, passages: {self.by}",
            columns=(
                Column("passage", "", "its number, from 0"),
                Column("text", "", "its beginning"),
                *(Column(lens.name, lens.unit, lens.meaning) for lens in lenses),
                Column("measured", self.unit, f"what the answer loses without it ({self.how}); - was not run"),
                Column("evidence", self.unit, f"estimate: {self.estimate}"),
            ),
            rows=tuple(
                (
                    place,
                    self.passages[place].label,
                    *(float(lens.values[place]) for lens in lenses),
                    None if np.isnan(self.measured[place]) else float(self.measured[place]),
                    float(self.evidence[place]),
                )
                for place in listed
            ),
            exactness="\n".join(
                (
                    *(f"{lens.name}: {lens.exactness}" for lens in lenses),
                    *(() if self.ablations is None else (f"measured: {self.ablations.exactness}",)),
                    f"evidence: estimate: {self.estimate}",
                )
            ),
            left_out=f"Not listed: {len(rest)} passage{'s' * (len(rest) != 1)} with {remainder:.4f} of evidence "
            "in all, signs apart."
            if rest
            else "Nothing is left out.",
            remainder=remainder,
        )

    def __str__(self) -> str:
        return str(self.sources())

    def __repr__(self) -> str:
        return (
            f"AnswerTrace({self.answer!r}, {len(self.passages)} passages by {self.by}, {self.cost.passes:.1f} passes)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the trace as what `json.dumps` takes; docs/answer.schema.json describes it."""
        return {
            "schema": SCHEMA,
            **self.scored_json(),
            "by": self.by,
            "passages": [self._passage_json(place) for place in range(len(self.passages))],
            "lenses": {
                lens.name: {"unit": lens.unit, "meaning": lens.meaning, "exactness": lens.exactness}
                for lens in self.lenses.values()
            },
            "absent": dict(self.absent),
            "heads": [{**vars(one), "price": rounded(one.price)} for one in self.heads],
            "where": self.where,
            "how": self.how,
            "estimate": self.estimate,
            "runs": self.runs,
            "mattered": list(self.mattered),
            "suspected": list(self.suspected),
            "misleading": list(self.misleading),
            "disputed": list(self.disputed),
            "agreements": [
                {"lens": own.lens, "correlation": rounded(own.correlation), "runs": own.runs} for own in self.agreements
            ],
            "noise": rounded(self.noise),
            "cost": self.cost.to_json(),
        }

    def _passage_json(self, place: int) -> dict[str, Any]:
        return {
            **self.place_json(place, self.passages[place]),
            **{lens.name: rounded(lens.values[place]) for lens in self.lenses.values()},
            "measured": rounded(self.measured[place]),
            "evidence": rounded(self.evidence[place]),
        }


def spearman(x: Sequence[float] | Numbers, y: Sequence[float] | Numbers) -> float:
    """Return Spearman's rank correlation, ties by their mean rank; NaN where one of them is constant, or below 3."""
    ranks = [_ranks(np.asarray(own, np.float64)) for own in (x, y)]
    if len(ranks[0]) < 3 or any(np.ptp(own) == 0 for own in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Numbers) -> Numbers:
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        ranks[same] = ranks[same].mean()
    return ranks
