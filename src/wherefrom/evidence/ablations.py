"""Measured effects of passages (floor 5): what a goal is worth when some of them are taken away from a text.

There are three meanings, and every result says which one it is of:

"deletion": the passages' tokens are taken out and the model runs afresh. What stands behind them moves up, so it is
another text, and no cut.
"total": every later destination outside a passage is kept from reading it; inside it reading goes on.
"direct": only the rows of what is asked about, and of the answer's tokens between them, are kept from reading it;
everything before them is as it was in the whole text.

Where it is exact, what stands before a change is not run again (`wherefrom.evidence.prefix`); otherwise whole texts
are. Each run is counted in forward passes' worth: the tokens that it ran, over the tokens of the whole text. Takes
passes from `running`, what is asked about from `goal`, cuts from `removal`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wherefrom.checks import check_chosen, check_items
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.choices import subsets as subsets
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.noise import measured_noise, propagated
from wherefrom.evidence.noise import noise_floor as noise_floor
from wherefrom.evidence.prefix import Piece, Prefix, agree, own_keys
from wherefrom.evidence.removal import AloneWithout, Removal, Without
from wherefrom.evidence.running import Runner
from wherefrom.questions.scope import Scope

How: TypeAlias = Literal["deletion", "total", "direct"]
Bools: TypeAlias = NDArray[np.bool_]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (runs done, runs in all) after each batch."""

TOKENS_AT_ONCE = 256
"""Tokens that are run side by side: of short texts several, whose matrix products are then twice as fast."""
MAP_AT_ONCE = 2**24
"""Entries of a map of rows by sources that a batch of rows run alone may have."""
ROUNDING = 1e-5
"""Nats that float32 rounding makes of a forward pass."""
EXACT = {
    "deletion": "exact: measured by running the text without the passages; what stands behind them moves up",
    "total": "exact: measured by running the text again with every later reading of the passages cut",
    "direct": "exact: measured by running the answer's rows again without reading the passages, all before as it was",
}


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
        kept: bool [n, P], the passages that each run kept.
        values: float64 [n], the goal's value in each.
        whole: its value with nothing taken away.
        how: what taking away means, see the top of the module.
        unit: of the values.
        cost: forward passes' worth of all that this call ran, the whole text and checks included: tokens run, over the
            tokens of the whole text.
        alone: in how many runs only the rows behind the change were run.
        noise: the size below which a difference is rounding.
        seconds: wall clock.
        exactness: how exact the values are, in a sentence.
    """

    kept: Bools
    values: NDArray[np.float64]
    whole: float
    how: How
    unit: str
    cost: float
    alone: int
    noise: float
    seconds: float
    exactness: str

    @property
    def effects(self) -> NDArray[np.float64]:
        """The goal's value in the whole text minus that of each run, [n]: positive where what was taken away helped."""
        return self.whole - self.values

    @property
    def within_noise(self) -> Bools:
        """Which effects are too small to be told from rounding, [n]."""
        return np.abs(self.effects) < self.noise

    def __repr__(self) -> str:
        runs = f"{len(self.values)} runs of {self.kept.shape[1]} passages"
        return f"Ablations({self.how}, {runs}, {self.cost:.2f} forward passes' worth)"


def ablate(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passages],
    kept: ArrayLike,
    *,
    how: How = "deletion",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
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
        heads: likewise.
        budget: forward passes' worth that may be run, the whole text's included; later choices than it pays for are
            left out, and the result's `kept` holds those that were run.
        progress: told after each batch.

    Raises:
        InputError: no passages, one in the answer, choices of another shape, a layer or head that is not there, a
            budget too small for a single run; nothing left of the prompt, or of what a destination reads; infinite
            log-odds, in a sentence that names the passages taken away.
        RecordingError: a cut that took no effect, or numbers that are not finite.
    """
    start = time.perf_counter()
    measurer = Ablator(runner, goal, passages)
    left = None if budget is None else budget - measurer.cost
    found = measurer.measure(kept, how=how, layers=layers, heads=heads, budget=left, progress=progress)
    seconds = time.perf_counter() - start
    return Ablations(**{**vars(found), "cost": measurer.cost, "seconds": seconds})


def leave_one_out(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passages],
    *,
    how: How = "deletion",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Ablations:
    """Return the goal's values when each passage in turn is taken away; `effects` [P] are then the passages' own.

    The arguments and errors are those of `ablate`.
    """
    checked = check_items("the passages", passages, expected="passages", way_out="Make them: passages(tokens).")
    each = ~np.eye(len(checked), dtype=np.bool_)
    return ablate(runner, goal, checked, each, how=how, layers=layers, heads=heads, progress=progress)


@dataclass(frozen=True)
class _Run:
    """How one choice is run.

    Attributes:
        place: of the choice.
        ids: the tokens that are run.
        rows: places among them whose logits are needed.
        positions: where they stand, if they are run alone behind recorded columns; None: a whole text.
        before: how many recorded columns they read.
    """

    place: int
    ids: tuple[int, ...]
    rows: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    before: int = 0

    @property
    def batch(self) -> tuple[Any, ...]:
        """Runs that agree in this can be run side by side."""
        return len(self.ids), self.rows, self.positions, self.before


class Ablator:
    """A text whose passages can be taken away; the whole of it is run once, when this is made.

    Args:
        runner: runs the model.
        goal: what is asked about.
        passages: of the prompt, without overlap.

    Attributes:
        whole: the goal's value, nothing taken away.
        cost: forward passes' worth of all that was run so far.

    Raises:
        InputError: no passages, an empty one, one that overlaps another or reaches beyond the prompt; infinite
            log-odds.
        RecordingError: numbers that are not finite.
    """

    def __init__(self, runner: Runner, goal: Goal, passages: Sequence[Passages]) -> None:
        self._runner, self._goal = runner, goal
        self.passages = _checked(goal, passages)
        self._length = len(goal.ids)
        index = np.full(self._length, -1)
        for number, passage in enumerate(self.passages):
            index[passage.start : passage.stop] = number
        self._index = index
        self._tokens = self._length
        with torch.no_grad():
            self._prefix = Prefix(runner, goal.ids, goal.rows)
            self.whole = float(goal.value(self._prefix.logits)[0])
        _require_finite(self.whole)
        self._alone: bool | None = None
        self._noise: float | None = None

    @property
    def cost(self) -> float:
        """Forward passes' worth of all that was run so far."""
        return self._tokens / self._length

    @property
    def noise(self) -> float:
        """The size below which a difference is rounding: `ROUNDING` at least; in half precision as `noise_floor`."""
        if self._noise is None:
            self._noise = 2 * propagated(self._goal, self._prefix.logits, self._runner.format)
            if self._runner.format in ("float32", "float64"):
                self._noise = max(self._noise, ROUNDING)
            else:
                found, tokens = measured_noise(self._runner, self._goal)
                self._noise, self._tokens = max(self._noise, 2 * found), self._tokens + tokens
        return self._noise

    def costs(
        self,
        kept: ArrayLike,
        *,
        how: How = "deletion",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """Return the forward passes' worth that each choice will cost, [n]; arguments and errors as `measure`."""
        runs = self._plans(_choices(kept, len(self.passages)), _how(how), self._scope(how, layers, heads))
        return np.array([0 if run is None else len(run.ids) for run in runs], dtype=np.float64) / self._length

    def measure(
        self,
        kept: ArrayLike,
        *,
        how: How = "deletion",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        budget: float | None = None,
        progress: Progress | None = None,
    ) -> Ablations:
        """Return the goal's values when each choice of passages is kept; see `ablate` for arguments and errors.

        The budget, and the result's cost, are of these runs, without what was run before.
        """
        start, tokens = time.perf_counter(), self._tokens
        choices, scope = _choices(kept, len(self.passages)), self._scope(_how(how), layers, heads)
        noise = self.noise
        runs = self._plans(choices, how, scope)
        if budget is not None:
            runs = runs[: self._affordable(runs, budget - (self._tokens - tokens) / self._length)]
            choices = choices[: len(runs)]
        values = np.full(len(runs), self.whole)
        done, proven = sum(run is None for run in runs), set[str]()
        with torch.no_grad():
            for batch in self._batches(runs):
                logits = self._logits(batch, choices, how, scope, proven)
                for place, own in zip([run.place for run in batch], logits, strict=True):
                    values[place] = self._value(own, choices[place], how)
                self._tokens += sum(len(run.ids) for run in batch)
                done += len(batch)
                if progress is not None:
                    progress(done, len(runs))
        return Ablations(
            kept=choices,
            values=values,
            whole=self.whole,
            how=how,
            unit=self._goal.unit,
            cost=(self._tokens - tokens) / self._length,
            alone=sum(run is not None and run.positions is not None for run in runs),
            noise=noise,
            seconds=time.perf_counter() - start,
            exactness=_exactness(how, self._runner.format, noise),
        )

    # -- how each choice is run

    def _plans(self, choices: Bools, how: How, scope: Scope) -> list[_Run | None]:
        """Return how each choice is run; None where nothing is taken away."""
        plan = {"deletion": self._deletion, "total": self._total, "direct": self._direct}[how]
        return [None if choice.all() else plan(place, choice, scope) for place, choice in enumerate(choices)]

    def _deletion(self, place: int, choice: Bools, scope: Scope) -> _Run:
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

    def _total(self, place: int, choice: Bools, scope: Scope) -> _Run:
        goal = self._goal
        row_inside = not self._stays(choice)[goal.rows[0]]
        if scope != Scope() or row_inside or not self._runs_alone():
            return _Run(place, goal.ids, goal.rows)
        start = int(np.flatnonzero(~self._stays(choice))[0])
        positions = [int(i) for i in self._outside(choice) if start <= i <= goal.rows[-1]]
        rows = tuple(positions.index(row) for row in goal.rows)
        return _Run(place, tuple(goal.ids[i] for i in positions), rows, tuple(positions), start)

    def _direct(self, place: int, choice: Bools, scope: Scope) -> _Run:
        goal, first = self._goal, self._goal.rows[0]
        if not self._runs_alone():
            return _Run(place, goal.ids, goal.rows)
        stop = goal.rows[-1] + 1
        rows = tuple(row - first for row in goal.rows)
        return _Run(place, goal.ids[first:stop], rows, tuple(range(first, stop)), first)

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
        except Exception:  # whatever a model makes of a few tokens: whole texts are run then
            return False
        return all(same) and agree(logits, self._prefix.logits)

    def _affordable(self, runs: Sequence[_Run | None], budget: float) -> int:
        """Return how many runs, from the first on, a budget pays for."""
        costs = np.cumsum([0 if run is None else len(run.ids) for run in runs]) / self._length
        count = int(np.searchsorted(costs, budget + 1e-9, side="right"))
        if len(runs) and not count:
            before = self.cost
            raise InputError(
                "the budget",
                expected=f"at least {before + costs[0]:.2f} forward passes' worth: {before:.2f} for the whole text and "
                f"its checks, {costs[0]:.2f} for the first run",
                given=f"{max(0.0, before + budget):.2f}",
                way_out="Give a larger one, or ask for an estimate instead of a measurement.",
                least=before + costs[0],
            )
        return count

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
            at_once = max(1, min(tokens // size, MAP_AT_ONCE // max(1, size * before)))
            for start in range(0, len(group), at_once):
                yield group[start : start + at_once]

    def _logits(self, batch: list[_Run], choices: Bools, how: How, scope: Scope, proven: set[str]) -> Tensor:
        """Return the logits [B, R, N] of the goal's rows in each run of a batch."""
        one = batch[0]
        ids = torch.tensor([run.ids for run in batch])
        removal = Removal(
            torch.from_numpy(self._index),
            torch.from_numpy(~choices[[run.place for run in batch]]),
            self._goal.rows[0] if how == "direct" else 0,
            scope,
        )
        if one.positions is None:
            attention = None if how == "deletion" else Without(removal, proven)
            return self._runner.logits(ids, one.rows, attention=attention)
        positions = torch.tensor(one.positions)
        if how == "deletion":
            alone = AloneWithout(None, positions, one.before)
        elif how == "total":
            alone = AloneWithout(None, positions, one.before, proven, absent=removal)
        else:
            alone = AloneWithout(removal, positions, one.before, proven)
        return self._prefix.run(ids, one.positions, one.rows, alone)

    def _value(self, logits: Tensor, choice: Bools, how: How) -> float:
        """Return the goal's value of the logits [R, N] of one run."""
        try:
            value = float(self._goal.value(logits[None])[0])
        except InputError as error:
            what = f"{error.what} in the {how} of {self._named(choice)}"
            facts = {**error.facts, "kept": choice}
            raise InputError(what, expected=error.expected, given=error.given, way_out=error.way_out, **facts) from None
        _require_finite(value)
        return value

    def _named(self, choice: Bools) -> str:
        names = [f'"{self.passages[number].label}"' for number in np.flatnonzero(~choice)]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _scope(self, how: How, layers: Sequence[int] | None, heads: Sequence[int] | None) -> Scope:
        if how == "deletion" and (layers is not None or heads is not None):
            raise InputError(
                "the layers and heads of a deletion",
                expected="none",
                given="some",
                way_out='What is taken out of the text is in no layer: ask for how="total" or "direct".',
            )
        chosen = check_chosen("layer", layers, max(self._prefix.layers, default=-1) + 1)
        missing = set(chosen or ()) - self._prefix.layers
        if missing:
            raise InputError(
                "the layers to keep",
                expected="layers with attention that is seen",
                given=str(min(missing)),
                way_out=f"They are {', '.join(map(str, sorted(self._prefix.layers)))}.",
            )
        return Scope(chosen, check_chosen("head", heads, self._prefix.heads))


def _checked(goal: Goal, passages: Any) -> tuple[Passages, ...]:
    """Return the passages of a goal's prompt, or refuse them."""
    how = {"expected": "passages of the prompt", "way_out": "Make them of its tokens: wherefrom.passages(tokens)."}
    found: tuple[Passages, ...] = check_items("the passages", passages, **how)
    if not found:
        raise InputError("the passages", **{**how, "expected": "at least one"}, given="none")
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


def _how(how: Any) -> How:
    if how not in get_args(How):
        raise InputError(
            "how passages are taken away",
            expected=" or ".join(f'"{known}"' for known in get_args(How)),
            given=repr(how),
            way_out="Deletion takes their tokens out; the others cut what reads them.",
        )
    found: How = how
    return found


def _require_finite(value: float) -> None:
    if not np.isfinite(value):
        raise RecordingError(
            "an ablation",
            expected="a finite value",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )


def _exactness(how: How, precision: str, noise: float) -> str:
    if precision in ("float32", "float64"):
        return f"{EXACT[how]} (within {precision} rounding)"
    measured = EXACT[how].removeprefix("exact: ")
    return f"{measured}; in the model's own {precision}, in which a difference below {noise:.2g} is within noise"
