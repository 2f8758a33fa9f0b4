"""Attention that is asked of torch itself (floor 3): every such call in a thread, led through a function.

A plain module asks for attention by `F.scaled_dot_product_attention`, or by `nn.MultiheadAttention`, which calls
`F.multi_head_attention_forward`. Both tell the function modes of `torch.overrides`; `PlainCalls` is one. It brings what
a call was given to one form, `PlainCall`, has that computed, and returns the outputs in the caller's form.

Of multi-head attention torch's own code runs, the projections and all, on a path that asks for no weights: that one
calls `F.scaled_dot_product_attention`. While a mode is at work torch tells no mode of what happens inside it; so it is
a copy of that code that runs, and in the copy the name `scaled_dot_product_attention` means ours. Where the caller
wants the weights back, and `nn.MultiheadAttention` does unless it is told not to, they are computed by torch's slow
path beside it. These weights are torch's own: a cut does not change them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from types import FunctionType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wherefrom.errors import InputError, ModelError

What: TypeAlias = Literal["scaled_dot_product_attention", "multi_head_attention"]
ASKED = frozenset({F.scaled_dot_product_attention, F.multi_head_attention_forward})
INNER = "scaled_dot_product_attention"
MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
UNDROPPED = "Call model.eval() first: weights that are dropped at random have no log-sum-exp."


unseen = torch._C.DisableTorchFunction
"""A context in which no mode is told of torch's functions: for computations of our own, of which no mode is to know,
ours or anybody else's. A mode costs some microseconds at each of their many small steps."""


@dataclass(frozen=True)
class PlainCall:
    """One call of torch's attention.

    Attributes:
        what: which function was called.
        q: [B, H, T, D].
        k: [B, K, S, D], of a batch of 1 where that serves all, as in v and the mask.
        v: [B, K, S, V].
        mask: as it arrived, bool or added, [B or 1, H or 1, T or 1, S]; None without one.
        causal: row i reads column j <= i, beside the mask.
        scale: of the scores.
    """

    what: What
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float


class _Handled(local):
    inside = False


_HANDLED = _Handled()


def is_handled() -> bool:
    """Return whether what this thread runs is being handled: no call of attention is to be taken there."""
    return _HANDLED.inside


@contextmanager
def handled() -> Iterator[None]:
    """Mark what this thread runs inside as handled, such as the kernel that computes what was taken."""
    before, _HANDLED.inside = _HANDLED.inside, True
    try:
        yield
    finally:
        _HANDLED.inside = before


class PlainCalls(TorchFunctionMode):
    """Leads the calls of torch's attention in this thread, while it is entered, through a function.

    Args:
        running: returns the module whose code runs, or None where it is no business of ours: then torch computes.
        attend: given that module and the call, returns the outputs [B, H, T, V].
    """

    def __init__(
        self,
        running: Callable[[], nn.Module | None],
        attend: Callable[[nn.Module, PlainCall], Tensor],
    ) -> None:
        super().__init__()
        self._running, self._attend = running, attend
        self._inner = _inner_code(self._inside)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, attention by ours."""
        if func not in ASKED or is_handled() or self._running() is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        run = self._outright if func is F.scaled_dot_product_attention else self._multi_head
        return run(*args, **(kwargs or {}))

    def _outright(self, *args: Any, **named: Any) -> Tensor:
        return self._take("scaled_dot_product_attention", *args, **named)

    def _inside(self, *args: Any, **named: Any) -> Tensor:
        return self._take("multi_head_attention", *args, **named)

    def _multi_head(self, *args: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        given = MULTI_HEAD.bind(*args, **named)
        given.apply_defaults()
        own = given.arguments
        _refuse_dropout(own["dropout_p"] if own["training"] else 0.0)
        weights = None
        if own["need_weights"]:
            with handled():
                weights = F.multi_head_attention_forward(*args, **named)[1]
            own["is_causal"] = False  # a hint only, which the path with weights does not take
        own["need_weights"] = False
        output, _ = self._inner(*given.args, **given.kwargs)
        return output, weights

    def _take(self, what: What, *args: Any, **named: Any) -> Tensor:
        """Compute a call of `F.scaled_dot_product_attention`, whoever made it."""
        module = self._running()
        arrived = _Arrived(*args, **named)
        _refuse_dropout(arrived.dropout_p)
        call = arrived.call(what)
        if call is None or module is None:  # torch says best what is wrong with it
            return F.scaled_dot_product_attention(*args, **named)
        with handled():
            output = self._attend(module, call)
        return arrived.restored(output)


@dataclass(frozen=True)
class _Arrived:
    """The arguments of `F.scaled_dot_product_attention`, by its own names: q, k and v [..., T, D].

    Leading axes are broadcast. The last of them are the heads where there are two or more; one alone is the batch, of
    one head; all but the last, where there are more, are one batch to us.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def call(self, what: What) -> PlainCall | None:
        """Return the call in our form; None where the arrays do not fit one another."""
        q, k, v, mask = self.query, self.key, self.value, self.attn_mask
        if any(x.is_nested for x in (q, k, v)):
            raise InputError(
                "the arrays of an attention call",
                expected="texts padded to one length",
                given="nested tensors",
                way_out="Pad them: torch.nested.to_padded_tensor, and a mask.",
            )
        if min(x.ndim for x in (q, k, v)) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
            return None
        try:
            q, k, v = self._by_head(*(self._of_four_axes(x) for x in (q, k, v)))
            _broadcast(*(x.shape[:1] for x in (q, k, v)))
            if mask is not None:
                mask = mask[(None,) * (2 - mask.ndim)]
                mask = self._of_four_axes(mask.expand(*mask.shape[:-1], k.shape[-2]))
                mask.expand(max(len(q), len(k), len(v)), *q.shape[1:3], k.shape[-2])
        except RuntimeError:  # shapes that cannot be broadcast
            return None
        if k.shape[1] != v.shape[1] or not k.shape[1] or q.shape[1] % k.shape[1] or not k.shape[2]:
            return None
        scale = q.shape[-1] ** -0.5 if self.scale is None else float(self.scale)
        return PlainCall(what, q, k, v, mask, self.is_causal, scale)

    def restored(self, output: Tensor) -> Tensor:
        """Return outputs [B, H, T, V] with the axes that torch would give them."""
        axes = self._axes
        if axes < 4:
            return output[(slice(None),) * (axes - 2) + (0,) * (4 - axes)]
        return output.reshape(*self._texts, *output.shape[1:]) if axes > 4 else output

    @property
    def _axes(self) -> int:
        return max(x.ndim for x in (self.query, self.key, self.value))

    @property
    def _texts(self) -> tuple[int, ...]:
        """The leading axes before that of the heads, where there are more than one."""
        arrays = [self.query, self.key, self.value]
        return _broadcast(*(x.shape[:-3] for x in arrays))

    def _of_four_axes(self, x: Tensor) -> Tensor:
        axes = self._axes
        x = x[(None,) * (axes - x.ndim)]
        if axes == 3:
            return x.unsqueeze(1)
        if axes > 4:
            return x.expand(*self._texts, *x.shape[-3:]).flatten(0, -4)
        return x[(None,) * (4 - axes)]

    def _by_head(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return arrays of H, K and K heads, as we have them: torch broadcasts heads, or repeats them in groups."""
        if self.enable_gqa:
            if k.shape[1] != v.shape[1]:
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            return q, k, v
        (heads,) = _broadcast(*(x.shape[1:2] for x in (q, k, v)))
        q = q.expand(-1, heads, -1, -1)
        if k.shape[1] != v.shape[1]:
            k, v = (x.expand(-1, heads, -1, -1) for x in (k, v))
        return q, k, v


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _refuse_dropout(dropout: float) -> None:
    if dropout > 0.0:
        raise InputError(
            "an attention call", expected="no dropout", given=f"a dropout of {dropout:g}", way_out=UNDROPPED
        )


def _inner_code(attention: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return torch's multi-head attention with another `scaled_dot_product_attention` in it, for its own eyes alone.

    Raises:
        ModelError: torch's code does not call it by that name any more.
    """
    torchs: Any = F.multi_head_attention_forward
    asks = "has_torch_function"  # whether a mode wants the whole: one has it
    if not {INNER, asks} <= set(torchs.__code__.co_names):
        raise ModelError(
            "torch.nn.functional.multi_head_attention_forward",
            expected=f"a call of {INNER} in it",
            given=f"torch {torch.__version__}, where there is none",
            way_out="Install the torch that the project's constraints.txt names.",
        )
    names = {**vars(F), INNER: attention, asks: lambda _: False}
    return FunctionType(torchs.__code__, names, torchs.__name__, torchs.__defaults__, torchs.__closure__)
