"""Routes from a passage to an answer (floor 5): the frozen result of `wherefrom.trace_routes`, for views and programs.

Places stand in the order of the text: the passage first, then relays, the answer's rows last. Steps form a tree whose
root is the answer: each is read by the answer or by the place at which the step that it goes on with begins. What was
not measured is NaN or None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wherefrom.evidence.scored_answer import AnswerCost, ScoredAnswer, rounded
from wherefrom.passages import Passage
from wherefrom.questions.answer import Answer, Column

SCHEMA = "wherefrom.routes/1"
CANCELS = 3.0
"""A total effect is small beside a step whose effect is more than so many times its size."""
EXACTNESS = (
    "effects exact, within rounding: measured by path knock-outs\n"
    "prices estimate: first order in the change of each head's output, which itself is exact"
)


@dataclass(frozen=True)
class StepHead:
    """A head by which a step goes.

    Attributes:
        layer: its layer.
        head: its number.
        price: what the goal loses, to first order, if the step is changed in this head alone.
        effect: the same, measured; NaN where it was not run.
    """

    layer: int
    head: int
    price: float
    effect: float


@dataclass(frozen=True)
class Step:
    """A step of a tree of routes: a place that is read, by another or by the answer.

    Attributes:
        source: which place is read, its number.
        reader: which place reads it.
        then: the step that goes on from the reader, its number; None: the reader is the answer.
        price: what the goal loses, to first order, by the step's change.
        effect: what it loses, measured. Of a step from the passage that is the effect of the route that it begins; of a
            step from a relay, that of all that the passage sends there, on whatever way, and that goes on by the step.
        heads: the heads that do most of it, to first order, the largest first.
    """

    source: int
    reader: int
    then: int | None
    price: float
    effect: float
    heads: tuple[StepHead, ...] = ()


@dataclass(frozen=True)
class Route:
    """A chain of steps from the passage to the answer.

    Attributes:
        steps: their numbers, from the passage on.
        places: the numbers of the places on it, from the passage to the answer.
        effect: what the goal loses when it alone is knocked out, measured.
    """

    steps: tuple[int, ...]
    places: tuple[int, ...]
    effect: float


@dataclass(frozen=True, eq=False)
class RouteTrace(ScoredAnswer):
    """The strongest routes from a passage of a prompt to an answer.

    Attributes:
        found_by: "given", or "gate": the passage whose gate gradient is the largest.
        relays: what relays are: "word", "token" and so on.
        depth: the most steps that a route may have.
        most: the most routes that are shown.
        total: what the answer loses when no later token may read the passage; below 0 where the passage speaks against
            it, and a share, which is of that number, then says what speaks against it too.
        places: see the module's text.
        steps: those of the routes.
        routes: the strongest, by the size of their effect.
        joint: what the answer loses when all of them are knocked out together; NaN where there are none.
        kept: how much of `total` they bring back by themselves: the answer's value when they alone are left, less that
            under the total knock-out; NaN where there are none.
        named: what it loses when they are knocked out in the named heads of each step alone; NaN where it was not run.
        measured: how many routes were measured.
        largest_left: the largest size of the effect of a measured one that is not among `routes`.
        alone: whether each place's rows were run alone, and not whole texts.
        noise: differences of the value below this are rounding.
        cost: what was run.
    """

    found_by: str
    relays: str
    depth: int
    most: int
    total: float
    places: tuple[Passage, ...] = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)
    routes: tuple[Route, ...] = field(repr=False)
    joint: float
    kept: float
    named: float
    measured: int
    largest_left: float
    alone: bool
    noise: float
    cost: AnswerCost

    @property
    def passage(self) -> Passage:
        """Where the routes begin."""
        return self.places[0]

    @property
    def reached(self) -> bool:
        """Whether anything of the passage reached the answer, beyond the noise."""
        return abs(self.total) > self.noise

    @property
    def share(self) -> float | None:
        """The share of the total effect that the routes explain together, `joint` over `total`; see `of_total`."""
        return self.of_total(self.joint)

    @property
    def cancels(self) -> bool:
        """Whether the total effect is small beside what single steps do, which cancel: shares of it say little."""
        return max((abs(step.effect) for step in self.steps), default=0.0) > CANCELS * abs(self.total)

    @property
    def against(self) -> bool:
        """Whether the passage speaks against the answer, which gains when nothing may read it."""
        return self.reached and self.total < 0

    def of_total(self, effect: float) -> float | None:
        """Return an effect as a share of the total one.

        None where that is noise or small beside what single steps do, or where the effect was not measured.
        """
        return effect / self.total if self.reached and not (self.cancels or math.isnan(effect)) else None

    def tree(self) -> Iterator[tuple[int, int]]:
        """Yield the steps depth first, the largest effect first: how many steps away from the answer, and which."""
        readers: dict[int | None, list[int]] = {}
        for number in sorted(range(len(self.steps)), key=lambda number: -abs(self.steps[number].effect)):
            readers.setdefault(self.steps[number].then, []).append(number)

        def below(then: int | None, deep: int) -> Iterator[tuple[int, int]]:
            for number in readers.get(then, ()):
                yield deep, number
                yield from below(number, deep + 1)

        yield from below(None, 0)

    def table(self) -> Answer:
        """Return the routes as a table."""
        of_total = "share of the total effect"
        return Answer(
            question=f"On which routes did {self.passage.label!r} reach the answer {self.answer!r}? {self.unit} "
            f"{self.value:.3f}, {self.total:.3f} of it by the passage",
            columns=(
                Column("route", "", "its places"),
                Column("effect", self.unit, "what the answer loses when it alone is knocked out"),
                Column("share", of_total, "its effect over the total one"),
            ),
            rows=tuple((self.written_out(route), route.effect, self.of_total(route.effect)) for route in self.routes),
            exactness=EXACTNESS,
            left_out=self.explained(),
            remainder=self.total - self.joint if self.routes else self.total,
        )

    def written_out(self, route: Route) -> str:
        """Return a route as a line of its places."""
        relays = [f"{self.places[place].start} {self.places[place].label}" for place in route.places[1:-1]]
        return " > ".join(["passage", *relays, "answer"])

    def explained(self) -> str:
        """Return what the routes explain, as a sentence."""
        if not self.reached:
            return f"Nothing of the passage reached the answer beyond the noise ({self.noise:.0e})."
        if not self.routes:
            return f"No route carries a share worth naming; measured: {self.measured}."
        together = f"In all {self.joint:.4f} of {self.total:.4f}"
        if self.share is None:
            return f"{together}, which is small beside what single steps do, and these cancel: no share is told."
        against = "The passage speaks against the answer, and shares are of that. " * self.against
        return f"{against}{together}, a share of {self.share:.2f}."

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        share = "no share" if self.share is None else f"{self.share:.0%} of {self.total:.2f} {self.unit}"
        routes = f"{len(self.routes)} route{'s' * (len(self.routes) != 1)}"
        return f"RouteTrace({self.passage.label!r} to {self.answer!r}, {routes}, {share})"

    def to_json(self) -> dict[str, Any]:
        """Return the routes as a graph, as what `json.dumps` takes; docs/routes.schema.json describes it."""
        last = len(self.places) - 1
        return {
            "schema": SCHEMA,
            **self.scored_json(),
            "found_by": self.found_by,
            "relays": self.relays,
            "depth": self.depth,
            "most": self.most,
            "places": [self._place(number, last) for number in range(len(self.places))],
            "steps": [
                {
                    "source": step.source,
                    "reader": step.reader,
                    "then": step.then,
                    "price": rounded(step.price),
                    "effect": rounded(step.effect),
                    "heads": [
                        {
                            "layer": own.layer,
                            "head": own.head,
                            "price": rounded(own.price),
                            "effect": rounded(own.effect),
                        }
                        for own in step.heads
                    ],
                }
                for step in self.steps
            ],
            "routes": [
                {
                    "steps": list(route.steps),
                    "places": list(route.places),
                    "effect": rounded(route.effect),
                    "share": rounded(self.of_total(route.effect)),
                }
                for route in self.routes
            ],
            "total": rounded(self.total),
            "joint": rounded(self.joint),
            "share": rounded(self.share),
            "kept": rounded(self.kept),
            "named": rounded(self.named),
            "measured": self.measured,
            "largest_left": rounded(self.largest_left),
            "noise": rounded(self.noise),
            "cost": self.cost.to_json(),
        }

    def _place(self, number: int, last: int) -> dict[str, Any]:
        kind = "passage" if number == 0 else "answer" if number == last else "relay"
        return {"kind": kind, **self.place_json(number, self.places[number])}
