"""Measured effects of passages (floor 5): what a goal is worth when some of them are taken away from a text.

There are four meanings, and every result says which one it is of:

"deletion": the passages' tokens are taken out and the model runs afresh. What stands behind them moves up, so it is
another text, and no cut.
"total": every later destination outside a passage is kept from reading it; inside it reading goes on.
"direct": only the rows of what is asked about, and of the answer's tokens between them, are kept from reading it;
everything before them is as it was in the whole text.
"cut": any edges that are named, as `wherefrom.Cut`s: those and no others are removed before softmax.

Total and direct ones, and cuts, may be made in some layers and heads alone. Where it is exact, what stands before a
change is not run again (`wherefrom.evidence.prefix`); otherwise whole texts are. Each run is counted in forward passes'
worth: the tokens that it ran, over the tokens of the whole text. Takes passes from `running`, what is asked about from
`goal`, removed edges from `removal`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wherefrom.checks import as_index, check_index, check_items, check_kind, check_number
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.choices import subsets as subsets
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.noise import measured_noise, noise_tokens, propagated
from wherefrom.evidence.noise import noise_floor as noise_floor
from wherefrom.evidence.prefix import Piece, Prefix, agree, own_keys
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.removal import AloneWithout, Cuts, Edges, Lost, Removal, Without
from wherefrom.evidence.rerun import Cut
from wherefrom.evidence.running import Runner
from wherefrom.evidence.where import Where

How: TypeAlias = Literal["deletion", "total", "direct"]
EdgeSet: TypeAlias = Cut | Sequence[Cut]
"""Edges that are removed together: a cut, or several."""
Heads: TypeAlias = Sequence[int] | Sequence[tuple[int, int]]
"""Numbers of heads, or pairs (layer, head)."""
Bools: TypeAlias = NDArray[np.bool_]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (runs done, runs in all) after each batch."""

TOKENS_AT_ONCE = 256
"""Tokens that are run side by side: of short texts several, whose matrix products are then twice as fast."""
MAP_AT_ONCE = 2**24
"""Entries of a map of rows by sources that a batch of rows run alone may have."""
ROUNDING = 1e-5
"""Nats that float32 rounding makes of a forward pass."""
WIDE = ("float32", "float64")
"""Number formats whose rounding is known without a measurement."""
EXACT = {
    "deletion": "exact: measured by running the text without the passages; what stands behind them moves up",
    "total": "exact: measured by running the text again with every later reading of the passages cut",
    "direct": "exact: measured by running the answer's rows again without reading the passages, all before as it was",
    "cut": "exact: measured by running the text again with the edges removed before softmax",
}
OTHER_WAYS = "what tokens exchange by other ways than attention (recurrences, convolutions) is not cut"


class Passages(Protocol):
    """What is asked of a passage: a run of neighbouring tokens, start to stop - 1."""

    @property
    def start(self) -> int:
        """Its first position."""

    @property
    def stop(self) -> int:
        """The position behind its last."""

    @property
    def label(self) -> str:
        """What a person sees of it."""


@dataclass(frozen=True, eq=False)
class Ablations:
    """Measured values of a goal with passages taken away.

    Attributes:
        kept: bool [n, P], the passages that each run kept; of cuts, the sets of edges.
        values: float64 [n], the goal's value in each.
        whole: its value with nothing taken away.
        how: what taking away means, see the top of the module.
        where: in which layers and heads, in words; of cuts each says it itself.
        unit: of the values.
        cost: forward passes' worth of all that this call ran, the whole text and checks included: tokens run, over the
            tokens of the whole text.
        alone: in how many runs only the rows behind the change were run.
        noise: the size below which a difference is rounding: of the model's number format, and of rows that are run
            alone.
        seconds: wall clock.
        exactness: how exact the values are, in a sentence.
        leaks: whether tokens exchange information by other ways than attention, which such a cut leaves as they are.
    """

    kept: Bools
    values: NDArray[np.float64]
    whole: float
    how: How | Literal["cut"]
    where: str
    unit: str
    cost: float
    alone: int
    noise: float
    seconds: float
    exactness: str
    leaks: bool = False

    @property
    def caveat(self) -> str:
        """What such a cut leaves as it is, in words; nothing where it leaves nothing."""
        return OTHER_WAYS if self.leaks else ""

    @property
    def effects(self) -> NDArray[np.float64]:
        """The goal's value in the whole text minus that of each run, [n]: positive where what was taken away helped."""
        return self.whole - self.values

    @property
    def within_noise(self) -> Bools:
        """Which effects are too small to be told from rounding, [n]."""
        return np.abs(self.effects) < self.noise

    def __repr__(self) -> str:
        runs = f"{len(self.values)} runs of {self.kept.shape[1]} {'sets of edges' if self.how == 'cut' else 'passages'}"
        return f"Ablations({self.how}, {runs}, {self.cost:.2f} forward passes' worth)"


def ablate(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passages],
    kept: ArrayLike,
    *,
    how: How = "deletion",
    layers: Sequence[int] | None = None,
    heads: Heads | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Ablations:
    """Return the goal's values when each of some choices of passages is kept.

    Args:
        runner: runs the model: `runner_of(model)`.
        goal: what is asked about.
        passages: of the prompt, without overlap.
        kept: bool [n, P]; what is in no passage is always kept.
        how: what taking away means.
        layers: where readings are cut, of "total" and "direct"; all unless given.
        heads: likewise, of each of these layers; or pairs (layer, head), instead of layers.
        budget: forward passes' worth that may be run, the whole text's included, so 1 at least; later choices than it
            pays for are left out, and the result's `kept` holds those that were run.
        progress: told after each batch.

    Raises:
        InputError: no passages, one in the answer, choices of another shape, a layer or head that is not there, a
            budget too small for a single run, before noise is measured; nothing left of the prompt, or of what a
            destination reads; infinite log-odds, in a sentence that names the passages taken away.
        RecordingError: a cut that took no effect, or numbers that are not finite.
    """
    start = time.perf_counter()
    allowed = _allowed(budget)
    measurer = Ablator(runner, goal, passages)
    left = None if allowed is None else allowed - measurer.cost
    found = measurer.measure(kept, how=how, layers=layers, heads=heads, budget=left, progress=progress)
    return replace(found, cost=measurer.cost, seconds=time.perf_counter() - start)


def leave_one_out(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passages],
    *,
    how: How = "deletion",
    layers: Sequence[int] | None = None,
    heads: Heads | None = None,
    progress: Progress | None = None,
) -> Ablations:
    """Return the goal's values when each passage in turn is taken away; `effects` [P] are then the passages' own.

    The arguments and errors are those of `ablate`.
    """
    checked = check_items("the passages", passages, expected="passages", way_out="Make them: passages(tokens).")
    each = ~np.eye(len(checked), dtype=np.bool_)
    return ablate(runner, goal, checked, each, how=how, layers=layers, heads=heads, progress=progress)


def knock_out_edges(
    runner: Runner,
    goal: Goal,
    cuts: Sequence[EdgeSet],
    *,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Ablations:
    """Return the goal's values when each of some sets of edges in turn is removed; `effects` are then the sets' own.

    Args:
        runner: runs the model: `runner_of(model)`.
        goal: what is asked about.
        cuts: sets of edges, each a `wherefrom.Cut` or several that are made together: such as
            Cut(None, (40,), Scope((12,), (3,))), by which head 3 of layer 12 reads position 40 nowhere. None are all
            destinations, or sources.
        budget: as `ablate`.
        progress: told after each batch.

    Raises:
        InputError: no cuts, one of a position, layer or head that is not there, one of another kind of attention than
            the decoder's own; one that leaves a destination nothing to read, which is named; a budget too small for a
            single run; infinite log-odds.
        RecordingError: a cut that took no effect, or numbers that are not finite.
    """
    start = time.perf_counter()
    allowed = _allowed(budget)
    measurer = Ablator(runner, goal)
    left = None if allowed is None else allowed - measurer.cost
    found = measurer.cut(cuts, budget=left, progress=progress)
    return replace(found, cost=measurer.cost, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class _Run:
    """How one choice is run.

    Attributes:
        place: of the choice.
        ids: the tokens that are run.
        rows: places among them whose logits are needed.
        positions: where they stand, if they are run alone behind recorded columns; None: a whole text.
        before: how many recorded columns they read.
        maps: how many maps of rows by recorded columns it takes: one, or one a head.
        absent: whether the rows that are taken away are not run at all.
    """

    place: int
    ids: tuple[int, ...]
    rows: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    before: int = 0
    maps: int = 1
    absent: bool = False

    @property
    def batch(self) -> tuple[Any, ...]:
        """Runs that agree in this can be run side by side."""
        return len(self.ids), self.rows, self.positions, self.before, self.absent


class _Taken(NamedTuple):
    """What each of some runs takes away.

    Attributes:
        how: what that means.
        where: in which layers and heads, in words.
        kept: bool [n, P].
        runs: how each is run; None where nothing is taken away.
        removal: gives what some runs lose, by their places.
        named: says in words what a run takes away.
    """

    how: How | Literal["cut"]
    where: str
    kept: Bools
    runs: list[_Run | None]
    removal: Callable[[list[int]], Edges]
    named: Callable[[int], str]


class Ablator:
    """A text parts of which can be taken away; the whole of it is run once, when this is made.

    Args:
        runner: runs the model.
        goal: what is asked about.
        passages: of the prompt, without overlap; None: there are none, but edges can be cut.
        priced: the prices of the same text and rows, where they are known: it is then not run again.

    Attributes:
        whole: the goal's value, nothing taken away.
        cost: forward passes' worth of all that was run so far.

    Raises:
        InputError: no passages, an empty one, one that overlaps another or reaches beyond the prompt; prices of
            another text; infinite log-odds.
        RecordingError: numbers that are not finite.
    """

    def __init__(
        self,
        runner: Runner,
        goal: Goal,
        passages: Sequence[Passages] | None = None,
        *,
        priced: Priced | None = None,
    ) -> None:
        self._runner, self._goal = runner, goal
        self.passages = () if passages is None else _checked(goal, passages)
        _require_same(goal, priced)
        self._length = len(goal.ids)
        index = np.full(self._length, -1)
        for number, passage in enumerate(self.passages):
            index[passage.start : passage.stop] = number
        self._index = index
        self._tokens = self._length if priced is None else 0
        with torch.no_grad():
            self._prefix = Prefix(runner, goal.ids, goal.rows, priced=priced)
            self.whole = float(goal.value(self._prefix.logits)[0])
        _require_finite(self.whole)
        self._alone: bool | None = None
        self._apart = 0.0  # by how much the value of rows run alone differs from that of the whole text
        self._noise: float | None = None

    @property
    def cost(self) -> float:
        """Forward passes' worth of all that was run so far."""
        return self._tokens / self._length

    @property
    def noise(self) -> float:
        """The size below which a difference is rounding: `ROUNDING` at least; in half precision as `noise_floor`.

        Where rows are run alone it is twice what their own value, nothing taken away, differs from the whole text's, or
        more: runs of them are compared with that.
        """
        if self._noise is None:
            self._noise = 2 * propagated(self._goal, self._prefix.logits, self._runner.format)
            if self._runner.format in WIDE:
                self._noise = max(self._noise, ROUNDING)
            else:
                found, tokens = measured_noise(self._runner, self._goal)
                self._noise, self._tokens = max(self._noise, 2 * found), self._tokens + tokens
        return max(self._noise, 2 * self._apart)

    @property
    def upfront(self) -> float:
        """Forward passes' worth that the first measurement costs before its runs: a check, in half precision noise."""
        rows = self._goal.rows
        check = rows[-1] + 1 - rows[0] if self._alone is None and self._prefix.reusable else 0
        return check / self._length + self._noise_ahead

    @property
    def _noise_ahead(self) -> float:
        """Forward passes' worth of the noise that is still to be measured."""
        known = self._noise is not None or self._runner.format in WIDE
        return 0.0 if known else noise_tokens(self._runner, self._goal) / self._length

    def costs(
        self,
        kept: ArrayLike,
        *,
        how: How = "deletion",
        layers: Sequence[int] | None = None,
        heads: Heads | None = None,
    ) -> NDArray[np.float64]:
        """Return the forward passes' worth that each choice will cost, [n]; arguments and errors as `measure`."""
        runs = self._of_passages(kept, how, layers, heads).runs
        return np.array([0 if run is None else len(run.ids) for run in runs], dtype=np.float64) / self._length

    def measure(
        self,
        kept: ArrayLike,
        *,
        how: How = "deletion",
        layers: Sequence[int] | None = None,
        heads: Heads | None = None,
        budget: float | None = None,
        progress: Progress | None = None,
    ) -> Ablations:
        """Return the goal's values when each choice of passages is kept; see `ablate` for arguments and errors.

        The budget, and the result's cost, are of these runs, without what was run before.
        """
        return self._measured(lambda: self._of_passages(kept, how, layers, heads), budget, progress)

    def cut(
        self, cuts: Sequence[EdgeSet], *, budget: float | None = None, progress: Progress | None = None
    ) -> Ablations:
        """Return the goal's values when each set of edges in turn is removed; see `knock_out_edges`.

        The budget, and the result's cost, are of these runs, without what was run before.
        """
        return self._measured(lambda: self._of_cuts(cuts), budget, progress)

    def _measured(self, planned: Callable[[], _Taken], budget: float | None, progress: Progress | None) -> Ablations:
        start, tokens = time.perf_counter(), self._tokens
        budget, taken = _allowed(budget, least=0), planned()
        runs = taken.runs
        if budget is not None:
            runs = runs[: self._affordable(runs, budget - (self._tokens - tokens) / self._length)]
        noise = self.noise
        values = np.full(len(runs), self.whole)
        done, proven = sum(run is None for run in runs), set[str]()
        with torch.no_grad():
            for batch in self._batches(runs):
                places = [run.place for run in batch]
                removal = taken.removal(places)
                logits = self._logits(batch, taken.how, removal, set() if removal.apart else proven)
                for place, own in zip(places, logits, strict=True):
                    values[place] = self._value(own, taken.kept[place], taken.how, taken.named(place))
                self._tokens += sum(len(run.ids) for run in batch)
                done += len(batch)
                if progress is not None:
                    progress(done, len(runs))
        leaks = taken.how in ("total", "direct") and self._runner.mixes
        return Ablations(
            kept=taken.kept[: len(runs)],
            values=values,
            whole=self.whole,
            how=taken.how,
            where=taken.where,
            unit=self._goal.unit,
            cost=(self._tokens - tokens) / self._length,
            alone=sum(run is not None and run.positions is not None for run in runs),
            noise=noise,
            seconds=time.perf_counter() - start,
            exactness=_exactness(taken.how, self._runner.format, noise) + f"; {OTHER_WAYS}" * leaks,
            leaks=leaks,
        )

    # -- how each choice is run

    def _of_passages(self, kept: ArrayLike, how: How, layers: Any, heads: Any) -> _Taken:
        """Return what choices of passages take away."""
        require_cut(how, layers, heads)
        choices, where = _choices(kept, len(self.passages)), Where.of(layers, heads, self._prefix.sizes)
        plan = {"deletion": self._deletion, "total": self._total, "direct": self._direct}[how]
        runs = [None if choice.all() else plan(place, choice, where) for place, choice in enumerate(choices)]
        index, first = torch.from_numpy(self._index), self._goal.rows[0] if how == "direct" else 0

        def removal(places: list[int]) -> Removal:
            return Removal(index, torch.from_numpy(~choices[places]), first, where)

        return _Taken(how, str(where), choices, runs, removal, lambda place: self._named(choices[place]))

    def _of_cuts(self, cuts: Sequence[EdgeSet]) -> _Taken:
        """Return what sets of edges take away."""
        how = {"expected": "sets of edges, each a Cut or several", "way_out": "Write [wherefrom.Cut((13,), (1,))]."}
        sets = [self._lost(one) for one in check_items("the cuts", cuts, **how)]
        if not sets:
            raise InputError("the cuts", **{**how, "expected": "at least one"}, given="none")
        runs = [self._cut(place, lost) for place, lost in enumerate(sets)]
        kept = ~np.eye(len(sets), dtype=np.bool_)
        where = "the layers and heads of each cut"

        def removal(places: list[int]) -> Cuts:
            return Cuts(tuple(sets[place] for place in places))

        return _Taken("cut", where, kept, runs, removal, lambda place: f"set {place}")

    def _cut(self, place: int, lost: tuple[Lost, ...]) -> _Run | None:
        goal, stop = self._goal, self._goal.rows[-1] + 1
        first = min((one.first for one in lost if one.first is not None), default=stop)
        if first >= stop:  # nothing is read less by what the goal feels
            return None
        return self._from(place, min(first, goal.rows[0]), self._prefix.heads)

    def _from(self, place: int, start: int, maps: int) -> _Run:
        """Return a run of all rows from one on, alone where that is exact and takes maps of a bearable size."""
        goal, stop = self._goal, self._goal.rows[-1] + 1
        if start == 0 or maps * (stop - start) * start > MAP_AT_ONCE or not self._runs_alone():
            return _Run(place, goal.ids, goal.rows)
        rows = tuple(row - start for row in goal.rows)
        return _Run(place, goal.ids[start:stop], rows, tuple(range(start, stop)), start, maps)

    def _deletion(self, place: int, choice: Bools, where: Where) -> _Run:
        goal, outside = self._goal, self._outside(choice)
        left = outside[outside < goal.prompt]
        ids, rows = goal.without(left.tolist())
        if rows[0] < 0:
            raise InputError(
                "a deletion",
                expected="something left of the prompt, whose last row predicts",
                given=f"all of it taken out ({self._named(choice)})",
                way_out="Take fewer passages away at a time, or leave some of the prompt in no passage.",
                kept=choice,
            )
        start = min(int(np.flatnonzero(~self._stays(choice))[0]), rows[0])
        if start == 0 or not self._runs_alone():
            return _Run(place, ids, rows)
        stop = rows[-1] + 1
        return _Run(place, ids[start:stop], tuple(row - start for row in rows), tuple(range(start, stop)), start)

    def _total(self, place: int, choice: Bools, where: Where) -> _Run:
        goal = self._goal
        row_inside = not self._stays(choice)[goal.rows[0]]
        start = int(np.flatnonzero(~self._stays(choice))[0])
        if not where.everywhere or row_inside:
            return self._from(place, start, 1 if where.everywhere else self._prefix.heads)
        if not self._runs_alone():
            return _Run(place, goal.ids, goal.rows)
        positions = [int(i) for i in self._outside(choice) if start <= i <= goal.rows[-1]]
        rows = tuple(positions.index(row) for row in goal.rows)
        return _Run(place, tuple(goal.ids[i] for i in positions), rows, tuple(positions), start, absent=True)

    def _direct(self, place: int, choice: Bools, where: Where) -> _Run:
        return self._from(place, self._goal.rows[0], 1 if where.everywhere else self._prefix.heads)

    def _stays(self, choice: Bools) -> Bools:
        """Return which positions are kept, bool [T]."""
        return np.asarray(np.append(choice, True)[self._index], dtype=np.bool_)

    def _outside(self, choice: Bools) -> NDArray[np.intp]:
        return np.flatnonzero(self._stays(choice))

    def _runs_alone(self) -> bool:
        """Whether the model, the goal's rows run alone, gives what the whole text gave; found out once."""
        if self._alone is None:
            self._alone = self._prefix.reusable and self._agrees()
        return self._alone

    def _agrees(self) -> bool:
        first, stop = self._goal.rows[0], self._goal.rows[-1] + 1
        positions = torch.arange(first, stop)
        ids = torch.tensor([self._goal.ids[first:stop]])
        rows = [row - first for row in self._goal.rows]
        self._tokens += stop - first
        alone, same = AloneWithout(None, positions, first), []

        def attend(piece: Piece) -> Tensor:
            same.append(own_keys(piece, positions.tolist()))
            return alone(piece)

        try:
            with torch.no_grad():
                logits = self._prefix.run(ids, positions.tolist(), rows, attend)
            if not all(same) or not agree(logits, self._prefix.logits):
                return False
            self._apart = abs(float(self._goal.value(logits)[0]) - self.whole)
        except Exception:  # whatever a model makes of a few tokens: whole texts are run then
            return False
        return True

    def _affordable(self, runs: Sequence[_Run | None], budget: float) -> int:
        """Return how many runs, from the first on, a budget pays for, once the noise is measured."""
        costs = np.cumsum([0 if run is None else len(run.ids) for run in runs]) / self._length
        first, ahead, left = float(costs[0]) if len(runs) else 0.0, self._noise_ahead, budget + 1e-9
        if left < ahead + first:
            before = self.cost + ahead
            raise InputError(
                "the budget",
                expected=f"at least {before + first:.2f} forward passes' worth: {before:.2f} for the whole text and "
                f"its checks, {first:.2f} for the first run",
                given=f"{max(0.0, self.cost + budget):.2f}",
                way_out="Give a larger one, or ask for an estimate instead of a measurement.",
                least=before + first,
            )
        return int(np.searchsorted(costs, left - ahead, side="right"))

    # -- running

    def _batches(self, runs: Sequence[_Run | None]) -> Iterator[list[_Run]]:
        """Yield runs that can be run side by side, some tokens at a time."""
        alike: dict[tuple[Any, ...], list[_Run]] = {}
        for run in runs:
            if run is not None:
                alike.setdefault(run.batch, []).append(run)
        for group in alike.values():
            size, before = len(group[0].ids), group[0].before
            tokens = TOKENS_AT_ONCE if group[0].positions is None else max(TOKENS_AT_ONCE, self._length)
            at_once = max(1, min(tokens // size, MAP_AT_ONCE // max(1, size * before * group[0].maps)))
            for start in range(0, len(group), at_once):
                yield group[start : start + at_once]

    def _logits(self, batch: list[_Run], how: How | Literal["cut"], removal: Edges, proven: set[str]) -> Tensor:
        """Return the logits [B, R, N] of the goal's rows in each run of a batch."""
        one = batch[0]
        ids = torch.tensor([run.ids for run in batch])
        if one.positions is None:
            attention = None if how == "deletion" else Without(removal, proven)
            return self._runner.logits(ids, one.rows, attention=attention)
        positions = torch.tensor(one.positions)
        if how == "deletion":
            alone = AloneWithout(None, positions, one.before)
        elif one.absent:
            alone = AloneWithout(None, positions, one.before, proven, absent=removal)
        else:
            alone = AloneWithout(removal, positions, one.before, proven)
        return self._prefix.run(ids, one.positions, one.rows, alone)

    def _value(self, logits: Tensor, choice: Bools, how: str, named: str | None = None) -> float:
        """Return the goal's value of the logits [R, N] of one run."""
        try:
            value = float(self._goal.value(logits[None])[0])
        except InputError as error:
            what = f"{error.what} in the {how} of {named or self._named(choice)}"
            facts = {**error.facts, "kept": choice}
            raise InputError(what, expected=error.expected, given=error.given, way_out=error.way_out, **facts) from None
        _require_finite(value)
        return value

    def _named(self, choice: Bools) -> str:
        names = [f'"{self.passages[number].label}"' for number in np.flatnonzero(~choice)]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _lost(self, cuts: Any) -> tuple[Lost, ...]:
        """Return the edges of a set, if there are such positions, layers and heads."""
        way_out = "Write wherefrom.Cut(destinations=(13,), sources=(1,)), or several in a list."
        given = [cuts] if isinstance(cuts, Cut) else cuts
        checked = check_items("a set of edges", given, expected="a Cut or several", way_out=way_out)
        return tuple(self._lost_of(check_kind("a cut", one, Cut, way_out=way_out)) for one in checked)

    def _lost_of(self, cut: Cut) -> Lost:
        scope = cut.scope
        if scope.kind != "self" or scope.part not in (None, "decoder") or scope.repeat is not None:
            raise InputError(
                "the scope of a cut",
                expected="self-attention of the decoder, in all executions",
                given=repr(scope),
                way_out="Name layers and heads alone: wherefrom.Scope((12,), (3,)).",
            )
        named = []
        for positions in (cut.destinations, cut.sources):
            found = torch.full((self._length,), positions is None)
            found[[check_index("position", own, self._length) for own in positions or ()]] = True
            named.append(found)
        return Lost(named[0], named[1], Where.of(scope.layers, scope.heads, self._prefix.sizes))


def _allowed(budget: float | None, *, least: float = 1) -> float | None:
    """Return the forward passes' worth that may be run, the whole text's at least; None: as many as it takes."""
    if budget is None:
        return None
    expected, way_out = f"{least:g} or more forward passes' worth", "Leave it out to run everything."
    return check_number("the budget", budget, expected=expected, way_out=way_out, least=least)


def _require_same(goal: Goal, priced: Priced | None) -> None:
    """Refuse prices of another text, or of other rows of it."""
    if priced is not None and (priced.goal.ids, priced.goal.rows) != (goal.ids, goal.rows):
        raise InputError(
            "the prices",
            expected="those of the same text and goal",
            given="those of another",
            way_out="Price the goal: price(runner, goal); or leave them out.",
        )


def _checked(goal: Goal, passages: Any) -> tuple[Passages, ...]:
    """Return the passages of a goal's prompt, or refuse them."""
    how = {"expected": "passages of the prompt", "way_out": "Make them of its tokens: wherefrom.passages(tokens)."}
    found: tuple[Passages, ...] = check_items("the passages", passages, **how)
    if not found:
        raise InputError("the passages", **{**how, "expected": "at least one"}, given="none")
    for one in found:
        if None in (as_index(getattr(one, end, None)) for end in ("start", "stop")) or not hasattr(one, "label"):
            given = f"a value of type {type(one).__name__}"
            raise InputError("a passage", **{**how, "expected": "one with a start, a stop and a label"}, given=given)
    end = -1
    for passage in sorted(found, key=lambda passage: (passage.start, passage.stop)):
        name = f'the passage "{passage.label}"'
        if not 0 <= passage.start < passage.stop:
            raise InputError(name, expected="at least one token", given=_tokens(passage), way_out=how["way_out"])
        if passage.stop > goal.prompt:
            raise InputError(
                name,
                expected=f"one before the answer, of tokens 0 to {goal.prompt - 1}",
                given=_tokens(passage),
                way_out="The answer, and a last token that predicts it alone, stay: leave them out of the passages.",
                passage=passage,
            )
        if passage.start < end:
            given = f"{_tokens(passage)}, and another up to token {end - 1}"
            raise InputError(name, expected="no overlap", given=given, way_out="Give each token to one passage.")
        end = passage.stop
    return found


def _tokens(passage: Passages) -> str:
    if passage.stop <= passage.start:
        return "none"
    return (
        f"tokens {passage.start} to {passage.stop - 1}"
        if passage.stop - passage.start > 1
        else f"token {passage.start}"
    )


def _choices(kept: ArrayLike, passages: int) -> Bools:
    array = np.array(kept)
    if array.size == 0 and array.ndim <= 2:
        array = array.reshape(0, passages).astype(np.bool_)
    if array.dtype != np.bool_ or array.ndim != 2 or array.shape[1] != passages:
        raise InputError(
            "the passages to keep",
            expected=f"a bool array [n, {passages}], a row for each run",
            given=f"{array.dtype} of shape {array.shape}",
            way_out="`subsets(passages, n)` draws some.",
            shape=array.shape,
        )
    return array


def require_cut(how: Any, layers: Any, heads: Any) -> None:
    """Refuse another way of taking passages away than there is, and layers or heads of a deletion.

    Raises:
        InputError: either.
    """
    if how not in get_args(How):
        raise InputError(
            "how passages are taken away",
            expected=" or ".join(f'"{known}"' for known in get_args(How)),
            given=repr(how),
            way_out="Deletion takes their tokens out; the others cut what reads them.",
        )
    if how == "deletion" and (layers is not None or heads is not None):
        raise InputError(
            "the layers and heads of a deletion",
            expected="none",
            given="some",
            way_out="What is taken out of the text is in no layer: ask for a total or direct cut "
            '(how="total", --how total).',
        )


def _require_finite(value: float) -> None:
    if not np.isfinite(value):
        raise RecordingError(
            "an ablation",
            expected="a finite value",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )


def _exactness(how: str, precision: str, noise: float) -> str:
    if precision in WIDE:
        return f"{EXACT[how]} (within {precision} rounding)"
    measured = EXACT[how].removeprefix("exact: ")
    return f"{measured}; in the model's own {precision}, in which a difference below {noise:.2g} is within noise"
