"""What the tests of both kinds of gates share: passages, small models of transformers, the size of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_small import IDS, made
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.passages import Passage


def spans(*ranges: tuple[int, int]) -> tuple[Passage, ...]:
    return tuple(Passage(start, stop, f"{start}") for start, stop in ranges)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor) and x.untyped_storage().nbytes():
                self.size = max(self.size, x.numel(), x.untyped_storage().nbytes() // x.element_size())
        return result


class DoubleNorm(nn.Module):
    """A norm of transformers that does not go through single precision."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-6))
        self.shift = 1.0 if type(norm).__name__.startswith("Gemma") else 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.shift + self.weight)


def in_double(name: str) -> nn.Module:
    model = made(name)[0].double()
    model.set_experts_implementation("eager")  # the grouped product knows no double precision
    for path, part in list(model.named_modules()):
        if type(part).__name__.endswith("RMSNorm"):
            parent, _, own = path.rpartition(".")
            setattr(model.get_submodule(parent), own, DoubleNorm(part))
    return model


HF_GOAL = AnswerGoal(tuple(IDS[0].tolist()), 7)
HF_PARTS = spans((0, 2), (2, 5), (5, 6))
HF = ["gemma2", "gpt_oss", "mistral", "llama", "gpt2", "deepseek_v3"]
