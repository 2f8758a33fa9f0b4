"""The output projection of each attention (floor 3): which matrix takes what an attention computed.

No name says it: it is `o_proj` here and `out_proj`, `c_proj` or a neighbour's `dense` there. So it is watched: whoever
computes an attention notes the output, and the next linear module whose input is that output is its projection. Where
no single matrix is, because the output is gated or normed before, or split among several, the reason is told.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wherefrom.errors import InputError

Reason: TypeAlias = Literal[
    "the output is changed before it is projected",
    "the output is projected in parts",
    "several modules project it in turn",
    "an adapter adds to the matrix",
    "the matrix is not of plain numbers",
    "no linear module takes the output as it is",
]
CHANGED: Reason = "the output is changed before it is projected"
PARTS: Reason = "the output is projected in parts"
SEVERAL: Reason = "several modules project it in turn"
ADAPTED: Reason = "an adapter adds to the matrix"
PACKED: Reason = "the matrix is not of plain numbers"
UNTAKEN: Reason = "no linear module takes the output as it is"
PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST = 2
"""So many modules may wait for their projections at once; of all of them the outputs are held until then."""


@dataclass(frozen=True)
class Projection:
    """What projects a module's attention.

    Attributes:
        weight: [M, H * V], as `torch.nn.Linear` stores it, a view of the model's own; None where there is no single
            matrix.
        module: the path of the module that takes the output, or would take it if it were not changed before; None
            where that is not known.
        reason: why there is no matrix; None where there is one.
    """

    weight: Tensor | None
    module: str | None
    reason: Reason | None


@dataclass
class _Waiting:
    """The outputs [B, H, T, V] of a module that were not seen to be projected yet, the latest last."""

    name: str
    outputs: list[Tensor] = field(default_factory=list)
    near: str | None = None  # the last linear module within that was given as much as that, but not that

    @property
    def width(self) -> int:
        return self.outputs[-1].shape[1] * self.outputs[-1].shape[3]

    def fitting(self, size: int) -> Sequence[Tensor]:
        """Return the latest outputs, as many as have `size` numbers together; none where that cannot be."""
        for first in range(len(self.outputs) - 1, -1, -1):
            size -= self.outputs[first].numel()
            if size <= 0:
                return self.outputs[first:] if size == 0 else ()
        return ()


class Projections:
    """Finds the output projections of a model while it is entered, in this thread.

    Args:
        model: its linear modules are hooked while this is entered: `torch.nn.Linear`, what has `in_features` as it
            has, and the Conv1D of GPT-2, whose matrix lies the other way round.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._linear = {id(module): name for name, module in self._modules.items() if _is_linear(module)}
        self._waiting: dict[str, _Waiting] = {}  # by the name of what attends, the latest last
        self._taken: dict[str, dict[str, Projection]] = {}  # the same, then by the name of what projects
        self._hooks: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Projections:
        """Hook the linear modules."""
        self._thread = threading.get_ident()
        self._hooks = [self._modules[name].register_forward_hook(self._look) for name in self._linear.values()]
        return self

    def __exit__(self, *_: object) -> None:
        """Take the hooks out again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def note(self, name: str, output: Tensor, *, heads: int) -> None:
        """Take note of what a module's attention gave.

        Args:
            name: the module's path.
            output: [B, H, T, V].
            heads: H.

        Raises:
            InputError: the output has another shape.
        """
        if output.ndim != 4 or output.shape[1] != heads:
            raise InputError(
                f"the output of {name}",
                expected=f"[B, H, T, V] with {heads} heads",
                given=f"shape {tuple(output.shape)}",
                way_out="Give it with the heads before the positions.",
            )
        self._taken.setdefault(name, {})
        if not output.numel():
            return
        waiting = self._waiting.pop(name, None) or _Waiting(name)
        waiting.outputs.append(output.detach())
        self._waiting[name] = waiting
        for other in list(self._waiting)[:-MOST]:
            self._give_up(self._waiting.pop(other))

    def found(self) -> dict[str, Projection]:
        """Return the projection of each module that something was noted of."""
        for name in list(self._waiting):
            self._give_up(self._waiting.pop(name))
        return {name: self._joined(name, list(taken.values())) for name, taken in self._taken.items()}

    def _joined(self, name: str, taken: list[Projection]) -> Projection:
        """Return the one projection of a module that may have attended several times."""
        module = self._modules.get(name)
        if isinstance(module, nn.MultiheadAttention):  # which projects without calling a module
            return _projection(module.out_proj, f"{name}.out_proj", module)
        matrices = [one for one in taken if one.reason != CHANGED and one.reason != UNTAKEN]
        if len(matrices) > 1:
            return Projection(None, None, SEVERAL)
        return matrices[0] if matrices else taken[-1] if taken else Projection(None, None, UNTAKEN)

    def _give_up(self, waiting: _Waiting) -> None:
        """Say of a module that nothing took its output as it was."""
        reason = UNTAKEN if waiting.near is None else CHANGED
        self._taken[waiting.name].setdefault("", Projection(None, waiting.near, reason))

    def _look(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """Look at what a linear module was given."""
        if not self._waiting or not args or threading.get_ident() != self._thread:
            return
        x, own = args[0], self._linear[id(module)]
        if not isinstance(x, Tensor):
            return
        for waiting in reversed(self._waiting.values()):
            outputs = waiting.fitting(x.numel())
            if not outputs:
                continue
            if x.shape[-1] == waiting.width and _is(x, outputs):
                projection = self._judged(module, own, x, result)
            elif x.shape[-1] != waiting.width and _same_memory(x, outputs):
                projection = Projection(None, own, PARTS)
            else:
                if x.shape[-1] == waiting.width and own.startswith(f"{waiting.name}."):
                    waiting.near = own
                continue
            self._taken[waiting.name][own] = projection
            del self._waiting[waiting.name]
            return

    def _judged(self, module: nn.Module, own: str, x: Tensor, result: Any) -> Projection:
        """Return what a module that takes the output makes of it."""
        projection = _projection(module, own, self._modules.get(own.rpartition(".")[0]))
        weight = projection.weight
        if weight is None:
            return projection
        if weight.shape[1] != x.shape[-1]:  # a block for each group of heads
            return Projection(None, own, PARTS)
        if type(module).forward is not nn.Linear.forward and not _multiplies(module, weight, x, result):
            return Projection(None, own, PACKED)
        return projection


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or hasattr(module, "in_features") or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a module is the Conv1D of GPT-2: a linear one with a weight [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _projection(module: nn.Module, name: str, around: nn.Module | None) -> Projection:
    """Return a linear module as a projection; `around` is the module that holds it."""
    weight: Any = getattr(module, "weight", None)
    plain = type(weight) in (Tensor, nn.Parameter) and weight.ndim == 2 and weight.dtype in PLAIN
    if not plain or weight.device.type == "meta":
        return Projection(None, name, PACKED)
    if getattr(around, "base_layer", None) is module:
        return Projection(None, name, ADAPTED)
    return Projection((weight.T if _is_transposed(module) else weight).detach(), name, None)


def _multiplies(module: nn.Module, weight: Tensor, x: Tensor, result: Any) -> bool:
    """Return whether a module with a forward pass of its own multiplied the last row by its weight, bias aside."""
    if not isinstance(result, Tensor) or result.shape[-1] != weight.shape[0]:
        return False
    with torch.no_grad():
        bias = getattr(module, "bias", None)
        row = F.linear(x.reshape(-1, x.shape[-1])[-1].to(weight.dtype), weight, bias if torch.is_tensor(bias) else None)
        own = result.reshape(-1, result.shape[-1])[-1].to(row.dtype)
        near = 16 * torch.finfo(row.dtype).eps * float(x.shape[-1]) ** 0.5
        return torch.allclose(row, own, rtol=near, atol=near * float(row.abs().max()))


def _same_memory(x: Tensor, outputs: Sequence[Tensor]) -> bool:
    return len(outputs) == 1 and x.data_ptr() == outputs[0].data_ptr()


def _is(x: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Return whether [.., H * V] are some outputs [B, H, T, V], joined along T, whatever their number format."""
    joined = [output.transpose(1, 2) for output in outputs]  # B T H V
    if _same_memory(x, outputs) and x.is_contiguous() and joined[0].is_contiguous():
        return True
    batch = len(joined[0])
    forms = [x.reshape(batch, -1, x.shape[-1])]  # B T H*V
    if x.ndim == 3 and x.shape[1] == batch:
        forms.append(x.transpose(0, 1))
    for form in forms:
        ends = ((form[:, 0], joined[0][:, 0]), (form[:, -1], joined[-1][:, -1]))
        if all(_equal(one, other) for one, other in ends) and _equal(form, torch.cat(joined, dim=1)):
            return True
    return False


def _equal(x: Tensor, heads: Tensor) -> bool:
    """Return whether [.., H * V] are the numbers of [.., H, V]."""
    return torch.equal(x, heads.flatten(-2).to(x.dtype))
