"""Who may read whom in one execution of a transformers model's attention (floor 3), as a rule and for the kernel.

An attention function of transformers is given a mask, and sometimes a position bias or the keys that an indexer chose.
`readable` turns them into one `Readable`: the rule that a recording keeps for each text, what is added to the scores,
and the kernel's form of both. It is made once for the tensors that it comes from, so that all layers that are given the
same mask share it, and so do the masks in it: an equal mask is the same object, whatever tensor it came from.

`mask_maker` and `LazyMask`, from beside it, belong to the same door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from wherefrom.capture.fused import Limits
from wherefrom.capture.huggingface.arriving import Sizes, chosen, parts, require_tensor
from wherefrom.capture.huggingface.lazy import LazyMask, interned, note_of
from wherefrom.capture.huggingface.maker import mask_maker
from wherefrom.capture.huggingface.recognised import recognised
from wherefrom.mask import CAUSAL, Mask

__all__ = ["LazyMask", "Readable", "mask_maker", "readable"]

EVERYTHING = Mask.bidirectional()
HELD = 4
"""How many results are remembered for one tensor."""


@dataclass(frozen=True, eq=False)
class Readable:
    """Who may read whom in one execution, and what is added to the scores.

    Attributes:
        masks: one for each text; rows and columns of this execution, so that `offset` is the first row's distance from
            the first key.
        shared: the rule that says it for all texts without arrays, where there is one and nothing is added to the
            scores: the kernel then needs no mask tensor. None otherwise.
        bias: [B or 1, H or 1, T, S], in float32 at least: finite, 0 where nothing is added or a source is not
            permitted; it has a gradient where what it was made of has one. None where it is 0 everywhere.
        offsets: absolute positions of the first row and of the first key.
        sizes: [B, H, T, S].
    """

    masks: tuple[Mask, ...]
    shared: Mask | None
    bias: Tensor | None
    offsets: tuple[int, int]
    sizes: Sizes
    _first: int | None = field(default=None, repr=False)  # the first row's distance from the first key, if it was said
    _limits: dict[tuple[torch.dtype, torch.device], Limits] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def of(
        cls, masks: tuple[Mask, ...], bias: Tensor | None, offsets: tuple[int, int] | None, sizes: Sizes
    ) -> Readable:
        """Return what some masks, one a text, and a bias say together; the masks tell offsets that are not known."""
        alike = all(mask is masks[0] for mask in masks)
        ruled = masks[0].padding is None and masks[0].explicit is None
        # Windows are computed in strips that take rows to stand among the columns.
        inside = masks[0].window is None or masks[0].offset + sizes.rows <= sizes.columns
        shared = masks[0] if alike and ruled and inside and bias is None else None
        first = None if offsets is None else offsets[0] - offsets[1]
        return cls(masks, shared, bias, offsets or (masks[0].offset, 0), sizes, first)

    def permitted(self) -> Tensor:
        """Return the whole map, bool [B or 1, H or 1, T, S]; T x S bytes for each."""
        return _dense(self.masks, self.sizes)

    def limits(self, like: Tensor) -> Limits:
        """Return the kernel's form: -inf where a source is not permitted, plus the bias. It is made once.

        Args:
            like: gives the number format and the device; a bias that is added stays float32 at least.
        """
        key = like.dtype, like.device
        if key not in self._limits:
            self._limits[key] = self._limits_for(like)
        return self._limits[key]

    def _limits_for(self, like: Tensor) -> Limits:
        if self.shared is not None:
            return Limits.of_mask(self.shared, self.sizes.rows, self.sizes.columns, like)
        bias = self.bias
        if bias is not None:
            bias = bias.to(like.device, torch.promote_types(like.dtype, torch.float32))
        if all(mask.all_permitted for mask in self.masks):
            return Limits(bias=bias)
        return Limits.of_permitted(self.permitted().to(like.device), like, added=bias)


def readable(
    given: Tensor | None,
    q: Tensor,
    k: Tensor,
    *,
    added: Tensor | None = None,
    indices: Tensor | None = None,
    causal: bool = False,
) -> Readable:
    """Return who may read whom in one execution of attention.

    Args:
        given: the mask as it arrives. None: everything may be read. A `LazyMask`. Bool, True where permitted. Numbers,
            added to the scores: a source is not permitted where one is at most half the lowest number of its format.
            [B or 1, H or 1, T or 1, S], fewer axes standing for the last ones; or padding [B, S], bool or whole
            numbers, 0 for a pad. Columns beyond S are left out.
        q: [B, H, T, D].
        k: [B, K, S, D].
        added: numbers that are added to the scores, such as a position bias, of the same shapes; they may hide too.
        indices: whole numbers [B or 1, T, n] or [B or 1, H or 1, T, n]: the columns that a row may read at most; one
            that is none, such as -1, stands for nothing.
        causal: no row reads a column behind its own number, counted from the first of each.

    Raises:
        InputError: a mask, bias or indices of another shape or format, or a number among them that is NaN or +inf.
    """
    require_tensor("the mask", given)
    sizes = Sizes(max(q.shape[0], k.shape[0]), q.shape[1], q.shape[2], k.shape[2])
    base = _remembered(_as_it_stands(given, sizes), added, sizes, causal)
    return base if indices is None else _restricted(base, chosen(indices, sizes), base.bias)


class _State(NamedTuple):
    """What shows that a tensor was written to: its count of changes, or, where it keeps none, a copy."""

    changes: int | Tensor
    place: int

    @classmethod
    def of(cls, tensor: Tensor) -> _State | None:
        """Return the state of a tensor; None for a rule, which nobody can write to."""
        if isinstance(tensor, LazyMask):
            return None
        return cls(tensor.clone() if tensor.is_inference() else tensor._version, tensor.data_ptr())

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is as it was."""
        if isinstance(self.changes, Tensor):
            return tensor.data_ptr() == self.place and torch.equal(tensor, self.changes)
        return (tensor._version, tensor.data_ptr()) == (self.changes, self.place)


class _Entry(NamedTuple):
    """A `Readable`, the tensor that it was made of beside the one that owns the entry, and the state of both."""

    beside: TensorWeakRef | None
    states: tuple[_State | None, ...]
    readable: Readable


_MADE = WeakTensorKeyDictionary()
"""For a tensor that is alive: what was made of it. Nothing in it may keep that tensor alive."""


def _remembered(given: Tensor | None, added: Tensor | None, sizes: Sizes, causal: bool) -> Readable:
    """Return what was made of the same tensors before, if they are as they were; else make it."""
    tensors = [tensor for tensor in (added, given) if tensor is not None]
    if not tensors or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return _made(given, added, sizes, causal)  # a bias with a gradient would keep its tensor alive
    owner, beside = tensors[0], given if added is not None else None
    held: dict[Any, _Entry] = _MADE.setdefault(owner, {})  # type: ignore[no-untyped-call]
    key = sizes, causal, None if beside is None else id(beside)
    entry = held.get(key)
    if entry is not None and (entry.beside is None or entry.beside() is beside):
        states = zip(tensors, entry.states, strict=True)
        if all(state is None or state.holds(tensor) for tensor, state in states):
            return entry.readable
    made = _made(given, added, sizes, causal)
    if len(held) >= HELD:  # a tensor may outlive many that stood beside it
        held.clear()
    states_now = tuple(_State.of(tensor) for tensor in tensors)
    held[key] = _Entry(None if beside is None else TensorWeakRef(beside), states_now, made)
    return made


def _made(given: Tensor | None, added: Tensor | None, sizes: Sizes, causal: bool) -> Readable:
    """Return what a mask says, or, of a mask and numbers that are added, what both say."""
    if added is None:
        return _of_mask(given, sizes, causal)
    base = _remembered(given, None, sizes, causal)
    allowed, bias = parts("the bias", added, sizes)
    if allowed is None and bias is None:
        return base
    if base.bias is not None:
        bias = base.bias if bias is None else base.bias.to(bias.device) + bias
    return _restricted(base, allowed, bias)


def _of_mask(given: Tensor | None, sizes: Sizes, causal: bool) -> Readable:
    """Return what a mask says, and `causal` beside it."""
    note = None if given is None else note_of(given)
    masks = (interned(CAUSAL if causal and given is None else EVERYTHING),) * sizes.texts
    allowed: Tensor | None = None
    bias: Tensor | None = None
    if isinstance(given, LazyMask):
        masks = given.masks * (sizes.texts // len(given.masks))
    elif given is not None:
        allowed, bias = parts("the mask", given, sizes)
    if causal and given is not None:
        earlier = torch.ones(sizes[2:], dtype=torch.bool, device=given.device).tril()[None, None]
        allowed = earlier if allowed is None else allowed & earlier
    base = Readable.of(masks, None, None if note is None else note.offsets, sizes)
    tokens: Sequence[NDArray[np.bool_] | None] = _tokens(masks)
    if note is None:
        tokens = (None,) * sizes.texts  # any column without a reader may be a pad
    elif note.tokens is not None:
        tokens = tuple(note.tokens[:, : sizes.columns])
    return _restricted(base, allowed, bias, tokens)


def _tokens(masks: Sequence[Mask]) -> tuple[NDArray[np.bool_], ...]:
    """Return the columns that are no pads under masks, one a text."""
    return tuple(np.ones((), dtype=np.bool_) if mask.padding is None else mask.padding for mask in masks)


def _restricted(
    base: Readable, allowed: Tensor | None, bias: Tensor | None, tokens: Sequence[NDArray[np.bool_] | None] = ()
) -> Readable:
    """Return what is readable of `base` where a map [B|1, H|1, T|1, S] allows it, with another bias.

    `tokens` are the columns of each text that are no pads; those of `base` unless given.
    """
    masks = base.masks
    if allowed is not None:
        if not all(mask.all_permitted for mask in masks):
            allowed = allowed & base.permitted().to(allowed.device)
        masks = _rules(allowed, base, tokens or _tokens(masks))
    if bias is not None:
        bias = _only_where(masks, bias, base.sizes)
    return Readable.of(masks, bias, None if base._first is None else base.offsets, base.sizes)


def _rules(allowed: Tensor, base: Readable, tokens: Sequence[NDArray[np.bool_] | None]) -> tuple[Mask, ...]:
    """Return the rules of a map [B|1, H|1, T|1, S], one a text."""
    for axis in (0, 1, 2):  # what is only spread over an axis is the same along it
        allowed = allowed.narrow(axis, 0, 1) if allowed.stride(axis) == 0 else allowed
    maps = allowed.cpu().numpy()
    if maps.shape[1] > 1:
        maps = np.broadcast_to(maps, (*maps.shape[:2], *base.sizes[2:]))
    pairs = zip(maps, tokens, strict=False)  # one map may be that of all texts, which then are padded alike
    texts = tuple(recognised(map_ if len(map_) > 1 else map_[0], base._first, own) for map_, own in pairs)
    return texts * (base.sizes.texts // len(texts))


def _only_where(masks: tuple[Mask, ...], bias: Tensor, sizes: Sizes) -> Tensor | None:
    """Return a bias [B|1, H|1, T, S] that is 0 where a source is not permitted; None where nothing is left."""
    if not all(mask.all_permitted for mask in masks):
        bias = torch.where(_dense(masks, sizes).to(bias.device), bias, 0.0)
    bias = bias.expand(*bias.shape[:2], *sizes[2:])
    return bias if bias.requires_grad or bool((bias != 0).any()) else None


def _dense(masks: Sequence[Mask], sizes: Sizes) -> Tensor:
    """Return the map of masks, one a text: bool [B or 1, H or 1, T, S], in CPU memory."""
    alike = all(mask is masks[0] for mask in masks)
    maps = [mask.dense(*sizes[2:]) for mask in (masks[:1] if alike else masks)]
    heads = max(1 if map_.ndim == 2 else len(map_) for map_ in maps)
    spread = [np.broadcast_to(map_, (heads, *sizes[2:])) for map_ in maps]
    return torch.from_numpy(np.stack(spread))


def _as_it_stands(given: Tensor | None, sizes: Sizes) -> Tensor | None:
    """Return the mask, as a rule only where it still is one and fits, else its tensor."""
    if not isinstance(given, LazyMask):
        return given
    fits = len(given.masks) in (1, sizes.texts) and tuple(given.shape)[2:] == sizes[2:]
    return given if fits and not given.made else given.in_full()
