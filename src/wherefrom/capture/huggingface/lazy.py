"""A mask as a rule (floor 3): no n x n tensor for a causal or window mask, padded or not.

A `LazyMask` is a tensor with the right shape, number format and device that holds a rule alone. A model that only
passes it on never pays for n x n numbers; a model that does anything else with it works with the tensor that
transformers would have made, made at that moment. `maker` beside it makes them; `masks` turns them into what a
recording keeps. Equal masks are one object, `interned`, whatever they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from wherefrom.attention import Mask

_POOL: WeakValueDictionary[tuple[Any, ...], Mask] = WeakValueDictionary()
_NOTES = WeakTensorKeyDictionary()


class Note(NamedTuple):
    """What is known of a mask that a maker made.

    Attributes:
        offsets: absolute positions of the first row and of the first key.
        tokens: bool [B, S], False at pads; None: there are none.
    """

    offsets: tuple[int, int]
    tokens: NDArray[np.bool_] | None


def interned(mask: Mask) -> Mask:
    """Return the mask itself, or an equal one that is in use, so that equal masks are one object in all layers."""
    arrays = (mask.padding, mask.explicit)
    sums = (None if a is None else (a.shape, hash(np.packbits(a).tobytes())) for a in arrays)
    key = (mask.causal, mask.window, mask.offset, *sums)
    held = _POOL.get(key)
    if held is not None and held == mask:
        return held
    _POOL[key] = mask
    return mask


def note_of(mask: Tensor) -> Note | None:
    """Return what is known of a mask, None where no maker made it."""
    if isinstance(mask, LazyMask):
        return mask.note
    held: Note | None = _NOTES.get(mask)  # type: ignore[no-untyped-call]
    return held


def keep_note(mask: Tensor, known: Note) -> None:
    """Keep what is known of a mask, as long as it is alive."""
    _NOTES[mask] = known


def unreached(rule: Mask, rows: int, columns: int) -> NDArray[np.bool_]:
    """Return the columns, bool [S], that no row would read under a rule's causal part and window."""
    j = np.arange(columns)
    first, last = rule.offset, rule.offset + rows - 1
    beyond = np.zeros(columns, dtype=np.bool_)
    if rule.causal:
        beyond |= j > last
    if rule.window is not None:
        beyond |= (j <= first - rule.window) | (j >= last + rule.window)
    return beyond


class LazyMask(Tensor):
    """A mask [B, 1, T, S] as a rule, of the shape, number format and device of the tensor that transformers would make.

    Whatever needs more than those, and is not a slice or a conversion that leaves all as it is, is done with that
    tensor, which is made then, once. From then on that tensor says who may read whom, and not the rule: a model may
    write into it.

    Attributes:
        masks: one for each text, rows and columns counted from 0; the same object where they are equal.
        note: the absolute positions, and the padding.
    """

    masks: tuple[Mask, ...]
    note: Note
    _make: Callable[[], Tensor]
    _full: Tensor | None

    @staticmethod
    def __new__(
        cls,
        masks: tuple[Mask, ...],
        note: Note,
        sizes: tuple[int, int],
        make: Callable[[], Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> LazyMask:
        """Return the mask of rows and columns, `sizes`; `make` gives the tensor of the same content."""
        shape = (len(masks), 1, *sizes)
        self: LazyMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        self.masks, self.note, self._make, self._full = masks, note, make, None
        return self

    @property
    def made(self) -> bool:
        """Whether the tensor was needed, so that it says who may read whom, and no longer the rule."""
        return self._full is not None

    def in_full(self) -> Tensor:
        """Return the tensor that transformers would have made; the same one every time."""
        if self._full is None:
            with torch.no_grad():
                self._full = self._make()
            keep_note(self._full, self.note)
        return self._full

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer for shape, number format, device and what leaves a mask as it is; else go on with the tensor."""
        kwargs = kwargs or {}
        mask = args[0] if args else None
        if isinstance(mask, LazyMask) and not mask.made:
            if func in _ANSWERED:
                return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
            if _leaves(mask, func, args[1:], kwargs):
                return mask
        args, kwargs = _unwrapped(args, kwargs)
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls the class method, as declared here
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Go on with the tensor, where torch itself and not a model's code met the mask first."""
        args, kwargs = _unwrapped(args, kwargs or {})
        return func(*args, **kwargs)


def _unwrapped(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the tensors of all lazy masks in their places."""
    real: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(LazyMask, LazyMask.in_full, (tuple(args), kwargs))
    return real


def _getters(*names: str) -> Iterator[Any]:
    for name in names:
        yield getattr(Tensor, name).__get__


_ANSWERED = {
    *_getters("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_cpu", "is_meta"),
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.__len__),
    *(Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex, torch.numel),
}
"""What a lazy mask answers without its tensor: the shape, the number format and the device."""


def _leaves(mask: LazyMask, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation leaves a mask as it is, so that it is its own result."""
    if func is Tensor.__getitem__:
        return _keeps_all(mask.shape, args[0])
    if func is Tensor.contiguous:
        return not args and not kwargs
    if func is Tensor.expand:
        shape = args[0] if len(args) == 1 and isinstance(args[0], Sequence) else args
        sizes = zip(shape, mask.shape, strict=False)
        return not kwargs and len(shape) == mask.ndim and all(type(a) is int and a in (-1, b) for a, b in sizes)
    if func is not Tensor.to:
        return False
    if kwargs.keys() - {"device", "dtype", "non_blocking", "copy"} or kwargs.get("copy"):
        return False
    wanted = [*args, *(kwargs[name] for name in ("device", "dtype") if kwargs.get(name) is not None)]
    return all(_is_already(mask, value) for value in wanted)


def _is_already(mask: LazyMask, wanted: Any) -> bool:
    if isinstance(wanted, torch.dtype):
        return mask.dtype == wanted
    if isinstance(wanted, str | torch.device):
        return mask.device == torch.device(wanted)
    if isinstance(wanted, Tensor):
        return (mask.dtype, mask.device) == (wanted.dtype, wanted.device)
    return wanted is False  # non_blocking and copy, by place


def _keeps_all(shape: torch.Size, index: Any) -> bool:
    """Whether an index, such as [:, :, :, :S], takes every entry of every axis."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(not (part is Ellipsis or isinstance(part, slice)) for part in parts):
        return False
    if sum(part is Ellipsis for part in parts) > 1 or len(parts) > len(shape) + (Ellipsis in parts):
        return False
    before = next((n for n, part in enumerate(parts) if part is Ellipsis), len(parts))
    behind = parts[before + 1 :]
    sizes = [*shape[:before], *shape[len(shape) - len(behind) :]]
    slices = [*parts[:before], *behind]
    return all(_whole(part, size) for part, size in zip(slices, sizes, strict=True))


def _whole(part: slice, size: int) -> bool:
    start, stop, step = part.start, part.stop, part.step
    if any(bound is not None and not isinstance(bound, int) for bound in (start, stop, step)):
        return False
    return start in (None, 0) and (stop is None or stop >= size) and step in (None, 1)
