"""Which sources a destination may read (floor 1): the rule of causal, window, padding and explicit masks.

It takes only errors and checks from below. `wherefrom.attention` beside it gives `Mask` on under the same name and
declares the shape letters. Rows and columns are indices; positions are what the rule compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.checks import whole
from wherefrom.errors import InputError

Bools: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = range | Sequence[int] | NDArray[np.integer[Any]]
FROM_ZERO = "Rows and offsets count from 0."


@dataclass(frozen=True, eq=False)
class Mask:
    """Which sources a destination may read, as a rule: nothing T x S is stored unless ``explicit`` is given.

    Destination row r stands at position i = offset + r; source column j stands at position j. Source j is
    permitted when every part that is given says so. Arrays are copied, and read-only.

    Args:
        causal: j <= i.
        window: a number of keys, the destination's own included: i - window < j <= i with ``causal``, and
            |i - j| < window without. A window of 1 permits a destination itself only.
        offset: position of the first destination row; with a cache of n earlier keys it is n.
        padding: bool [S], True where the source is a real token; [B, S] for a batch whose texts differ in length.
        explicit: bool [T, S], or [H, T, S] when heads differ; True where permitted.

    Raises:
        InputError: a window below 1, an offset below 0, an array that is not bool or of wrong dimensions.
    """

    causal: bool = True
    window: int | None = None
    offset: int = 0
    padding: Bools | None = None
    explicit: Bools | None = None

    def __post_init__(self) -> None:
        keep = object.__setattr__  # the class is frozen for everyone else
        keep(self, "causal", bool(self.causal))
        keep(self, "offset", whole("the mask's offset", self.offset, least=0, way_out=FROM_ZERO))
        if self.window is not None:
            way_out = "A window counts keys, the destination's own included; None means no window."
            keep(self, "window", whole("the mask's window", self.window, least=1, way_out=way_out))
        if self.padding is not None:
            keep(self, "padding", _bools("the mask's padding", self.padding, {1: "[S]", 2: "[B, S]"}))
        if self.explicit is not None:
            keep(self, "explicit", _bools("the explicit mask", self.explicit, {2: "[T, S]", 3: "[H, T, S]"}))

    @classmethod
    def bidirectional(
        cls, *, window: int | None = None, padding: Bools | None = None, explicit: Bools | None = None
    ) -> Mask:
        """Return an encoder's mask: a destination may read every source, before it or after it."""
        return cls(causal=False, window=window, padding=padding, explicit=explicit)

    @property
    def only_causal(self) -> bool:
        """True where j <= i is the whole rule, at any offset: what fused kernels do without a mask array."""
        return self.causal and self.window is None and self.padding is None and self.explicit is None

    @property
    def all_permitted(self) -> bool:
        """True where every destination may read every source, however many there are."""
        return not self.causal and self.window is None and self.padding is None and self.explicit is None

    def within(self, S: int) -> Mask:
        """Return the same rule for S sources: a window that no pair of them can leave is dropped."""
        return replace(self, window=None) if self.window is not None and self.window >= S else self

    def piece(self, rows: slice, columns: slice) -> Mask:
        """Return the rule of a piece of the map, whose rows and columns count from 0 again; without an explicit mask.

        The first row must not stand before the first column.
        """
        padding = None if self.padding is None else self.padding[..., columns]
        return replace(self, offset=self.offset + rows.start - columns.start, padding=padding)

    def permitted(self, destinations: Indices, sources: Indices) -> Bools:
        """Return a piece of the map, bool [.., len(destinations), len(sources)], True where permitted.

        Both arguments are indices, of rows (0..T-1) and of columns (0..S-1), so a piece costs only its own
        size. The leading [H] is there when ``explicit`` has it, a leading [B, 1] when ``padding`` has a batch.

        Raises:
            InputError: an index below 0, or beyond the padding or the explicit mask.
        """
        rows = _indices("destination row", destinations, self._limit(-2))
        columns = _indices("source column", sources, self._limit(-1))
        i, j = self.offset + rows[:, None], columns[None, :]  # positions
        allowed = np.ones((rows.size, columns.size), dtype=np.bool_)
        if self.causal:
            allowed &= j <= i
        if self.window is not None:
            allowed &= np.abs(i - j) < self.window
        if self.padding is not None:
            padding = self.padding[..., columns]  # S or B S
            allowed = allowed & (padding if padding.ndim == 1 else padding[:, None, None, :])  # T S or B 1 T S
        if self.explicit is not None:
            allowed = allowed & self.explicit[..., rows[:, None], columns]  # [T, S] or [H, T, S]
        return allowed

    def dense(self, T: int, S: int) -> Bools:
        """Return the whole map, bool [T, S] ([H, T, S] when ``explicit`` has heads): T x S bytes a head.

        Raises:
            InputError: the padding or the explicit mask has another size.
        """
        if self.padding is not None and self.padding.shape[-1] != S:
            raise InputError(
                "the mask's padding",
                expected=f"one entry a source, {S}",
                given=f"{self.padding.shape[-1]}",
                way_out="Give True or False for each key.",
                shape=self.padding.shape,
            )
        if self.explicit is not None and self.explicit.shape[-2:] != (T, S):
            raise InputError(
                "the explicit mask",
                expected=f"{T} destinations by {S} sources",
                given=f"shape {self.explicit.shape}",
                way_out="Rows are destinations and columns are sources.",
                shape=self.explicit.shape,
            )
        return self.permitted(range(T), range(S))

    def reach(self, row: int, S: int) -> range:
        """Return the smallest range of the S columns with all that ``causal`` and ``window`` permit to a row.

        Padding and an explicit mask only take sources away within it.

        Raises:
            InputError: a row below 0.
        """
        position = self.offset + whole("the destination row", row, least=0, way_out=FROM_ZERO)
        last = position if self.causal else S - 1
        first = 0
        if self.window is not None:
            first = max(0, position - self.window + 1)
            last = min(last, position + self.window - 1)
        stop = min(S, last + 1)
        return range(min(first, stop), stop)

    def read(self, S: int) -> Bools:
        """Return which of the S columns of one text any row may read, bool [S], as padding and an explicit mask say."""
        found = np.ones(S, np.bool_) if self.padding is None else self.padding[:S].copy()
        if self.explicit is not None:
            found &= np.any(self.explicit.reshape(-1, self.explicit.shape[-1]), axis=0, keepdims=True)[0, :S]
        return found

    def describe(self) -> str:
        """Return the rule in words, such as "causal, window of 128 keys"."""
        parts = ["causal" if self.causal else "bidirectional"]
        if self.window is not None:
            parts.append(f"window of {self.window} key{'s' * (self.window != 1)}")
        if self.offset:
            parts.append(f"first destination at position {self.offset}")
        if self.padding is not None:
            gone = int((~self.padding).sum())
            parts.append(f"{gone} of {self.padding.size} sources {'is' if gone == 1 else 'are'} padding")
        if self.explicit is not None:
            parts.append(f"explicit mask of {' x '.join(map(str, self.explicit.shape))}")
        return ", ".join(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        arrays = [None if a is None else (a.shape, a.tobytes()) for a in (self.padding, self.explicit)]
        return (self.causal, self.window, self.offset, *arrays)

    def _limit(self, axis: int) -> int | None:
        """Return how many rows (axis -2) or columns (axis -1) the arrays have; None when there is none."""
        arrays = (self.explicit,) if axis == -2 else (self.padding, self.explicit)  # padding knows no rows
        sizes = [a.shape[axis] for a in arrays if a is not None]
        return min(sizes) if sizes else None


def _bools(what: str, value: ArrayLike, forms: dict[int, str]) -> Bools:
    """Return a read-only copy of a bool array whose number of dimensions is one of ``forms``."""
    array = np.array(value)
    if array.dtype != np.bool_ or array.ndim not in forms:
        raise InputError(
            what,
            expected=f"a bool array {' or '.join(forms.values())}, True where reading is permitted",
            given=f"{array.dtype} of shape {array.shape}",
            way_out="Compare your mask with a number to make it bool, for example `mask != 0`.",
            shape=array.shape,
        )
    array.setflags(write=False)
    return array


def _indices(what: str, value: Indices, limit: int | None) -> NDArray[np.int64]:
    """Return row or column indices as int64 [n], all of them at least 0 and below ``limit``."""
    array = np.asarray(value)
    array = array.astype(np.int64) if array.size == 0 else array  # an empty list has no dtype of its own
    wrong = array.ndim != 1 or array.dtype.kind not in "iu"
    if wrong or (array.size and (array.min() < 0 or (limit is not None and array.max() >= limit))):
        raise InputError(
            f"a {what}",
            expected=f"whole numbers from 0 {'up' if limit is None else f'to {limit - 1}'}",
            given=f"{array.dtype} of shape {array.shape}" if wrong else f"{array.min()} to {array.max()}",
            way_out="Rows and columns are indices; `offset` alone says where the first row stands.",
        )
    return array.astype(np.int64)


CAUSAL = Mask()  # a decoder's mask; frozen, so that it can be everyone's default
