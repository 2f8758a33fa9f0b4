"""What passes cost (floor 5): frozen values, counted and measured, that views draw and programs read as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from wherefrom.model.config import Config
from wherefrom.model.cost import PAIR_WORK, Against, Pairs, PassCost, crossover

Timed: TypeAlias = Literal["attention", "feed_forward", "rest", "all"]

SCHEMA = "wherefrom.cost/1"
EXACTNESS = (
    "counted: exact, in whole multiply-adds (one product and one sum: 2 FLOPs) of the matrix products; norms, softmax, "
    "activations, rotations and biases are not counted"
)
UNITS = {
    "multiply_adds": "products of two numbers, each added to a sum; permitted: of the pairs that the mask permits; "
    "all: of all n x n pairs",
    "pair_share": "scores q . k and weighted sums of v, a share of all multiply-adds",
    "bytes": "bytes; dense: the n x n weights of all heads and layers, if they were formed",
    "seconds": "wall clock, of the run whose time is the median of the repeats",
    "rates": "multiply-adds a second, permitted pairs only",
    "crossovers": "tokens: from there on pair work takes more; null: it never does",
}


@dataclass(frozen=True)
class Measured:
    """How long one pass took: the run whose time is the median, so that its parts add up.

    Attributes:
        seconds: the whole pass, from token ids to the logits of the last position.
        attention_seconds: inside the attention function: scores, softmax and weighted sums of all calls, and with a
            window the making of the masks.
        feed_forward_seconds: inside the feed-forward modules.
        runs: seconds of every run, in order; one more, before them, was not timed.
    """

    seconds: float
    attention_seconds: float
    feed_forward_seconds: float
    runs: tuple[float, ...]

    @property
    def rest_seconds(self) -> float:
        """Everything else: projections, norms, residual sums, embedding, vocabulary head."""
        return self.seconds - self.attention_seconds - self.feed_forward_seconds

    def seconds_of(self, part: Timed) -> float:
        """Return the seconds of a part, or of all."""
        own = {"attention": self.attention_seconds, "feed_forward": self.feed_forward_seconds}
        return {**own, "rest": self.rest_seconds, "all": self.seconds}[part]

    def share(self, part: Timed) -> float:
        """Return what share of the time a part takes."""
        return self.seconds_of(part) / self.seconds


@dataclass(frozen=True)
class CostAt:
    """What a pass over one length costs.

    Attributes:
        counted: multiply-adds, parameters and bytes.
        recording_bytes: what a recording of the pass takes: `wherefrom.forecast_bytes`.
        measured: how long it took, if that was asked for.
    """

    counted: PassCost
    recording_bytes: int
    measured: Measured | None = None

    @property
    def tokens(self) -> int:
        """The length, n; of both texts where there is an encoder beside the decoder."""
        return self.counted.tokens

    def rate(self, part: Timed) -> float | None:
        """Return the multiply-adds a second that a part reached, permitted pairs only; None if it was not measured."""
        if self.measured is None:
            return None
        own = self.counted.multiply_adds
        done = {"attention": own(*PAIR_WORK), "feed_forward": own("feed_forward"), "all": own()}
        done["rest"] = done["all"] - done["attention"] - done["feed_forward"]
        return done[part] / self.measured.seconds_of(part)

    def to_json(self) -> dict[str, Any]:
        """Return the costs as what `json.dumps` takes."""
        counted, measured = self.counted, self.measured
        each: tuple[Pairs, ...] = ("permitted", "all")
        parts: tuple[Timed, ...] = ("attention", "feed_forward", "rest", "all")
        return {
            "tokens": counted.tokens,
            "source_tokens": counted.source_tokens,
            "scored_positions": counted.scored,
            "beyond_context": counted.beyond_context,
            "multiply_adds": {pairs: counted.multiply_adds(pairs=pairs) for pairs in each},
            "one_layer": {pairs: counted.one_layer(pairs=pairs) for pairs in each},
            "pair_share": {pairs: counted.share(*PAIR_WORK, pairs=pairs) for pairs in each},
            "feed_forward_share": {pairs: counted.share("feed_forward", pairs=pairs) for pairs in each},
            "parts": [asdict(work) for work in counted.work],
            "bytes": {
                "dense": counted.dense_bytes,
                "recording": self.recording_bytes,
                "cache": counted.cache_bytes,
            },
            "measured": None
            if measured is None
            else {
                "seconds": {part: measured.seconds_of(part) for part in parts},
                "shares": {part: measured.share(part) for part in parts},
                "rates": {part: self.rate(part) for part in parts},
                "runs": list(measured.runs),
            },
        }


@dataclass(frozen=True)
class Crossing:
    """Whether the measured time of attention overtakes another time within the lengths that were measured.

    Attributes:
        found: "between" two measured lengths, it is "below" or "above" at all of them, or it is "unclear": it changes
            sides more than once.
        between: the two lengths.
        estimate: the length at which the two are equal, if the logarithm of their ratio is a line in log n between
            the two.
    """

    found: Literal["between", "below", "above", "unclear"]
    between: tuple[int, int] | None = None
    estimate: int | None = None


@dataclass(frozen=True)
class Cost:
    """What forward passes of a model cost, a length each.

    Attributes:
        name: the model's name, or the architecture of a configuration.
        config: the model's shape.
        item_size: bytes of a number of weights, keys and values.
        lengths: the costs, in the order asked for.
        threads: how many threads torch computed with, where it was measured.
    """

    name: str
    config: Config = field(repr=False)
    item_size: int
    lengths: tuple[CostAt, ...]
    threads: int | None = None

    def crossover(self, against: Against = "feed_forward", pairs: Pairs = "permitted") -> int | None:
        """Return the n from which on pair work takes more multiply-adds, counted: `wherefrom.model.cost.crossover`."""
        return crossover(self.config, against, pairs=pairs)

    def crossing(self, against: Against = "feed_forward") -> Crossing | None:
        """Return where attention's time overtakes the feed-forward's, or all the rest's; None if it was not measured.

        Nothing is said beyond the lengths that were measured.
        """
        ratios = []
        for at in sorted(self.lengths, key=lambda at: at.tokens):
            if at.measured is not None:
                took = at.measured.attention_seconds
                other = at.measured.seconds - took if against != "feed_forward" else at.measured.feed_forward_seconds
                ratios.append((at.tokens, took / other))
        return _crossing(ratios) if ratios else None

    def to_json(self) -> dict[str, Any]:
        """Return the costs as what `json.dumps` takes, unrounded, with the units of every number."""
        compared: tuple[Against, ...] = ("feed_forward", "everything_else")
        each: tuple[Pairs, ...] = ("permitted", "all")
        first = self.lengths[0].counted
        measured = {against: self.crossing(against) for against in compared}
        return {
            "schema": SCHEMA,
            "model": self.name,
            "config": asdict(self.config),
            "parameters": first.parameters,
            "item_size": self.item_size,
            "weight_bytes": first.weight_bytes,
            "lengths": [at.to_json() for at in self.lengths],
            "crossovers": {against: {pairs: self.crossover(against, pairs) for pairs in each} for against in compared},
            "measured_crossovers": {name: None if found is None else asdict(found) for name, found in measured.items()},
            "threads": self.threads,
            "units": dict(UNITS),
            "exactness": EXACTNESS,
        }

    def __str__(self) -> str:
        header = ["tokens", "multiply-adds", "pair work", "feed-forward", "n x n bytes", "recording", "cache"]
        header += ["seconds", "in attention"] if self.threads is not None else []
        rows = [header, *(_row(at) for at in self.lengths)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([f"What a forward pass of {self.name} costs, permitted pairs only", *table, EXACTNESS])


def _crossing(ratios: Sequence[tuple[int, float]]) -> Crossing:
    """Return where a ratio passes 1, of (length, ratio) by increasing length."""
    above = [ratio >= 1 for _, ratio in ratios]
    if len(set(above)) == 1:
        return Crossing("above" if above[0] else "below")
    if above != sorted(above):
        return Crossing("unclear")
    place = above.index(True)
    (n, low), (m, high) = ratios[place - 1], ratios[place]
    part = -math.log(low) / (math.log(high) - math.log(low))
    return Crossing("between", (n, m), round(math.exp(math.log(n) + part * (math.log(m) - math.log(n)))))


def _row(at: CostAt) -> list[str]:
    """Return the cells of a length in the plain table."""
    counted = at.counted
    row = [f"{counted.tokens:,}", f"{counted.multiply_adds():,}"]
    row += [f"{100 * counted.share(*parts):.1f}%" for parts in (PAIR_WORK, ("feed_forward",))]
    row += [f"{size:,}" for size in (counted.dense_bytes, at.recording_bytes, counted.cache_bytes)]
    if at.measured is not None:
        row += [f"{at.measured.seconds:.3f}", f"{100 * at.measured.share('attention'):.1f}%"]
    return row
