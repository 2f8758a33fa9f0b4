"""The optimizer (floor 5): AdamW over two groups of weights, and its state as named tensors.

Takes settings from beside it and the transformer's parameters from below. Gives the loop an optimizer, and the run's
checkpoints a dictionary of tensors that says which average belongs to which weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.errors import TrainingError
from wherefrom.training.settings import Settings

EPSILON = 1e-8
STATES = ("step", "exp_avg", "exp_avg_sq")
FUSED_ON = ("cpu", "cuda")
"""Where torch updates all weights in one kernel; it keeps the same state, so a resumed run goes on bit for bit."""


def named_groups(transformer: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the weights that decay, by name, and those that do not.

    The matrices of linear maps decay. Embeddings do not: a rare token's row would shrink at every step that does not
    see it, and a tied output matrix is an embedding. Nor do norms and biases, which have no scale to hold down.
    """
    rows = {id(part.weight) for part in transformer.modules() if isinstance(part, nn.Embedding)}
    decayed: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    for name, weight in transformer.named_parameters():
        (decayed if weight.ndim >= 2 and id(weight) not in rows else others)[name] = weight
    return decayed, others


def make_optimizer(transformer: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) over a transformer's weights; its state is still empty."""
    decayed, others = (list(group.values()) for group in named_groups(transformer))
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = all(weight.device.type in FUSED_ON for weight in (*decayed, *others))
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=EPSILON, fused=fused)


def optimizer_tensors(transformer: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return the optimizer's state by name (``exp_avg/blocks.0.attention.query.weight``), on the CPU."""
    return {
        f"{state}/{name}": optimizer.state[weight][state].detach().cpu().contiguous()
        for group in named_groups(transformer)
        for name, weight in group.items()
        for state in STATES
    }


def restore_optimizer(transformer: nn.Module, optimizer: torch.optim.AdamW, tensors: Mapping[str, Tensor]) -> None:
    """Give a new optimizer the state that `optimizer_tensors` returned.

    Raises:
        TrainingError: a tensor is missing, or of another shape than its weight; ``tensor`` says which.
    """
    names = [(name, weight) for group in named_groups(transformer) for name, weight in group.items()]
    states: dict[int, dict[str, Tensor]] = {}
    for number, (name, weight) in enumerate(names):  # torch numbers the weights through all groups
        states[number] = {state: _taken(tensors, f"{state}/{name}", state, weight) for state in STATES}
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _taken(tensors: Mapping[str, Tensor], name: str, state: str, weight: Tensor) -> Tensor:
    expected = [] if state == "step" else list(weight.shape)
    found = tensors.get(name)
    if found is None or list(found.shape) != expected:
        raise TrainingError(
            f"the optimizer's tensor {name}",
            expected=f"one of shape {expected}",
            given="none" if found is None else f"shape {list(found.shape)}",
            way_out="Resume from another checkpoint: remove this one.",
            tensor=name,
        )
    return found.clone()  # into memory of torch's own, which is aligned: products then round the same way
