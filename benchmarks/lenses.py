"""Every lens of the comparison on one prompt: what it says of each passage, and how many passes it takes.

Ours are the package's own. The baselines are written down here from the papers' formulas, over the package's recording:

- rollout: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers": with A the mean weights of a layer's
  heads, the product over layers of (A + I) / 2, read at the answer's rows.
- gradient x input: Shrikumar et al. 2016, "Not Just a Black Box": the goal's gradient by a token's embedding, times
  it.
- integrated gradients: Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks": the mean of that gradient
  on the straight line from no embeddings (zeros), midpoint rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wherefrom.evidence.direct import frozen
from wherefrom.evidence.edges import PricedCall
from wherefrom.evidence.gates import gate_gradients
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.running import OwnRunner
from wherefrom.passages import Passage

Floats = NDArray[np.float64]
STEPS = 8
"""Of integrated gradients."""
GATES = (0.6, 0.4, 0.7, 0.9)
"""On weights; the first is the one that was chosen, the others are added up where there are three passes of each."""
SCORE_GATES = (1.0, 0.3, 0.15, 0.1)
"""On scores; 1 is the score gradient summed over all readers."""


@dataclass(frozen=True)
class Scored:
    """What one lens says.

    Attributes:
        scores: [P], positive where a passage speaks for the answer.
        forward: passes over the whole text.
        backward: likewise.
    """

    scores: Floats
    forward: int
    backward: int


def scored(runner: OwnRunner, goal: Goal, passages: Sequence[Passage]) -> dict[str, Scored]:
    """Return every lens that needs no measuring, by its name."""
    priced = price(runner, goal)
    rows = goal.rows
    found = {
        "mean weight": Scored(priced.passages(passages, "weight", rows=rows), 1, 0),
        "last layer's weight": Scored(
            priced.passages(passages, "weight", rows=rows, layers=[max(priced.layers)]), 1, 0
        ),
        "rollout": Scored(_summed(rollout(priced), passages), 1, 0),
        "gradient x input": Scored(_summed(gradient_by_input(runner, goal, steps=None), passages), 1, 1),
        "integrated gradients": Scored(_summed(gradient_by_input(runner, goal, steps=STEPS), passages), STEPS, STEPS),
        "moved": Scored(priced.passages(passages, "moved", rows=rows), 1, 0),
        "direct": Scored(priced.passages(passages, "direct"), 2, 1),
        "closed form": Scored(priced.passages(passages, "closed form", rows=rows), 1, 1),
        "score gradient": Scored(priced.passages(passages, "score gradient", rows=rows), 1, 1),
        "score gate 1": Scored(priced.passages(passages, "score gradient"), 1, 1),
    }
    for m in SCORE_GATES[1:]:
        found[f"score gate {m:g}"] = Scored(gate_gradients(runner, goal, passages, at=(m,), kind="scores").scores, 1, 1)
    return found | gated(runner, goal, passages)


def gated(runner: OwnRunner, goal: Goal, passages: Sequence[Passage]) -> dict[str, Scored]:
    """Return the gates on weights; 0 of a passage that has none, being the first token alone."""
    each = {m: gate_gradients(runner, goal, passages, at=(m,)).scores for m in GATES}
    return {f"gate {m:g}": Scored(np.nan_to_num(scores), 1, 1) for m, scores in each.items()}


def rollout(priced: Priced) -> Floats:
    """Return the rollout of each source [S], the mean over the goal's rows, taken from the last layer down."""
    state = torch.zeros(len(priced), dtype=torch.float64)
    state[list(priced.goal.rows)] = 1 / len(priced.goal.rows)
    for call in reversed(priced.calls):
        state = (state + _read(call, state)) / 2
    return state.numpy()


@torch.no_grad()
def _read(call: PricedCall, state: Tensor) -> Tensor:
    """Return state [T] times the mean weights of a call's heads, [S]."""
    found = torch.zeros(call.sources, dtype=torch.float64)
    heads = range(call.heads)
    rows = torch.nonzero(state)[:, 0].tolist()
    for strip in call.strips(rows, call.heads):
        columns = call.reach(strip)
        weights = call.prices("weight", strip, heads, None, None, 0.0).double().mean(dim=0)  # R C
        found[columns.start : columns.stop] += state[list(strip)] @ weights
    return found


def gradient_by_input(runner: OwnRunner, goal: Goal, *, steps: int | None) -> Floats:
    """Return each token's embedding times the goal's gradient by it, [T].

    Args:
        runner: of the model.
        goal: what is asked about.
        steps: at so many places on the way from zeros, midpoints; None: at the embeddings themselves.
    """
    shares = [1.0] if steps is None else [(step + 0.5) / steps for step in range(steps)]
    total: Tensor | None = None
    for share in shares:
        own = _gradient(runner, goal, share) / len(shares)
        total = own if total is None else total + own
    assert total is not None
    return total.double().numpy()


def _gradient(runner: OwnRunner, goal: Goal, share: float) -> Tensor:
    """Return embedding . gradient, [T], where the embeddings are shrunk to a share."""
    transformer, taken = runner.model.transformer, list[tuple[Tensor, Tensor]]()

    def shrink(_: nn.Module, __: object, output: Tensor) -> Tensor:
        leaf = (share * output.detach()).requires_grad_()
        taken.append((output.detach(), leaf))
        return leaf

    hook = transformer.embedding.register_forward_hook(shrink)
    try:
        with frozen(transformer), torch.enable_grad():
            value = goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows)).sum()
            (gradient,) = torch.autograd.grad(value, [taken[0][1]])
    finally:
        hook.remove()
    return (taken[0][0] * gradient)[0].sum(dim=-1)


def _summed(by_token: Floats, passages: Sequence[Passage]) -> Floats:
    return np.array([by_token[passage.start : passage.stop].sum() for passage in passages])
