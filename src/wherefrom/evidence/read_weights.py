"""What some rows of a text read of each passage (floor 5), by their weights, from one forward pass and no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wherefrom.evidence.goal import Goal
from wherefrom.evidence.priced import Stretch
from wherefrom.evidence.running import Executed, Runner, scores_of
from wherefrom.evidence.where import EVERYWHERE, Where


@torch.no_grad()
def read_weights(
    runner: Runner, goal: Goal, passages: Sequence[Stretch], *, where: Where = EVERYWHERE
) -> tuple[Tensor, Tensor]:
    """Return how much of the goal's rows lies on each passage, [P], and the logits [1, R, N] of those rows.

    The share is the mean over rows, heads and calls; what lies outside the passages is none of it.

    Args:
        runner: runs the model.
        goal: what is asked about.
        passages: of the text.
        where: the layers and heads that count.

    Raises:
        InputError: a layer or head that is not there.
    """
    total, heads = torch.zeros(len(passages), dtype=torch.float64), 0
    sizes: dict[int, int] = {}

    def attention(one: Executed) -> Tensor:
        nonlocal heads
        attended = one.attend()
        sizes[one.layer] = one.q.shape[1]
        own = where.mask(one.layer, one.q.shape[1])
        weights = _weights(one, attended.lse, goal.rows)[own]  # H' R S
        for place, passage in enumerate(passages):
            total[place] += weights[..., passage.start : passage.stop].sum(dtype=torch.float64)
        heads += len(weights)
        return attended.output

    logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention)
    where.require(sizes)
    return total / (heads * len(goal.rows)), logits


def _weights(one: Executed, lse: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the weights [H, R, S] of some rows of the one text of an execution; a sink's share is in none of them."""
    scores = scores_of(one.q[:, :, list(rows)], one.k, one.scale, one.softcap)[0]  # H R S
    if one.bias is not None:
        bias = one.bias[0].expand(-1, one.q.shape[2], -1)
        scores = scores + bias[:, list(rows)]
    permitted = torch.from_numpy(one.masks[0].permitted(list(rows), range(one.k.shape[2]))).to(scores.device)
    weights = torch.exp(scores - lse[0, :, list(rows), None])
    return weights.masked_fill(~permitted, 0.0).cpu()
