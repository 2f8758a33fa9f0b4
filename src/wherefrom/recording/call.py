"""One call of attention as a recording holds it (floor 2): its arrays, what of it was kept, and how it was checked.

Takes the mask from below. Gives `Call` to the contents beside it and to every room above. A call's arrays may be views
of memory or of a file; heads and destinations are asked for by their true numbers, kept or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import Mask
from wherefrom.checks import check_index
from wherefrom.errors import InputError

Array: TypeAlias = NDArray[Any]
ARRAYS = ("q", "k", "v", "lse", "bias", "sinks", "output")
"""The fields of a `Call` that hold arrays."""
PART = re.compile(r"[a-z][a-z0-9_.]{0,99}")
"""What a part of a model may be called: "decoder", "encoder", or the name of another tower, such as "vision"."""
PART_IN_WORDS = 'small letters, digits, "_" and ".", a letter first, 100 characters at most'
STAGES = {"encoder": 1, "decoder": 2}
"""The parts of a text model in the order of a recording; every other tower comes before them."""


@dataclass(frozen=True)
class Check:
    """What the self-check of one call found: some rows of every head, rebuilt from the recorded q, k, v and lse.

    Attributes:
        rows: the destinations looked at.
        sum_error: the largest distance of a row's weights from summing to one.
        output_error: the largest distance of a rebuilt output from the kernel's own, as a share of the largest value.
        tolerance: what either may be at most, from the number format and the size of the scores.
    """

    rows: tuple[int, ...]
    sum_error: float
    output_error: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Kept:
    """Which part of a call was kept, where that is not all of it: the true numbers of what its arrays hold.

    Attributes:
        heads: of the query heads along the first axis of q, ascending.
        key_heads: for each of them, the place along the first axis of k and v of what it reads.
        rows: int64 [T], of the destinations along the second axis of q, ascending.
        of_heads: how many heads the layer has in all.
        of_rows: how many destinations the call had in all.
    """

    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    rows: NDArray[np.int64]
    of_heads: int
    of_rows: int


@dataclass(frozen=True)
class Stored:
    """How the numbers of a call were rounded when they were written to a file, and what that did.

    Attributes:
        format: of q, k and v in the file, such as "float16".
        rows: the destinations looked at, in every head.
        weight_error: the largest change of one of their weights.
        sum_error: the largest distance of one of their rows from summing to one.
    """

    format: str
    rows: tuple[int, ...]
    weight_error: float
    sum_error: float


@dataclass(frozen=True, eq=False)
class Call:
    """One execution of attention: all that is needed to compute any of its weights, exactly, at any later time.

    Attributes:
        layer: the layer's true number in its part of the model, from 0.
        name: the module that called, as the model names it.
        kind: "self" or "cross".
        q: [H, T, D] queries as the kernel was given them (positions already rotated in).
        k: [K, S, D] keys, once for every group of query heads.
        v: [K, S, V] values.
        lse: float32 [H, T], log of the sum of exp(score) over the permitted sources, natural logarithm.
        mask: the rule of who may read whom.
        scale: what q . k is multiplied by to give the score.
        kernel: the kernel that computed the outputs and lse.
        checks: what its self-checks found, one for each time the kernel ran (once a chunk or a generated token).
        part: "decoder", or "encoder" for bidirectional attention over a whole text; of a model with other towers the
            tower's name, such as "vision".
        softcap: bound c on a score's size, s <- c tanh(s / c); None without one.
        kept: what the arrays hold where that is not the whole call; H and T then count what was kept.
        stored: how the numbers were rounded in a file; None where they are as the kernel was given them.
        bias: [H or 1, T, S], added to the scores after the softcap, such as a position bias; None without one.
        sinks: [H] logits that take a share of their head's rows and move nothing; lse counts them. None without.
        output: [H, M, V], each head's slice of the output projection: what j moves to i is a_ij (output[h] v_j). None
            where it was not kept.
        repeat: which execution of its module in the pass it is, from 0: a module may run once for every image, or
            once for every layer that shares its weights.
    """

    layer: int
    name: str
    kind: str
    q: Array
    k: Array
    v: Array
    lse: NDArray[np.float32]
    mask: Mask
    scale: float
    kernel: str
    checks: tuple[Check, ...]
    part: str = "decoder"
    softcap: float | None = None
    # factories, so that the class itself has no such attribute: of a call in a file they are loaded when asked for
    kept: Kept | None = field(default_factory=lambda: None)
    stored: Stored | None = None
    bias: Array | None = field(default_factory=lambda: None)
    sinks: Array | None = field(default_factory=lambda: None)
    output: Array | None = field(default_factory=lambda: None)
    repeat: int = 0

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that are there, by name."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {name: array.shape for name, array in arrays.items() if array is not None}

    @property
    def heads(self) -> int:
        """The number of query heads that were kept, H."""
        return self.shapes["q"][0]

    @property
    def all_heads(self) -> int:
        """The number of heads that the layer has in all, kept or not; layers of one model may differ."""
        return self.heads if self.kept is None else self.kept.of_heads

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The true numbers of those heads."""
        return tuple(range(self.heads)) if self.kept is None else self.kept.heads

    @property
    def sources(self) -> int:
        """The number of sources, S."""
        return self.shapes["k"][1]

    @property
    def destinations(self) -> int:
        """The number of destinations that the call had, all of them kept or not."""
        return self.shapes["q"][1] if self.kept is None else self.kept.of_rows

    @property
    def rows(self) -> NDArray[np.int64]:
        """The destinations that were kept, int64 [T]."""
        return np.arange(self.shapes["q"][1]) if self.kept is None else self.kept.rows

    @property
    def all_rows(self) -> bool:
        """True where every destination was kept."""
        return self.kept is None or len(self.kept.rows) == self.kept.of_rows

    @property
    def key_heads(self) -> tuple[int, ...]:
        """For each query head that was kept, the place of what it reads along the first axis of k and v."""
        if self.kept is not None:
            return self.kept.key_heads
        group = self.heads // self.shapes["k"][0]
        return tuple(head // group for head in range(self.heads))

    @property
    def origin(self) -> tuple[str, str] | None:
        """The name of the file that it lies in, and what tells it from every other call; None in memory."""
        return None

    def place_of_head(self, head: int) -> int:
        """Return where a head's rows stand along the first axis of q.

        Raises:
            InputError: the layer has no such head, or it was not kept.
        """
        number = check_index("head", head, self.all_heads)
        return self._place("head", number, self.head_numbers)

    def place_of_row(self, destination: int) -> int:
        """Return where a destination stands along the second axis of q.

        Raises:
            InputError: the call had no such destination, or it was not kept.
        """
        number = check_index("position", destination, self.destinations)
        return number if self.kept is None else self._place("destination", number, self.kept.rows)

    def _place(self, what: str, number: int, numbers: Sequence[int] | NDArray[np.int64]) -> int:
        place = int(np.searchsorted(numbers, number))
        if place < len(numbers) and numbers[place] == number:
            return place
        raise InputError(
            f"the {what}",
            expected=f"one of those that the recording keeps of layer {self.layer} ({listed(numbers)})",
            given=str(number),
            way_out=f"Record the text again with this {what} kept.",
            layer=self.layer,
        )

    @property
    def bytes(self) -> int:
        """The size of q, k, v and lse."""
        return int(self.q.nbytes + self.k.nbytes + self.v.nbytes + self.lse.nbytes)

    def __repr__(self) -> str:
        shapes = self.shapes
        heads, size = f"{self.heads} heads on {shapes['k'][0]}", f"{shapes['q'][1]} x {self.sources}"
        again = f", execution {self.repeat}" if self.repeat else ""
        return (
            f"Call(layer {self.layer}, {self.name}, {self.kind}{again}, {heads}, {size} positions, {sized(self.bytes)})"
        )


def order_of(part: str, kind: str, layer: int, repeat: int) -> tuple[int, str, bool, int, int]:
    """Return what the calls of a recording are sorted by.

    Towers by their names, then an encoder's calls, then a decoder's; of each self-attention before cross-attention,
    then by layer, and by execution.
    """
    return STAGES.get(part, 0), part, kind != "self", layer, repeat


def in_order(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return calls in the order that those of a recording have."""
    return tuple(sorted(calls, key=lambda call: order_of(call.part, call.kind, call.layer, call.repeat)))


def is_part(value: Any) -> bool:
    """Whether a value is a name that a part of a model may have."""
    return isinstance(value, str) and PART.fullmatch(value) is not None


def part_named(part: str) -> str:
    """Return a part in words: "the decoder", "the encoder", or "part vision"."""
    return f"the {part}" if part in STAGES else f"part {part}"


def call_named(call: Any) -> str:
    """Return which call it is in words, such as "layer 3 (self of the decoder)"; of a `Call` or its facts."""
    again = f", execution {call.repeat}" if call.repeat else ""
    return f"layer {call.layer} ({call.kind} of {part_named(call.part)}{again})"


def counted(count: int, what: str) -> str:
    """Return a count in words, such as "1 token"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def sized(count: int) -> str:
    """Return a number of bytes in words, such as "1.6 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")


def listed(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Return ascending whole numbers in words: "0 to 29", or some of them one by one."""
    ascending = sorted(int(number) for number in numbers)
    if len(ascending) > 2 and ascending[-1] - ascending[0] == len(ascending) - 1:
        return f"{ascending[0]} to {ascending[-1]}"
    shown = ", ".join(map(str, ascending[:8]))
    return shown + (f" and {len(ascending) - 8} more" if len(ascending) > 8 else "")
