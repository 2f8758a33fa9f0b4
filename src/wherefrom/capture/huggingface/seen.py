"""One execution of attention in a transformers model (floor 3): before it is computed, and after.

`interface` makes a `Given` of what the model hands to its attention; whoever watches the model computes it, by
`Given.attend`, and may keep it as a `Seen`. The letters of the shapes are those of `wherefrom.attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from wherefrom.attention import Mask
from wherefrom.capture.fused import Attended, Limits, attend, attend_masked
from wherefrom.capture.plain_calls import unseen
from wherefrom.errors import InputError

if TYPE_CHECKING:
    from wherefrom.capture.huggingface.masks import Readable


@dataclass
class Given:
    """One execution of attention, before it is computed.

    Attributes:
        name: the module's path in the model.
        turn: how many times the module had run before in this pass.
        module: the module itself.
        q: [B, H, T, D], as the model hands it over.
        k: [B, K, S, D].
        v: [B, K, S, V].
        readable: who may read whom, and what is added to the scores.
        scale: what q . k is multiplied by.
        softcap: bound on a score's size; None without one.
        sinks: [H] logits; None without.
        kernel: what computes it where the model has an attention implementation of its own; None: ours.
        replay: True where the backward pass computes again what it was not given room to keep (gradient
            checkpointing): the same execution as before, with the same turn, and not one more.
    """

    name: str
    turn: int
    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    readable: Readable
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    kernel: Callable[[], Attended] | None = None
    replay: bool = False

    def attend(self, *, removed: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None) -> Attended:
        """Return outputs [B, H, T, V] and lse [B, H, T] of this execution, changed where something is given.

        Args:
            removed: bool, broadcastable to [B, H, T, S]: edges that are not permitted beside those of the mask.
            k: other keys, of the same shape.
            v: other values, of the same shape.

        Raises:
            InputError: `removed` is not bool, or does not fit; no keys at all.
        """
        if self.kernel is not None and removed is None and k is None and v is None:
            return self.kernel()
        with unseen():
            return self._attend(removed, k, v)

    def _attend(self, removed: Tensor | None, k: Tensor | None, v: Tensor | None) -> Attended:
        """Compute it by our kernels."""
        k, v = self.k if k is None else k, self.v if v is None else v
        shared = self.readable.shared
        if removed is None and shared is not None and self.readable.bias is None:
            return attend_masked(self.q, k, v, mask=shared, scale=self.scale, softcap=self.softcap, sinks=self.sinks)
        limits = self.readable.limits(self.q)
        if removed is not None:
            limits = _without(limits, self._edges(removed), self.q)
        return attend(self.q, k, v, limits=limits, scale=self.scale, softcap=self.softcap, sinks=self.sinks)

    def _edges(self, removed: Tensor) -> Tensor:
        """Return the edges to remove as bool [B|1, H|1, T, S], or refuse them."""
        size = (max(len(self.q), len(self.k)), self.q.shape[1], self.q.shape[2], self.k.shape[2])
        fits = removed.dtype == torch.bool and removed.ndim <= 4
        removed = removed[(None,) * (4 - removed.ndim)] if fits else removed
        if not fits or any(own not in (1, most) for own, most in zip(removed.shape, size, strict=True)):
            raise InputError(
                "the edges to remove",
                expected=f"a bool tensor that fits [B, H, T, S] = {size}",
                given=f"{removed.dtype} of shape {tuple(removed.shape)}",
                way_out="Give True where a destination may not read a source.",
            )
        return removed.expand(*removed.shape[:2], *size[2:]).to(self.q.device)


def _without(limits: Limits, removed: Tensor, like: Tensor) -> Limits:
    """Return the kernel's limits without some edges more, bool [B|1, H|1, T, S]."""
    permitted = ~removed
    if limits.bias is not None:
        permitted = permitted & (limits.bias > -torch.inf)
    if limits.causal:
        rows, columns = (torch.arange(size, device=removed.device) for size in removed.shape[2:])
        permitted = permitted & (columns[None, :] <= rows[:, None])
    return Limits.of_permitted(permitted, like, added=limits.bias)


@dataclass
class Seen:
    """One execution of attention that was computed: all that is needed to compute any of its weights again.

    Attributes:
        name: the module's path in the model.
        turn: how many times the module had run before in this pass.
        q: [B, H, T, D], as the kernel was given it.
        k: [B, K, S, D].
        v: [B, K, S, V].
        masks: one for each text of the batch.
        bias: [B or 1, H or 1, T, S], finite, added to the scores after the softcap; None without one.
        sinks: [H] logits; None without.
        scale: what q . k is multiplied by.
        softcap: bound on a score's size; None without one.
        output: [B, H, T, V].
        lse: float32 [B, H, T], -inf for a row that may read nothing.
        kernel: which kernel computed it.
        offsets: absolute positions of the first row and of the first key.
    """

    name: str
    turn: int
    q: Tensor
    k: Tensor
    v: Tensor
    masks: tuple[Mask, ...]
    bias: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float | None
    output: Tensor
    lse: Tensor
    kernel: str
    offsets: tuple[int, int]

    @classmethod
    def of(cls, given: Given, attended: Attended) -> Seen:
        """Return what was computed of what was given."""
        return cls(
            name=given.name,
            turn=given.turn,
            q=given.q,
            k=given.k,
            v=given.v,
            masks=given.readable.masks,
            bias=given.readable.bias,
            sinks=given.sinks,
            scale=given.scale,
            softcap=given.softcap,
            output=attended.output,
            lse=attended.lse,
            kernel=attended.kernel,
            offsets=given.readable.offsets,
        )


AttentionFunction: TypeAlias = Callable[[Given], Tensor]
"""Computes the outputs [B, H, T, V] of one execution."""
