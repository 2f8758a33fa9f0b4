"""What a scan is given and what it may be asked for (floor 2): the plain arrays of one call, and the names.

It takes the mask and the checks from below, and gives `Attention` to every engine beside it and to the questions above,
who fill one from a call. A scan knows no recording and no model: arrays in, arrays out.

Every weight of the call is a_ij = exp(s_ij - lse_i), with the score s_ij that `wherefrom.attention` defines, plus
bias_ij after the softcap; lse_i counts the sink. Row r of q stands at position i = mask.offset + r, column j at j.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import Mask
from wherefrom.checks import as_index, check_items, check_kind
from wherefrom.errors import InputError

Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

OF_SAME_TOKEN = ("duplicate", "induction")
OF_ROWS = (
    *("entropy", "largest", "first", "itself", "previous"),
    *OF_SAME_TOKEN,
    *("distance", "largest_score", "sink"),
)
"""The statistics of a destination, [H, T]."""
OF_HEADS = ("distances",)
"""The statistics of a head, [H, bins]."""
OF_SOURCES = ("received", "readers", "last_reader")
"""The statistics of a source, [H, S]."""
NAMES = (*OF_ROWS, *OF_HEADS, *OF_SOURCES, "top", "zoom")
"""All that a scan may be asked for."""
SHAPES = "The shapes are listed at `wherefrom.scans.Attention`."


@dataclass(frozen=True, eq=False)
class Attention:
    """The arrays of one call of attention, checked; H query heads, K key heads, T destinations, S sources, size D.

    Args:
        q: [H, T, D], any real number format; after position encoding.
        k: [K, S, D], likewise.
        lse: [H, T], log-sum-exp of each destination in nats, the sink included; -inf where it may read nothing.
        mask: which sources a destination may read; its padding is [S], its explicit map [T, S] or [H, T, S].
        scale: the factor on q . k.
        softcap: bound c on a score's size, s <- c tanh(s / c); None without one.
        sinks: [H] logits that take a share of their head's rows; None without.
        bias: [H, T, S] or [1, T, S], added to the scores after the softcap; where it is -inf the source may not be
            read. None without.
        key_heads: for each query head, the place of what it reads along the first axis of k; h // (H // K) unless
            given.
        codes: whole numbers [S], equal where the tokens of the sources are equal, such as their ids; None where
            nobody will ask for "duplicate" or "induction".

    Raises:
        InputError: shapes that do not fit one another or the mask; a number in q, k, lse or sinks that is not
            finite, save -inf in lse; a NaN or +inf in the bias; a softcap of 0 or less.
    """

    q: Array
    k: Array
    lse: Array
    mask: Mask
    scale: float
    softcap: float | None = None
    sinks: Array | None = None
    bias: Array | None = None
    key_heads: tuple[int, ...] = ()
    codes: Array | None = None

    def __post_init__(self) -> None:
        check_kind("the mask", self.mask, Mask, way_out="Take it from `wherefrom.attention`.")
        heads, rows, _ = self._check_shape("q", self.q, (None, None, None), "[H, T, D]")
        groups, columns, _ = self._check_shape("k", self.k, (None, None, self.q.shape[2]), "[K, S, D]")
        self._check_shape("lse", self.lse, (heads, rows), "[H, T]")
        if self.sinks is not None:
            self._check_shape("sinks", self.sinks, (heads,), "[H]")
        if self.bias is not None:
            first = 1 if np.shape(self.bias)[:1] == (1,) else heads
            self._check_shape("bias", self.bias, (first, rows, columns), "[H, T, S] or [1, T, S]")
        self._check_mask(heads, rows, columns)
        object.__setattr__(self, "key_heads", self._checked_key_heads(heads, groups))
        if self.codes is not None:
            codes = self._check_shape("codes", self.codes, (columns,), "[S]")
            _require(self.codes.dtype.kind in "iu", "the codes", "whole numbers", f"{self.codes.dtype} of {codes}")
        self._check_numbers()

    @property
    def heads(self) -> int:
        """The number of query heads, H."""
        return int(self.q.shape[0])

    @property
    def destinations(self) -> int:
        """The number of destinations, T."""
        return int(self.q.shape[1])

    @property
    def sources(self) -> int:
        """The number of sources, S."""
        return int(self.k.shape[1])

    @cached_property
    def empty(self) -> Bools:
        """Which destinations may read nothing, bool [H, T]: those whose lse is -inf."""
        return np.isneginf(self.lse)

    @property
    def reads_itself(self) -> bool:
        """Whether row r and column r are one position for every r."""
        return self.destinations == self.sources and self.mask.offset == 0

    @property
    def names(self) -> tuple[str, ...]:
        """All that a scan of this call may be asked for."""
        same = self.codes is not None and self.reads_itself
        left_out = {*(() if same else OF_SAME_TOKEN), *(() if self.sinks is not None else ("sink",))}
        return tuple(name for name in NAMES if name not in left_out)

    @property
    def farthest(self) -> int:
        """The largest distance |i - j| that any pair of a destination and a source has."""
        return max(self.mask.offset + self.destinations - 1, self.sources - 1 - self.mask.offset)

    def repeated(self) -> Bools | None:
        """Return which destinations [T] hold a token that came before; None without codes of a text reading itself."""
        if self.codes is None or not self.reads_itself:
            return None
        _, first, place = np.unique(self.codes, return_index=True, return_inverse=True)
        return np.asarray(first[place] < np.arange(self.sources))

    def _check_shape(self, name: str, value: Any, shape: tuple[int | None, ...], form: str) -> tuple[int, ...]:
        """Return the shape of an array of numbers in which every size is at least 1 and, where `shape` says, that."""
        array = value if isinstance(value, np.ndarray) else np.asarray(None)
        fits = array.dtype.kind in "iuf" and array.ndim == len(shape) and array.size > 0
        fits = fits and all(want in (None, size) for want, size in zip(shape, array.shape, strict=True))
        wanted = form + "".join(f", {want}" for want in shape if want) if any(shape) else form
        given = "no array of numbers" if array.dtype == object else f"{array.dtype} of shape {array.shape}"
        _require(fits, name, f"an array of numbers {wanted}", given)
        return array.shape

    def _check_mask(self, heads: int, rows: int, columns: int) -> None:
        padding, explicit = self.mask.padding, self.mask.explicit
        if padding is not None:
            _require(padding.shape == (columns,), "the mask's padding", f"[S], {columns}", f"shape {padding.shape}")
        if explicit is not None:
            shapes = ((rows, columns), (heads, rows, columns))
            fits = explicit.shape in shapes
            _require(fits, "the explicit mask", f"shape {shapes[0]} or {shapes[1]}", f"shape {explicit.shape}")

    def _checked_key_heads(self, heads: int, groups: int) -> tuple[int, ...]:
        if not len(self.key_heads):
            _require(heads % groups == 0, "q", f"a number of heads that is a multiple of {groups}", str(heads))
            return tuple(head // (heads // groups) for head in range(heads))
        way_out = "Give the place of each query head's keys along the first axis of k."
        items = check_items("the key heads", self.key_heads, expected=f"{heads} whole numbers", way_out=way_out)
        places = [-1 if (place := as_index(item)) is None else place for item in items]
        fits = len(places) == heads and all(0 <= place < groups for place in places)
        _require(fits, "the key heads", f"{heads} whole numbers from 0 to {groups - 1}", f"{self.key_heads!r}", way_out)
        return tuple(places)

    def _check_numbers(self) -> None:
        """Refuse what would spread into every sum; q, k and lse are looked at head by head, so that memory is small."""
        for name, array in (("q", self.q), ("k", self.k), ("sinks", self.sinks)):
            for head in range(0 if array is None else len(array)):
                _require_finite(f"a number in {name}", np.asarray(array)[head], head)
        for head, row in enumerate(self.lse):
            _require_finite("a number in lse", np.where(np.isneginf(row), 0.0, row), head)
        for head in range(0 if self.bias is None else len(self.bias)):
            for row, values in enumerate(np.asarray(self.bias)[head]):
                good = bool((values < np.inf).all())  # False for a NaN as well
                _require(good, f"the bias of head {head}, row {row}", "no NaN and no +inf", "one of them")
        numbers = [self.scale, *(() if self.softcap is None else (self.softcap,))]
        finite = all(isinstance(x, int | float | np.number) and np.isfinite(x) for x in numbers)
        _require(finite, "the scale and the softcap", "finite numbers", f"{self.scale!r} and {self.softcap!r}")
        positive = self.softcap is None or self.softcap > 0
        _require(positive, "the softcap", "a number above 0", f"{self.softcap!r}", "None means no softcap.")


def check_wanted(attention: Attention, wanted: Iterable[str]) -> frozenset[str]:
    """Return the names of the statistics that are asked for.

    Raises:
        InputError: an unknown name, one that this call does not have, none at all.
    """
    listed = ", ".join(NAMES)
    way_out = f"The names are {listed}."
    names = check_items("what is wanted", wanted, expected="a collection of names", way_out=way_out)
    _require(len(names) > 0, "what is wanted", "at least one name", "none", way_out)
    for name in names:
        _require(name in NAMES, "what is wanted", "a name that a scan knows", repr(name), way_out)
        if name in OF_SAME_TOKEN and name not in attention.names:
            given = "no codes" if attention.codes is None else _size(attention)
            expected = "a text that reads itself whole, with the codes of its tokens"
            _require(False, f'a scan for "{name}"', expected, given, "Leave it out, or give `codes`.")
        if name == "sink" and attention.sinks is None:
            _require(False, 'a scan for "sink"', "a call with sink logits", "one without", "Leave it out.")
    return frozenset(names)


def _size(attention: Attention) -> str:
    of = f"{attention.destinations} destinations over {attention.sources} sources"
    return f"{of}, the first at position {attention.mask.offset}"


def _require_finite(what: str, values: Array, head: int) -> None:
    if not np.isfinite(values).all():
        where = (head, *(int(n) for n in np.argwhere(~np.isfinite(values))[0]))
        way_out = "A scan over NaN or infinities means nothing: find where it came from."
        raise InputError(what, expected="a finite number", given=f"one that is not at {where}", way_out=way_out)


def _require(holds: bool, what: str, expected: str, given: str, way_out: str = SHAPES) -> None:
    if not holds:
        raise InputError(what, expected=expected, given=given, way_out=way_out)
