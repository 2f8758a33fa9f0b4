"""Path knock-outs (floor 5): what a goal is worth when one place of a text reads another as it would have been.

A place is a run of neighbouring tokens: the passage p that is asked about, a relay behind it, the answer's rows. What
is inside a place is read there as ever; a step A -> B is every edge from A's tokens to B's, in all layers and heads, or
in some. With k_A, v_A the keys and values of A's tokens in every execution of attention,

    K(B | A := x)    the keys and values of B's tokens when B reads k_A, v_A as x, and all else as in the whole text
    K(B | A := -)    likewise when B may not read A: the step's edges are cut before softmax
    goal(B | ...)    the goal's value, B the answer's rows
    K*(B)            those of B's tokens under the total knock-out of p: no later token outside of p may read it

so that the path knock-out of the route p -> B1 -> B2 -> answer is

    effect = goal(whole) - goal(answer | B2 := K(B2 | B1 := K(B1 | p := -)))

This is path patching (Wang et al. 2022, "Interpretability in the Wild"; Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching") with a cut where they put another text. Layers grow along a route by themselves: what B1
reads in a layer changes its keys in later ones alone. Several routes are knocked out together by giving each place all
of its changes at once. All routes together, of any number of steps, are the total knock-out, exactly: from p on, each
place then reads what it reads there. All routes of one step are the direct knock-out.

In a decoder whose attention is plain only B's own rows are run: what stands before them is read as recorded, and what
stands behind them is not asked (`wherefrom.evidence.prefix`, which is trusted after a check). Any other model runs
whole texts in which B's rows alone are changed. Runs are counted in tokens, over those of the whole text.

Takes `steps` and ablations from beside it; gives runs to `wherefrom.evidence.routing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.ablations import TOKENS_AT_ONCE, Ablator
from wherefrom.evidence.direct import frozen, module_of
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.prefix import Piece
from wherefrom.evidence.removal import AloneWithout, Removal, Without
from wherefrom.evidence.running import Executed, Runner
from wherefrom.evidence.steps import Changes, Execution, Keys, Reading, Rows
from wherefrom.passages import Passage

Arrays: TypeAlias = dict[Execution, tuple[Tensor, Tensor]]
Group: TypeAlias = tuple[range, list[int]]
"""A place, and which of the readers are versions of it."""
AttendRows: TypeAlias = Callable[[Group, Rows], Tensor]
PAIRS_AT_ONCE = 2**18
"""Rows times columns that the versions of a place may have together: each is a score in every head."""


class Paths(Ablator):
    """A text whose places can be read otherwise; the whole of it is run when this is made.

    Args:
        runner: runs the model.
        goal: what is asked about.
        passage: of the prompt, before the row that predicts the answer: where the routes begin.

    Attributes:
        passage: its positions.
        answer: the answer's rows as a place: from the first that the goal needs to the last.

    Raises:
        InputError: infinite log-odds.
        RecordingError: numbers that are not finite.
    """

    def __init__(self, runner: Runner, goal: Goal, passage: Passage) -> None:
        super().__init__(runner, goal, [passage])
        self.passage, self.answer = passage.positions, range(goal.rows[0], goal.rows[-1] + 1)
        self._backward = 0
        with torch.no_grad():
            self._recorded = None if self._runs_alone() else self._record()

    @property
    def alone(self) -> bool:
        """Whether a place's rows are run alone, and not whole texts."""
        return self._recorded is None

    @property
    def backward(self) -> float:
        """Passes' worth of the backward runs among `cost`."""
        return self._backward / self._length

    @property
    def logits(self) -> Tensor:
        """The logits [1, R, N] of the goal's rows, nothing changed."""
        return self._prefix.logits

    def cost_of(self, place: range) -> float:
        """Return the forward passes' worth of one reader."""
        return self._tokens_of(place) / self._length

    @torch.no_grad()
    def keys(self, readers: Sequence[tuple[range, Changes]]) -> list[Keys]:
        """Return K(place | changes) of each reader.

        Raises:
            InputError: a cut that leaves a row nothing to read.
        """
        found: dict[int, Arrays] = {number: {} for number in range(len(readers))}

        def attend(group: Group, rows: Rows) -> Tensor:
            for version, number in enumerate(group[1]):
                found[number][rows.execution] = rows.k[version].clone(), rows.v[version].clone()
            return rows.attend([readers[number][1] for number in group[1]])

        for groups in self._runs([place for place, _ in readers]):
            self._run(groups, attend)
        return [Keys(place.start, found[number]) for number, (place, _) in enumerate(readers)]

    @torch.no_grad()
    def values(self, versions: Sequence[Changes]) -> list[float]:
        """Return goal(answer | changes) of each version.

        Raises:
            InputError: a cut that leaves a row nothing to read; infinite log-odds.
        """

        def attend(group: Group, rows: Rows) -> Tensor:
            return rows.attend([versions[number] for number in group[1]])

        return [
            self._worth(logits)
            for groups in self._runs([self.answer] * len(versions))
            for logits in self._run(groups, attend)
        ]

    @torch.no_grad()
    def knocked_out(self) -> tuple[Keys, float]:
        """Return K* of all tokens behind the passage, up to the answer's last row, and the goal's value there.

        Raises:
            InputError: infinite log-odds; a row that the knock-out leaves nothing to read.
            RecordingError: a cut that took no effect.
        """
        behind = range(self.passage.stop, self.answer.stop)
        removal, proven = Removal(torch.from_numpy(self._index), torch.ones(1, 1, dtype=torch.bool)), set[str]()
        kept: Arrays = {}
        if self.alone:
            positions = torch.arange(behind.start, behind.stop)
            alone = AloneWithout(None, positions, self.passage.start, proven, absent=removal)

            def attend_piece(piece: Piece) -> Tensor:
                kept[piece.name, 0] = piece.k[0], piece.v[0]
                return alone(piece)

            rows = [row - behind.start for row in self._goal.rows]
            logits = self._prefix.run(self._ids(behind), behind, rows, attend_piece)
        else:
            without = Without(removal, proven)

            def attend(one: Executed) -> Tensor:
                if one.kind == "self":
                    k, v = (x[0, :, behind.start : behind.stop].clone() for x in (one.k, one.v))
                    kept[one.name, one.repeat] = k, v
                return without(one)

            logits = self._runner.logits(self._ids(), self._goal.rows, attention=attend)
        self._tokens += self._tokens_of(behind)
        return Keys(behind.start, kept), self._worth(logits[0])

    def readings(self, places: Sequence[range], toward: Sequence[Keys] | None = None) -> list[Reading]:
        """Return the reading of some places, each with the gradient of a value that lies behind it.

        It takes a forward and a backward run of their rows.

        Args:
            places: in any order.
            toward: the gradient of each place's value by its own keys, which is linear in them; None: the only place
                is the answer, and its value the goal.

        Raises:
            RecordingError: a gradient that is not finite.
        """
        found = dict(one for groups in self._runs(places) for one in self._readings(groups, toward))
        return [found[number] for number in range(len(places))]

    # -- runs

    def _readings(self, groups: Sequence[Group], toward: Sequence[Keys] | None) -> Iterator[tuple[int, Reading]]:
        """Yield the readings of one run, by their numbers."""
        kept: list[tuple[Group, Rows, Tensor]] = []

        def attend(group: Group, rows: Rows) -> Tensor:
            y = rows.attend()
            y = y if y.requires_grad else y.requires_grad_()  # here the graph begins
            kept.append((group, rows, y))
            return y

        with frozen(module_of(self._runner)), torch.inference_mode(False), torch.enable_grad():
            logits = self._run(groups, attend)
            if toward is None:
                value = self._goal.value(logits).sum()
            else:
                value = torch.stack([_linear(rows, [toward[one] for one in group[1]]) for group, rows, _ in kept]).sum()
            gradients = torch.autograd.grad(value, [y for _, _, y in kept], allow_unused=True, materialize_grads=True)
        self._tokens += self._tokens_in(groups)
        self._backward += self._tokens_in(groups)
        if not all(bool(torch.isfinite(g).all()) for g in gradients):
            raise _not_finite("a gradient along a route", "finite numbers")
        for place, numbers in groups:
            own = [(rows, g) for (group, rows, _), g in zip(kept, gradients, strict=True) if group[1] is numbers]
            for version, number in enumerate(numbers):
                yield number, Reading(place, tuple((rows.version(version), g[version]) for rows, g in own))

    def _runs(self, places: Sequence[range]) -> Iterator[list[Group]]:
        """Yield the readers that are run side by side, versions of one place together."""
        together: dict[range, list[int]] = {}
        for number, place in enumerate(places):
            together.setdefault(place, []).append(number)
        groups: list[Group] = []
        tokens = 0
        for place, numbers in together.items():
            each = self._tokens_of(place)
            most = max(TOKENS_AT_ONCE, self._length)
            size = max(1, min(most // each, PAIRS_AT_ONCE // (len(place) * place.stop)))
            for start in range(0, len(numbers), size):
                some = numbers[start : start + size]
                if groups and tokens + each * len(some) > most:
                    yield groups
                    groups, tokens = [], 0
                groups.append((place, some))
                tokens += each * len(some)
        if groups:
            yield groups

    def _run(self, groups: Sequence[Group], attend: AttendRows) -> Tensor:
        """Run groups of readers; return the logits [B, R, N] of the goal's rows of those that are the answer."""
        self._tokens += self._tokens_in(groups)
        if not self.alone:
            texts = sum(len(numbers) for _, numbers in groups)
            around = _Around(self._recorded, groups, attend)
            return self._runner.logits(self._ids().expand(texts, -1), self._goal.rows, attention=around)
        positions = [position for place, numbers in groups for _ in numbers for position in place]
        first, rows = 0, list[int]()
        for place, numbers in groups:
            for _ in numbers:
                if place == self.answer:
                    rows += [row - place.start + first for row in self._goal.rows]
                first += len(place)

        logits = self._prefix.run(self._ids(positions), positions, rows, _Alone(groups, attend))  # 1 B*R N
        return logits.reshape(-1, len(self._goal.rows), logits.shape[-1])

    def _record(self) -> Keys:
        """Run the whole text and keep the keys and values of every execution."""
        kept: Arrays = {}

        def attend(one: Executed) -> Tensor:
            if one.kind == "self":
                kept[one.name, one.repeat] = one.k[0], one.v[0]
            return one.attend().output

        self._runner.logits(self._ids(), self._goal.rows, attention=attend)
        self._tokens += self._length
        return Keys(0, kept)

    def _tokens_of(self, place: range) -> int:
        return len(place) if self.alone else self._length

    def _tokens_in(self, groups: Sequence[Group]) -> int:
        return sum(self._tokens_of(place) * len(numbers) for place, numbers in groups)

    def _ids(self, positions: Sequence[int] | None = None) -> Tensor:
        ids = self._goal.ids if positions is None else [self._goal.ids[position] for position in positions]
        return torch.tensor([ids])

    def _worth(self, logits: Tensor) -> float:
        """Return the goal's value of the logits [R, N] of one version."""
        try:
            value = float(self._goal.value(logits[None])[0])
        except InputError as error:
            what = f'{error.what} in a knock-out of "{self.passages[0].label}"'
            raise InputError(what, expected=error.expected, given=error.given, way_out=error.way_out) from None
        if not math.isfinite(value):
            raise _not_finite("a path knock-out", "a finite value")
        return value


class _Around:
    """Attention of whole texts in which the rows of one place each are computed otherwise.

    Args:
        recorded: keys and values of the whole text, which they read.
        groups: the readers, in the order of the texts.
        attend: computes their rows.
    """

    def __init__(self, recorded: Keys | None, groups: Sequence[Group], attend: AttendRows) -> None:
        assert recorded is not None, "whole texts are run behind a recording"
        self._recorded, self._groups, self._attend = recorded, groups, attend

    def __call__(self, one: Executed) -> Tensor:
        """Return the outputs [B, H, T, V] of an execution."""
        y = one.attend().output.detach()
        if one.kind != "self":
            return y
        y, first = y.clone(), 0
        for group in self._groups:
            texts = slice(first, first + len(group[1]))
            y[texts, :, group[0].start : group[0].stop] = self._attend(group, self._rows(one, group[0], texts))
            first = texts.stop
        return y

    def _rows(self, one: Executed, place: range, texts: slice) -> Rows:
        execution, rows, stop = (one.name, one.repeat), slice(place.start, place.stop), place.stop
        past_k, past_v = (x[None] for x in self._recorded.at(execution, range(place.start)))
        q, k, v = (x[texts, :, rows] for x in (one.q, one.k, one.v))
        permitted, bias = one.permitted((place, range(stop)))[:1], one.bias
        if bias is not None:
            bias = bias[:1].expand(-1, -1, one.q.shape[2], one.k.shape[2])[:, :, rows, :stop]
        given = (q, k, v, past_k, past_v, permitted, one.scale, one.softcap, bias, one.sinks)
        return Rows(execution, one.layer, *given)


class _Alone:
    """Attention of the readers' rows alone, behind what was recorded.

    Args:
        groups: the readers, in the order of the rows.
        attend: computes their rows.
    """

    def __init__(self, groups: Sequence[Group], attend: AttendRows) -> None:
        self._groups, self._attend = groups, attend

    def __call__(self, piece: Piece) -> Tensor:
        """Return the outputs [1, H, R, V] of an execution by the rows of all readers."""
        outputs, first = [], 0
        for group in self._groups:
            place, versions = group[0], len(group[1])
            own = slice(first, first + versions * len(place))
            y = self._attend(group, self._rows(piece, place, own))  # B H R V
            outputs.append(y.transpose(0, 1).flatten(1, 2)[None])
            first = own.stop
        return torch.cat(outputs, dim=2)

    def _rows(self, piece: Piece, place: range, own: slice) -> Rows:
        arrays = (piece.q, piece.k, piece.v)
        q, k, v = (x[0, :, own].reshape(x.shape[1], -1, len(place), x.shape[3]).transpose(0, 1) for x in arrays)
        past_k, past_v = (x[:, :, : place.start] for x in (piece.past_k, piece.past_v))
        columns = torch.arange(place.stop, device=q.device)
        permitted = (columns <= columns[place.start :, None])[None, None]
        return Rows((piece.name, 0), piece.layer, q, k, v, past_k, past_v, permitted, piece.scale)


def _linear(rows: Rows, toward: Sequence[Keys]) -> Tensor:
    """Return the gradients times the rows' own keys and values, summed over versions."""
    of_k, of_v = (torch.stack([own.of[rows.execution][part] for own in toward]) for part in range(2))
    return (of_k.to(rows.k.device) * rows.k).sum() + (of_v.to(rows.v.device) * rows.v).sum()


def _not_finite(what: str, expected: str) -> RecordingError:
    return RecordingError(
        what,
        expected=expected,
        given="NaN or an infinity",
        way_out="The model's numbers overflow on this text; nothing was measured.",
    )
