"""Gates on passages (floor 5): what leaving each of them out would do, by one forward and one backward pass.

Every passage has a gate m through which all destinations outside it read it, later ones in a decoder, in every layer
and head: 1 is the model as it is, 0 a knock-out of all passages at once. Inside a passage tokens read one another as
ever, and tokens of no passage are read as ever. The derivative of a goal by each gate, taken where all of them are half
shut, says what a passage does when things are really missing; with all open it would only say what the model does with
everything before it.

There are two kinds, see `wherefrom.evidence.weight_gates` and `wherefrom.evidence.score_gates`. On weights, m of every
weight goes through, however it came about; the text's first token then has no gate, since heads rest on it whatever it
says. On scores, log m is added: where a row reads one source alone, nothing changes until m is very small. Takes
running and goal from beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from wherefrom.checks import check_items
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.gated import LEAST, Gates, no_gate
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.running import Executed, Runner, require_room, runner_of
from wherefrom.evidence.score_gates import attend_by_scores
from wherefrom.evidence.weight_gates import attend_by_weights
from wherefrom.evidence.where import EVERYWHERE, Where
from wherefrom.passages import Passage

Progress: TypeAlias = Callable[[int, int], None]
Attend: TypeAlias = Callable[[Executed, Gates, Tensor], Tensor]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Kind = Literal["weights", "scores"]
AT: dict[Kind, tuple[float, ...]] = {"weights": (0.6,), "scores": (0.15,)}
"""The gates at which the derivative is taken unless others are asked for."""
SHOWN = 10
"""Passages that a printed answer shows."""


class Passes(NamedTuple):
    """What something cost, in passes over the whole text."""

    forward: int
    backward: int

    def __str__(self) -> str:
        return f"{self.forward} forward + {self.backward} backward"


@dataclass(frozen=True, eq=False)
class GateGradients:
    """What the goal gains by each passage, to first order, where all gates are at a number.

    Attributes:
        passages: those asked about.
        kind: of the gates.
        at: the gates, one after the other.
        gradients: [len(at), P], the goal's change per unit of a passage's gate, all gates at `at`; positive where the
            passage helps the goal; NaN of one that has no gate, being the first token alone.
        scores: [P], the sum over `at`, which ranks the passages.
        values: [len(at)], the goal while the gates were at `at`.
        unit: of the goal; that of a gradient is the same per unit of gate.
        cost: in passes over the text.
        seconds: it took.
        calls: (layer, module, execution) of each execution of attention, in order.
        per_call: [calls, H, P], what each head of each execution adds to `scores`; None unless asked for. A call with
            fewer heads than others has zeros behind them.
    """

    passages: tuple[Passage, ...]
    kind: Kind
    at: tuple[float, ...]
    gradients: Floats
    scores: Floats
    values: Floats
    unit: str
    cost: Passes
    seconds: float
    calls: tuple[tuple[int, str, int], ...]
    per_call: Floats | None = field(default=None, repr=False)

    @property
    def order(self) -> tuple[int, ...]:
        """The passages' places, what helps most first."""
        return tuple(np.argsort(-self.scores, kind="stable").tolist())

    def __len__(self) -> int:
        return len(self.passages)

    def __str__(self) -> str:
        where = " and ".join(f"{m:g}" for m in self.at)
        what = f"{self.unit} per unit of gate"
        lines = [f"gate gradients, {what}, all gates on {self.kind} at {where}; positive: the passage helps"]
        order = self.order
        shown = order if len(order) <= SHOWN else order[: SHOWN // 2] + order[-SHOWN // 2 :]
        for place in shown:
            if len(shown) < len(order) and place == shown[SHOWN // 2]:
                lines.append(f"{'...':>10}  {len(order) - len(shown)} between")
            one = self.passages[place]
            lines.append(f"{self.scores[place]:+10.4f}  {one.start}..{one.stop - 1}  {one.name or one.label}")
        lines.append(f"estimated, to first order; {self.cost}, {self.seconds:.2f} s")
        return "\n".join(lines)


def gate_gradients(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passage],
    *,
    at: Sequence[float] | None = None,
    kind: Kind = "weights",
    per_head: bool = False,
    where: Where = EVERYWHERE,
    progress: Progress | None = None,
) -> GateGradients:
    """Return what each passage does for a goal, by one forward and one backward pass for each gate.

    The model's weights get no gradients, and stay as they are.

    Args:
        runner: runs the model: `runner_of(model)`.
        goal: what is asked about.
        passages: of the prompt, without overlap; tokens in none are read as ever.
        at: gates from 1e-30 to 1, one after the other; `scores` adds their gradients up. 0.6, of scores 0.15, unless
            given.
        kind: what gates are on, "weights" or "scores".
        per_head: also what each head of each call adds.
        where: which layers and heads have gates; the others read as ever.
        progress: told after each gate.

    Returns:
        The gradients. On weights the text's first token has no gate: those of a passage that is it alone are NaN, and
        where there is no other passage, all are, and `values` those of the model as it is.

    Raises:
        InputError: a gate out of range, no passages, overlapping ones, or one that reaches into the answer; more tokens
            than the model reads; a layer or head that is not there; another kind.
        RecordingError: gradients that are not finite.
    """
    begin = time.perf_counter()
    runner = runner_of(runner)
    if kind not in tuple(AT):
        way_out = "Gates on weights are the better ones."
        raise InputError("the kind of gates", expected='"weights" or "scores"', given=repr(kind), way_out=way_out)
    steps = _checked_at(AT[kind] if at is None else at)
    given = Gates(tuple(passages), len(goal.ids))
    _require_askable(runner, goal, given)
    gates, gated = _without_the_first_token(given) if kind == "weights" else (given, np.ones(len(given), np.bool_))
    attend = attend_by_weights if kind == "weights" else attend_by_scores
    rounds: list[_Round] = []
    for done, m in enumerate(steps, start=1):
        opened = m if gated.any() else 1.0  # the first token alone: read as ever
        rounds.append(_one_round(runner, goal, gates, opened, per_head, where, attend))
        if progress is not None:
            progress(done, len(steps))
    gradients = _spread(np.stack([one.gradients for one in rounds]), gated)  # A P
    return GateGradients(
        passages=given.passages,
        kind=kind,
        at=steps,
        gradients=gradients,
        scores=gradients.sum(axis=0),
        values=np.array([one.value for one in rounds]),
        unit=goal.unit,
        cost=Passes(len(steps), len(steps)),
        seconds=time.perf_counter() - begin,
        calls=rounds[0].calls,
        per_call=_spread(np.sum([one.per_call for one in rounds], axis=0), gated) if per_head else None,
    )


def _without_the_first_token(gates: Gates) -> tuple[Gates, Bools]:
    """Return gates of passages without the text's first token, and which are left; if none is, all as they were."""
    left = [replace(one, start=max(1, one.start)) for one in gates.passages if one.stop > 1]
    return Gates(tuple(left) or gates.passages, gates.length), np.array([one.stop > 1 for one in gates.passages])


def _spread(values: Floats, gated: Bools) -> Floats:
    """Return values [..., those with a gate] as [..., P], NaN where there is none."""
    found = np.full((*values.shape[:-1], len(gated)), np.nan)
    found[..., gated] = values[..., : gated.sum()]
    return found


class _Round(NamedTuple):
    """One forward and one backward pass: gradients [P], which are the sum of [calls, H, P], and the goal's value."""

    gradients: Floats
    value: float
    calls: tuple[tuple[int, str, int], ...]
    per_call: Floats


def _one_round(
    runner: Runner, goal: Goal, gates: Gates, m: float, per_head: bool, where: Where, attend: Attend
) -> _Round:
    own: list[Tensor] = []  # by call, [H, P]
    calls: list[tuple[int, str, int]] = []
    sizes: dict[int, int] = {}

    def attention(one: Executed) -> Tensor:
        calls.append((one.layer, one.name, one.repeat))
        heads = sizes[one.layer] = one.q.shape[1]
        if per_head:
            own.append(torch.full((heads, len(gates)), m, dtype=torch.float64, requires_grad=True))
        given = own[-1] if per_head else shared
        if where.everywhere:
            return attend(one, gates, given)
        if not where.has_layer(one.layer):
            return one.attend().output
        return attend(one, gates, torch.where(where.mask(one.layer, heads)[:, None], given, 1.0))

    with torch.inference_mode(False), torch.enable_grad():
        shared = torch.full((1, len(gates)), m, dtype=torch.float64, requires_grad=True)
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention)
        value = goal.value(logits).sum()
        # Only what lies between the gates and the goal is differentiated: no weights, nothing below the first call.
        leaves = own if per_head else [shared]
        where.require(sizes)
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if not all(bool(torch.isfinite(x).all()) for x in (value, *found)):
        raise RecordingError(
            "the gradient by the gates",
            expected="finite numbers",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )
    heads = max(len(x) for x in found)
    shares = torch.stack([F.pad(x, (0, 0, 0, heads - len(x))) for x in found]).numpy()  # calls H P
    return _Round(shares.sum(axis=(0, 1)), float(value.detach()), tuple(calls), shares)


def _checked_at(at: Any) -> tuple[float, ...]:
    how = {"expected": f"numbers from {LEAST:g} to 1, such as (0.6,)", "way_out": "A single one is (0.6,)."}
    given = check_items("the gates", at, **how)
    if not given:
        raise InputError("the gates", given="none", **how)
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int | float | np.number) or not LEAST <= one <= 1:
            raise (
                no_gate([one])
                if isinstance(one, int | float | np.number)
                else InputError("a gate", given=repr(one), **how)
            )
    return tuple(float(one) for one in given)


def _require_askable(runner: Runner, goal: Goal, gates: Gates) -> None:
    require_room(runner, len(goal.ids), goal.prompt)
    for one in gates.passages:
        if one.stop > goal.prompt:
            raise InputError(
                "a passage",
                expected=f"one of the prompt, whose sources are tokens 0 to {goal.prompt - 1}",
                given=f"tokens {one.start} to {one.stop - 1}",
                way_out="Divide the prompt alone: passages(tokens, by, within=range(prompt)).",
                passage=one,
            )
