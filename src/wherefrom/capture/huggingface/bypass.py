"""Attention that passes by the interface (floor 3): found while a model runs, counted and named.

Some modules compute attention by themselves, and no function that a model is given sees it: torch's
`F.scaled_dot_product_attention` and `F.multi_head_attention_forward` called outright, or a softmax of their own over
scores. A recording cannot hold these, so it says where they were. Only watching tells; what a model's class says of
itself does not.

What may be wrong in what is found. Torch's two functions are certain. A softmax is taken for attention where it is of
three dimensions or more, and either its module calls itself attention, or its result is soon multiplied with something,
matrix by matrix, in a module that does not call itself a router, a gate or the like. So a mixture of experts that names
itself otherwise and mixes by a matrix product is found without being attention; attention without a softmax (linear,
sigmoid, by hashing) and a softmax written out as exp and sum are missed. Nothing is looked at inside a call of
`torch.ops`, or in compiled or scripted code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wherefrom.capture.plain_calls import is_handled

SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
CALLS = {
    **dict.fromkeys(SOFTMAX, "softmax"),
    F.scaled_dot_product_attention: "scaled_dot_product_attention",
    F.multi_head_attention_forward: "multi_head_attention",
}
PRODUCTS = frozenset(
    {torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, Tensor.matmul, Tensor.bmm, Tensor.baddbmm}
    | {Tensor.__matmul__, Tensor.__rmatmul__}
)
SOON = 24
"""So many calls of torch after a softmax its product with the values is looked for: scaling, dropout, a change of
format and of shape lie between."""
ATTENTION = re.compile("att(n|ention)|mhsa|mha$", re.I)
OTHERWISE = re.compile("rout|gate|gating|expert|moe|hyper|mix|compress|quantiz|lm_?head|classif", re.I)


class Bypass(TorchFunctionMode):
    """Counts attention that runs in this thread, while it is entered, by modules of one model.

    Args:
        names: paths by the module's id.
        count: told (path, what) for each execution, `what` as in `wherefrom.recording.Gap`.
    """

    def __init__(self, names: Mapping[int, str], count: Callable[[str, str], None]) -> None:
        super().__init__()
        self._names, self._count = names, count
        self._waiting: list[_Waiting] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, and look at it."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in CALLS and not is_handled():
            self._look(CALLS[func], result)
        elif self._waiting:
            self._waiting = [one for one in self._waiting if not self._follow(one, func, args, result)]
        return result

    def _look(self, what: str, result: Any) -> None:
        if what == "softmax" and (not isinstance(result, Tensor) or result.ndim < 3):
            return
        module = running(self._names)
        if module is None:
            return
        name = self._names[id(module)]
        is_attention = what != "softmax" or _says(type(module).__name__, name.rpartition(".")[2])
        if is_attention:
            self._count(name, what)
        elif is_attention is None:
            self._waiting.append(_Waiting(name, [result]))

    def _follow(self, one: _Waiting, func: Any, args: Sequence[Any], result: Any) -> bool:
        """Return whether a softmax need not be waited for any longer, counted or not."""
        one.left -= 1
        given = args[1] if func is torch.einsum and isinstance(args[1], (list, tuple)) else args
        if any(arg is known for arg in given for known in one.forms):
            if func in PRODUCTS:
                self._count(one.name, "softmax")
                return True
            if isinstance(result, Tensor) and result.numel() == one.forms[0].numel():
                one.forms.append(result)
        return one.left == 0


def _says(*words: str) -> bool | None:
    """Return whether a module's names, the most telling one first, call it attention; None where they do not say."""
    for word in words:
        if ATTENTION.search(word):
            return True
        if OTHERWISE.search(word):
            return False
    return None


class _Waiting:
    """A softmax of which it is not known yet whether it is attention, and what became of it."""

    def __init__(self, name: str, forms: list[Tensor]) -> None:
        self.name, self.forms, self.left = name, forms, SOON


def running(names: Mapping[int, str]) -> nn.Module | None:
    """Return the innermost module with a name whose code runs in this thread; torch's own small ones do not count.

    The stack of Python's frames says it, and costs nothing until it is asked.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for word in ("self", "module"):
            module = frame.f_locals.get(word)
            if id(module) in names and not _small(module):
                return module
        frame = frame.f_back
    return None


def _small(module: Any) -> bool:
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.MultiheadAttention)
