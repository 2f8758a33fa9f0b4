"""Safetensors bytes (floor 2): named arrays one behind the other, a JSON header in front. Written in one pass, mapped.

Takes nothing from below. Gives the writer a file that streams, each number touched once while it is in the cache, and
the reader views of a mapped file. Of the many spellings that the safetensors format permits this is one: the header is
determined by the arrays' names, kinds and shapes alone, so a reader that knows them compares bytes and need not parse.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
DTYPES = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "BF16": "<u2", "F16": "<f2", "BOOL": "|b1", "U8": "|u1"}
"""Of each kind of number in a file, numpy's name; numpy has no bfloat16, so its two bytes are a whole number here."""
WIDTHS = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
"""Bytes of a number of each kind."""
ALIGNED = 64
"""The numbers begin at a multiple of so many bytes in the file, a cache line."""
BLOCK = 2**20
"""Bytes that are looked at, summed up and written together: they stay in a core's cache from one to the next."""


@dataclass(frozen=True)
class Spec:
    """Of one array in a file: its kind of number, a key of `DTYPES`; its shape; the CRC-32 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    crc32: int = 0

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


@dataclass(frozen=True)
class Tensor:
    """An array to be written, and the kind of number that it becomes."""

    array: Array
    dtype: str

    @property
    def spec(self) -> Spec:
        """What will be in the file, its checksum still open."""
        return Spec(self.dtype, self.array.shape)


Look: TypeAlias = Callable[[str, Array, Array], None]
"""Shown each piece of an array before it is written: the array's name, the piece as given, and as it will be stored."""


def in_order(specs: Mapping[str, Spec]) -> list[str]:
    """Return the names in the order of the file: larger numbers first, so that all are aligned, then by name."""
    return sorted(specs, key=lambda name: (-WIDTHS[specs[name].dtype], name))


def header_of(specs: Mapping[str, Spec]) -> bytes:
    """Return the bytes before the numbers: the header's length, 8 bytes little-endian, and the header, with blanks."""
    entries, at = [], 0
    for name in in_order(specs):
        spec = specs[name]
        shape, end = ",".join(map(str, spec.shape)), at + spec.bytes
        entries.append(f'"{name}":{{"dtype":"{spec.dtype}","shape":[{shape}],"data_offsets":[{at},{end}]}}')
        at = end
    text = ("{" + ",".join(entries) + "}").encode("ascii")  # names are those of the format: none needs an escape
    text += b" " * (-(8 + len(text)) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def size_of(specs: Mapping[str, Spec]) -> int:
    """Return the size of the whole file."""
    return len(header_of(specs)) + sum(spec.bytes for spec in specs.values())


def starts_of(specs: Mapping[str, Spec], header: int) -> dict[str, int]:
    """Return where each array begins in the file, behind a header of some bytes."""
    starts, at = {}, header
    for name in in_order(specs):
        starts[name] = at
        at += specs[name].bytes
    return starts


def write_tensors(path: Path, tensors: Mapping[str, Tensor], look: Look | None = None) -> dict[str, Spec]:
    """Write a new file of arrays in one pass over each, and return what is in it.

    Raises:
        OSError: it cannot be written, or is there already. So does whatever `look` raises come out.
    """
    specs = {name: tensor.spec for name, tensor in tensors.items()}
    with path.open("xb") as file:
        file.write(header_of(specs))
        for name in in_order(specs):
            found = 0
            for given in pieces(tensors[name].array):
                stored = as_stored(given, specs[name].dtype)
                if look is not None:
                    look(name, given, stored)
                data = stored.view(np.uint8).data
                found = zlib.crc32(data, found)
                file.write(data)
            specs[name] = replace(specs[name], crc32=found)
    return specs


def pieces(array: Array) -> Iterator[Array]:
    """Yield the numbers of an array in order, contiguous [N] and `BLOCK` bytes at most, without a copy where it can."""
    if array.flags.c_contiguous:
        flat, step = array.reshape(-1), max(1, BLOCK // array.itemsize)
        yield from (flat[start : start + step] for start in range(0, flat.size, step))
    elif array.nbytes <= BLOCK:
        yield np.ascontiguousarray(array).reshape(-1)
    else:
        step = max(1, BLOCK * len(array) // array.nbytes)
        for start in range(0, len(array), step):
            part = array[start : start + step]
            yield from pieces(part[0] if len(part) == 1 and part.nbytes > BLOCK else part)


def as_stored(values: Array, dtype: str) -> Array:
    """Return finite numbers as they lie in a file, rounded to the nearest of their kind; infinite beyond its range."""
    with np.errstate(over="ignore"):
        if dtype != "BF16":
            return values.astype(DTYPES[dtype], copy=False)
        bits = values.astype("<f4", copy=False).view("<u4")
        stored: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # ties to even
    return stored


def as_read(stored: Array, dtype: str) -> Array:
    """Return stored numbers as numpy computes with them: bfloat16 as the same float32, all others as they are."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else stored


def is_finite(stored: Array, dtype: str) -> bool:
    """Whether all stored numbers are finite; of 16 bits, whether no exponent is full, since numpy's own is slow."""
    if dtype in ("F16", "BF16"):
        full = 0x7C00 if dtype == "F16" else 0x7F80
        return bool((stored.view(np.uint16) & 0x7FFF).max(initial=0) < full)
    return bool(np.isfinite(stored).all())


def view_of(buffer: Any, start: int, spec: Spec) -> Array:
    """Return an array in a buffer, without a copy; not to be written where the buffer is not."""
    if not spec.bytes:
        return np.empty(spec.shape, DTYPES[spec.dtype])
    return np.ndarray(spec.shape, DTYPES[spec.dtype], buffer, start)
