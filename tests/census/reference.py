"""The weights of eager attention, call by call, as transformers' own functions return them.

Every modeling file has its eager attention function as a global, which its modules hand to the interface as what to
use when the implementation is "eager". While a reference is taken these functions are wrapped: they run as they are,
and the weights that they return are kept.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

MODELS = "transformers.models."


@dataclass(frozen=True)
class Weights:
    """One execution of eager attention.

    Attributes:
        name: the module's path in the model.
        turn: how many times the module had run before.
        weights: [B, H, T, S].
    """

    name: str
    turn: int
    weights: Tensor


@dataclass(frozen=True)
class Reference:
    """A pass with eager attention: its executions in order, and the floating-point tensors of the output."""

    calls: tuple[Weights, ...]
    output: tuple[Tensor, ...]


def eager(model: PreTrainedModel, inputs: dict[str, Any]) -> Reference:
    """Return a pass of a model whose attention implementation is "eager"."""
    names = {id(module): name for name, module in model.named_modules()}
    calls: list[Weights] = []
    turns: dict[int, int] = defaultdict(int)

    def keep(module: nn.Module, weights: Tensor) -> None:
        calls.append(Weights(names[id(module)], turns[id(module)], weights.detach()))
        turns[id(module)] += 1

    with _wrapped(keep):
        output = run(model, inputs)
    return Reference(tuple(calls), output)


def run(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Run a model on copies of its inputs, without gradients, and return the floating-point tensors of its output."""
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    torch.manual_seed(0)  # some models draw numbers in evaluation mode too
    with torch.no_grad():
        return tuple(_tensors(model(**copies)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, ModelOutput):
        for name, one in output.items():
            if "attentions" not in name:  # weights, which some models return under eager attention unasked
                yield from _tensors(one)
    elif isinstance(output, list | tuple):
        for one in output:
            yield from _tensors(one)


@contextmanager
def _wrapped(keep: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Wrap the eager functions of all modeling files that are imported."""
    undo: list[tuple[ModuleType, str, Any]] = []
    for name, file in list(sys.modules.items()):
        if not name.startswith(MODELS) or ".modeling_" not in name:
            continue
        for key, value in list(vars(file).items()):
            if "eager" in key and "attention" in key and callable(value):
                undo.append((file, key, value))
                setattr(file, key, _wrap(value, keep))
    try:
        yield
    finally:
        for file, key, value in undo:
            setattr(file, key, value)


def _wrap(function: Callable[..., Any], keep: Callable[[nn.Module, Tensor], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def eager_attention(module: nn.Module, *given: Any, **named: Any) -> Any:
        output, weights = function(module, *given, **named)
        keep(module, weights)
        return output, weights

    return eager_attention
