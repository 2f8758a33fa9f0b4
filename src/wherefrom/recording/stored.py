"""Files and calls of a recording that was opened (floor 2): what is in them is read when it is asked for.

Takes the layout and the tensors from beside it, masks from below. Gives the reader a `StoredCall`: a call like any
other to whoever asks it, whose arrays are views of the mapped file, each summed up and looked at once.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import weakref
import zlib
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from wherefrom.mask import Mask
from wherefrom.recording.call import ARRAYS, Array, Call, Check, Kept
from wherefrom.recording.layout import CallFacts, FileFacts
from wherefrom.recording.strict import COPY_AGAIN, broken, strict_json, way_out_of
from wherefrom.recording.tensors import DTYPES, Spec, as_read, header_of, is_finite, starts_of, view_of

LOADED = (*ARRAYS, "mask", "kept", "checks")
"""The fields of a call that are read from its file when they are asked for."""
UNOPENED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) and os.name != "nt" else {}
"""A map needs no open file beside it, where Python can do without."""
BELOW_ALL = ("lse", "bias", "sinks", "log_probabilities", "next.log_probabilities")
"""Arrays in which minus infinity has a meaning."""


@dataclass(frozen=True)
class StoredFile:
    """A file of arrays.

    Attributes:
        folder: the recording's.
        name: the file's, in the folder.
        facts: what the manifest says of it.
        layer: of a call's file, for what errors say.
    """

    folder: Path
    name: str
    facts: FileFacts
    layer: int | None = None

    @cached_property
    def _header(self) -> bytes:
        return header_of(self.facts.tensors)

    @cached_property
    def _starts(self) -> dict[str, int]:
        return starts_of(self.facts.tensors, len(self._header))

    @cached_property
    def _maps(self) -> weakref.WeakValueDictionary[str, mmap.mmap]:
        return weakref.WeakValueDictionary()

    def _mapped(self) -> mmap.mmap:
        """Return the file, mapped: once, for as long as an array of it is there, since a map is an open file."""
        mapped = self._maps.get(self.name)
        if mapped is None:
            with (self.folder / self.name).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **UNOPENED)
            if len(mapped) != self.facts.bytes:  # it was when the recording was opened
                self._refuse(self.name, f"{self.facts.bytes:,} bytes", f"{len(mapped):,}")
            self._maps[self.name] = mapped
        return mapped

    def check_header(self) -> None:
        """Refuse a header that is not the one which the manifest's names, kinds and shapes determine.

        Raises:
            RecordingError: what is wrong with it.
        """
        expected = self._header
        size = len(expected) + sum(spec.bytes for spec in self.facts.tensors.values())
        if size != self.facts.bytes:
            self._refuse(self.name, f"{size:,} bytes for the arrays that the manifest lists", f"{self.facts.bytes:,}")
        with (self.folder / self.name).open("rb") as file:
            found = file.read(len(expected))
        if found != expected:
            self._explain(found)

    def everything(self) -> dict[str, Array]:
        """Return all arrays, read into memory and checked."""
        data = (self.folder / self.name).read_bytes()
        if len(data) != self.facts.bytes:
            self._refuse(self.name, f"{self.facts.bytes:,} bytes", f"{len(data):,}")
        return {name: self._checked(name, data) for name in self.facts.tensors}

    def array(self, name: str) -> Array | None:
        """Return one array as a view of the mapped file, checked; None where there is none of that name.

        Raises:
            RecordingError: it is not as it was written.
        """
        if name not in self.facts.tensors:
            return None
        try:
            return self._checked(name, self._mapped())
        except OSError as error:
            way_out = way_out_of(error, COPY_AGAIN)
            self._refuse(self.name, "a file that can be read", f"{error}".rstrip("."), way_out=way_out)

    def _checked(self, name: str, buffer: Any) -> Array:
        spec, start = self.facts.tensors[name], self._starts[name]
        with memoryview(buffer) as whole, whole[start : start + spec.bytes] as part:
            found = zlib.crc32(part)
        if found != spec.crc32:
            self._refuse(f"{name} in {self.name}", f"the checksum {spec.crc32:08x}", f"{found:08x}", name)
        stored = view_of(buffer, start, spec)
        if spec.dtype == "BOOL" and stored.view(np.uint8).max(initial=0) > 1:
            self._refuse(f"{name} in {self.name}", "bytes of 0 or 1", "others", name)
        values = as_read(stored, spec.dtype)
        values.setflags(write=False)
        if values.dtype.kind == "f":
            fine = (values < np.inf).all() if name in BELOW_ALL else is_finite(stored, spec.dtype)
            if not fine:
                self._refuse(f"{name} in {self.name}", "finite numbers", "a NaN or an infinity", name)
        return values

    def _refuse(
        self, what: str, expected: str, given: str, array: str | None = None, way_out: str = COPY_AGAIN
    ) -> NoReturn:
        facts: dict[str, Any] = {"layer": self.layer, "array": array}
        known = {name: value for name, value in facts.items() if value is not None}
        broken(self.folder, what, expected=expected, given=given, way_out=way_out, file=self.name, **known)

    def _explain(self, found: bytes) -> None:
        """Say what is wrong with a header, of which as much was read as is expected."""
        what, length = f"the header of {self.name}", int.from_bytes(found[:8], "little")
        if length != len(found) - 8:  # what begins the numbers is then unknown, and JSON is not looked for in them
            self._refuse(what, f"a length of {len(found) - 8:,} bytes", f"{length:,}")
        entries = strict_json(self.folder, what, found[8:])
        for name in self.facts.tensors:
            if name not in entries:
                self._refuse(what, f"the array {name!r}", "none of that name", name)
        for name in entries:
            if name not in self.facts.tensors:
                self._refuse(what, "the arrays that the manifest lists", f"{name[:40]!r} too")
        for name, spec in self.facts.tensors.items():
            self._compare(what, name, spec, entries[name])
        self._refuse(what, "the one spelling that the format has for it", "another")

    def _compare(self, what: str, name: str, spec: Spec, entry: Any) -> None:
        """Refuse an array's entry in a header that contradicts the manifest."""
        if not isinstance(entry, dict):
            self._refuse(f"{name} in {what}", "an object", type(entry).__name__, name)
        start = self._starts[name] - len(self._header)
        expected = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, start + spec.bytes]}
        if entry.get("dtype") not in DTYPES:
            given = str(entry.get("dtype"))[:40]
            self._refuse(f"the dtype of {name} in {what}", f"one of {', '.join(DTYPES)}", given, name)
        for key, value in expected.items():
            if entry.get(key) != value:
                self._refuse(f"the {key} of {name} in {what}", f"{value}", f"{entry.get(key)}"[:80], name)


class StoredCall(Call):
    """A call whose arrays, mask, kept part and checks are read from its file when they are asked for.

    `dataclasses.replace` makes a call of it that holds them all.
    """

    _file: ClassVar[StoredFile | None] = None
    _facts: ClassVar[CallFacts]

    @classmethod
    def of(cls, facts: CallFacts, file: StoredFile) -> StoredCall:
        """Return the call of a file."""
        call = object.__new__(cls)
        known = {one.name: getattr(facts, one.name) for one in fields(Call) if one.name not in LOADED}
        call.__dict__.update(known, _facts=facts, _file=file)
        return call

    def __getattr__(self, name: str) -> Any:
        """Load what is asked for the first time."""
        file = self._file
        if file is None or name not in LOADED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        loaders = {"mask": _mask, "kept": _kept, "checks": _checks}
        value = loaders[name](self._facts, file) if name in loaders else file.array(name)
        self.__dict__[name] = value
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied, it is a call that holds its arrays."""
        return Call, tuple(getattr(self, one.name) for one in fields(Call))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that are there, by name; nothing is loaded."""
        if self._file is None:
            return super().shapes
        tensors = self._file.facts.tensors
        return {name: tensors[name].shape for name in ARRAYS if name in tensors}

    @property
    def origin(self) -> tuple[str, str] | None:
        """The name of its file, and all that the manifest says of it, the checksums of its arrays included."""
        if self._file is None:
            return None
        sums = {name: spec.crc32 for name, spec in self._file.facts.tensors.items()}
        return Path(self._file.name).name, json.dumps([asdict(self._facts), sums], sort_keys=True)

    @property
    def bytes(self) -> int:
        """The size of q, k, v and lse as they lie in the file; nothing is loaded."""
        if self._file is None:
            return super().bytes
        return sum(self._file.facts.tensors[name].bytes for name in ("q", "k", "v", "lse"))


def _needed(file: StoredFile, name: str) -> Array:
    array = file.array(name)
    assert array is not None, "the agreement of names was checked when the recording was opened"
    return array


def _mask(facts: CallFacts, file: StoredFile) -> Mask:
    padding, explicit = file.array("padding"), file.array("explicit")
    return Mask(facts.causal, facts.window, facts.offset, padding, explicit)


def _kept(facts: CallFacts, file: StoredFile) -> Kept | None:
    if facts.kept is None:
        return None
    rows, kept = _needed(file, "rows"), facts.kept
    if (np.diff(rows) <= 0).any() or (len(rows) and (rows[0] < 0 or rows[-1] >= kept.of_rows)):
        expected, given = f"destinations below {kept.of_rows}, ascending", "others"
        broken(file.folder, f"rows in {file.name}", expected=expected, given=given, file=file.name, layer=facts.layer)
    return Kept(kept.heads, kept.key_heads, rows, kept.of_heads, kept.of_rows)


def _checks(facts: CallFacts, file: StoredFile) -> tuple[Check, ...]:
    rows, ends, found = (_needed(file, f"checks.{name}") for name in ("rows", "ends", "found"))
    last = int(ends[-1]) if len(ends) else 0
    if (rows < 0).any() or (np.diff(ends, prepend=0) < 0).any() or last != len(rows):
        expected, given = f"rows from 0, and ends that ascend to {len(rows)}", "others"
        what = f"checks in {file.name}"
        broken(file.folder, what, expected=expected, given=given, file=file.name, layer=facts.layer)
    starts = [0, *ends.tolist()]
    return tuple(
        Check(tuple(rows[start:end].tolist()), *errors)
        for start, end, errors in zip(starts, starts[1:], found.tolist(), strict=False)
    )
