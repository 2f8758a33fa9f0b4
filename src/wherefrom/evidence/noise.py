"""How large a difference must be to be more than rounding (floor 5): of a goal, in a model's own number format."""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.capture.fused import Limits, attend_in_strips
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.running import Executed, Runner


def noise_floor(runner: Runner, goal: Goal) -> float:
    """Return the size below which a difference of two values of a goal is rounding.

    It is twice the larger of two numbers. The first is measured: by how much the value changes between ways to compute
    the same text (in a batch of two, with one token more behind it, by another kernel that adds in another order). The
    second is what rounding the logits to the model's format makes of the value, by first order: eps / 2 times the
    root of the sum of (d value / d logit x logit)^2. It costs about five forward passes.
    """
    with torch.no_grad():
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows)
    return 2 * max(propagated(goal, logits, runner.format), measured_noise(runner, goal)[0])


@torch.no_grad()
def measured_noise(runner: Runner, goal: Goal) -> tuple[float, int]:
    """Return the largest change of the value between ways to compute the same text, and the tokens that were run."""
    ids = torch.tensor([goal.ids])
    longer = torch.cat((ids, ids[:, -1:]), dim=1)
    ways = [
        runner.logits(ids, goal.rows),
        runner.logits(ids.expand(2, -1), goal.rows)[:1],
        runner.logits(ids, goal.rows, attention=_otherwise),
    ]
    if runner.context is None or longer.shape[1] <= runner.context:
        ways.append(runner.logits(longer, goal.rows))
    values = [float(goal.value(way)[0]) for way in ways]
    return max(abs(value - values[0]) for value in values), noise_tokens(runner, goal)


def noise_tokens(runner: Runner, goal: Goal) -> int:
    """Return how many tokens `measured_noise` runs."""
    length = len(goal.ids)
    return 4 * length + (length + 1 if runner.context is None or length < runner.context else 0)


def _otherwise(one: Executed) -> Tensor:
    """Return the outputs of an execution by a kernel that adds in another order, where it is plain."""
    if not one.is_causal_alone:
        return one.attend().output
    return attend_in_strips(one.q, one.k, one.v, limits=Limits(causal=True), scale=one.scale)[0]


def propagated(goal: Goal, logits: Tensor, precision: str) -> float:
    """Return what rounding the logits [1, R, N] to a format makes of the value, by first order."""
    dtype = getattr(torch, precision, torch.float32)
    eps = torch.finfo(dtype if dtype.is_floating_point else torch.float32).eps
    with torch.inference_mode(False), torch.enable_grad():
        wide = logits.detach().double().clone().requires_grad_()  # of a pass in inference mode none has a gradient
        (gradient,) = torch.autograd.grad(goal.value(wide).sum(), wide)
    return float(eps / 2 * torch.linalg.vector_norm(gradient * wide.detach()))
