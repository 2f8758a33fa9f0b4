"""How a recording lies in its folder (floor 2): the names of its files, and the manifest that says what is in them.

Takes errors and the contents' own facts. Gives the writer a manifest's bytes and the reader a manifest that was
checked: every key, every kind, every file's name. docs/format.md says the same in words, with the reasons.

    NAME.wherefrom/
        recording.json                      the manifest, written last
        tokens.safetensors                  what was read
        predictions.safetensors             what was expected
        calls/decoder-self-000.safetensors  one a call: q, k, v, lse and what else there is

Version 2 is written; version 1, which knew no towers, repeats and gaps, is read for ever.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.checks import check_kind
from wherefrom.errors import InputError
from wherefrom.recording.call import PART_IN_WORDS, Stored, is_part, order_of
from wherefrom.recording.contents import ModelFacts
from wherefrom.recording.gaps import KINDS_OF_GAPS, Gap
from wherefrom.recording.strict import MOST, Fields, broken, strict_json
from wherefrom.recording.tensors import DTYPES, Spec

FORMAT, VERSION = "wherefrom recording", 2
VERSIONS = (1, VERSION)
"""Those that are read."""
READ = " or ".join(map(str, VERSIONS))
SUFFIX = ".wherefrom"
MANIFEST, TOKENS, PREDICTIONS, CALLS = "recording.json", "tokens.safetensors", "predictions.safetensors", "calls"
SCANS = "scans"
"""What was found of the weights may be kept in the folder under this name; it is no part of the recording."""
UNITS = {"logarithms": "nats", "positions": "from 0", "seconds": "wall clock"}
MOST_BYTES = 2**24
"""A manifest is refused beyond this size: JSON takes up to thirty times its bytes in memory. 10,000 calls fit."""
MOST_PARTS = 100_000
"""Layers, or heads of a layer, that a recording may speak of: many times those of the largest model that there is."""
KINDS = ("self", "cross")
FORMATS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
"""The number formats by the names that people use."""
FIRST = b'{"crc32": "%08x",\n'
"""A manifest's first line: the CRC-32 of every byte behind it."""
OPENING = len(FIRST % 0)
FORMAT_LINE = f'"format": "{FORMAT}",\n'.encode()


@dataclass(frozen=True)
class KeptFacts:
    """`Kept` without its rows, which lie in the call's file."""

    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    of_heads: int
    of_rows: int


@dataclass(frozen=True)
class CallFacts:
    """What the manifest says of a call; see `Call`, `Mask`, `Kept` and `Stored` for the meaning."""

    layer: int
    name: str
    kind: str
    part: str
    repeat: int
    kernel: str
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    offset: int
    kept: KeptFacts | None
    stored: Stored | None

    @property
    def place(self) -> tuple[int, str, bool, int, int]:
        """Where the call stands among those of a recording."""
        return order_of(self.part, self.kind, self.layer, self.repeat)

    @property
    def file(self) -> str:
        """The call's file: its name follows from what it is, so that no manifest can name another.

        No part has a "-" in its name, so no two calls share one.
        """
        again = f"-{self.repeat}" if self.repeat else ""
        return f"{CALLS}/{self.part}-{self.kind}-{self.layer:03d}{again}.safetensors"


@dataclass(frozen=True)
class FileFacts:
    """The size of a file in bytes, and the arrays in it."""

    bytes: int
    tensors: Mapping[str, Spec]


@dataclass(frozen=True)
class Manifest:
    """All that a recording is, but for its arrays."""

    written_by: str
    model: ModelFacts
    written_from: int | None
    seconds: float
    calls: tuple[CallFacts, ...]
    files: Mapping[str, FileFacts]
    gaps: tuple[Gap, ...] = ()
    version: int = VERSION

    def to_bytes(self) -> bytes:
        """Return the manifest's file: ASCII, a line for every file and every call, the same for the same content."""
        content = b"".join(line.encode("ascii") for line in self._lines())
        return FIRST % zlib.crc32(content) + content

    def _lines(self) -> Iterator[str]:
        facts: dict[str, Any] = {"format": FORMAT, "version": VERSION, "written_by": self.written_by, "units": UNITS}
        facts |= {"model": asdict(self.model), "written_from": self.written_from, "seconds": self.seconds}
        facts |= {"gaps": [asdict(gap) for gap in self.gaps]}
        yield from (f'"{name}": {_json(value)},\n' for name, value in facts.items())
        files = (f' "{name}": {_json(_of_file(self.files[name]))}' for name in sorted(self.files))
        yield '"files": {\n' + ",\n".join(files) + "\n},\n"
        calls = (f" {_json(_of_call(call))}" for call in sorted(self.calls, key=lambda call: call.place))
        yield '"calls": [\n' + ",\n".join(calls) + "\n]}\n"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return a number of numpy as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a manifest holds plain values, not {type(value).__name__}")


def _of_file(facts: FileFacts) -> dict[str, Any]:
    tensors = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape), "crc32": f"{spec.crc32:08x}"}
        for name, spec in sorted(facts.tensors.items())
    }
    return {"bytes": facts.bytes, "tensors": tensors}


def _of_call(call: CallFacts) -> dict[str, Any]:
    values = asdict(call)
    mask = {name: values.pop(name) for name in ("causal", "window", "offset")}
    kept, stored = values.pop("kept"), values.pop("stored")
    return {**values, "mask": mask, "kept": kept, "stored": stored}


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a recording's folder, checked in itself; the files are not looked at.

    Raises:
        OSError: it cannot be read.
        RecordingError: it is damaged, of another format or version, or has a key that is missing, wrong or unknown.
    """
    _check_size(path, (path / MANIFEST).stat().st_size)
    return parse_manifest(path, (path / MANIFEST).read_bytes())


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """Return the manifest that bytes are; the path is that of the recording, for what errors say.

    Raises:
        RecordingError: it is damaged, of another format or version, or has a key that is missing, wrong or unknown.
    """
    _check_size(path, len(data))
    whole = _content(path, data)
    content = {name: value for name, value in whole.items() if name != "crc32"}
    version = _check_version(path, content)
    names = ["written_by", "units", "model", "written_from", "seconds", "files", "calls"]
    top = Fields.of(path, "the manifest", content, "format", "version", *names, *["gaps"] * (version > 1))
    if content["units"] != UNITS:
        top.wrong("units", f"the units of the format, {_json(UNITS)}")
    manifest = Manifest(
        written_by=top.text("written_by"),
        model=_model(path, content["model"]),
        written_from=None if top.absent("written_from") else top.whole("written_from"),
        seconds=top.number("seconds"),
        calls=tuple(_call(path, f"calls[{at}]", value, version) for at, value in enumerate(top.items("calls"))),
        files=_files(path, content["files"]),
        gaps=tuple(_gap(path, f"gaps[{at}]", value) for at, value in enumerate(top.items("gaps")))
        if version > 1
        else (),
        version=version,
    )
    _check_order(path, manifest)
    _check_names(path, manifest)
    return manifest


def folder_of(path: Any) -> Path:
    """Return a path that a user gave; a "~" at its beginning is their home.

    Raises:
        InputError: no path.
    """
    way_out = "Give the path of a recording's folder."
    path = check_kind("the path", Path(path) if isinstance(path, str) else path, Path, way_out=way_out)
    try:
        fine = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a letter
        fine = False
    if not fine:
        raise InputError("the path", expected="a name that a folder can have", given=f"{str(path)!r}", way_out=way_out)
    return Path(os.path.expanduser(path))  # noqa: PTH111  # which leaves "~nobody" as it is


def is_recording(path: str | Path) -> bool:
    """Whether a path is the folder of a recording, by the first lines of its manifest; it may still be damaged."""
    folder = folder_of(path)
    try:
        return has_manifest(folder)
    except OSError:
        return False


def has_manifest(folder: Path) -> bool:
    """Whether a manifest's first lines are in a folder, for whom it matters that they could not be read.

    Raises:
        OSError: whatever is there cannot be read.
    """
    manifest = folder / MANIFEST
    try:
        if not stat.S_ISREG(manifest.lstat().st_mode):  # a pipe would be waited for
            return False
        with manifest.open("rb") as file:
            start = file.read(OPENING + len(FORMAT_LINE))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return start.startswith(FIRST[:11]) and start[OPENING:] == FORMAT_LINE


def _check_size(path: Path, size: int) -> None:
    if size > MOST_BYTES:
        broken(path, MANIFEST, expected=f"at most {MOST_BYTES:,} bytes", given=f"{size:,}", size=size)


def _content(path: Path, data: bytes) -> dict[str, Any]:
    """Return a manifest's JSON, its checksum found right."""
    found = FIRST % zlib.crc32(data[OPENING:])
    if not data.startswith(FIRST[:11]) or data[OPENING - 3 : OPENING] != FIRST[-3:]:
        given = "another beginning"
        way_out = "Name the folder that `wherefrom record` or save_recording wrote."
        expected = 'a manifest of a recording, beginning with its own {"crc32": ...}'
        broken(path, MANIFEST, expected=expected, given=given, way_out=way_out)
    if data[:OPENING] != found:
        expected = f"the checksum that it states, {data[11:OPENING].decode(errors='replace').strip()[:-2]}"
        broken(path, MANIFEST, expected=expected, given=f"{zlib.crc32(data[OPENING:]):08x}", file=MANIFEST)
    return strict_json(path, MANIFEST, data)


def _check_version(path: Path, content: Mapping[str, Any]) -> int:
    """Return a manifest's version, one that is read."""
    if content.get("format") != FORMAT:
        way_out = "Name the folder that `wherefrom record` or save_recording wrote."
        given = str(content.get("format"))[:40]
        broken(path, MANIFEST, expected=f'the format "{FORMAT}"', given=given, way_out=way_out)
    version = content.get("version")
    if type(version) is int and version > VERSION:
        given = f"version {version}, written by wherefrom {str(content.get('written_by'))[:40]}"
        way_out = "Open it with that version of wherefrom, or a later one."
        broken(path, MANIFEST, expected=f"format version {READ}", given=given, way_out=way_out, version=version)
    if type(version) is not int or version not in VERSIONS:
        broken(path, MANIFEST, expected=f"format version {READ}", given=str(version)[:40])
    return version


def _model(path: Path, value: Any) -> ModelFacts:
    at = Fields.of(path, "model", value, *(field.name for field in fields(ModelFacts)))
    return ModelFacts(
        name=at.text("name"),
        fingerprint=at.text("fingerprint"),
        layers=at.whole("layers", most=MOST_PARTS),
        heads=at.whole("heads", most=MOST_PARTS),
        kv_heads=at.whole("kv_heads", most=MOST_PARTS),
        head_size=at.whole("head_size"),
        context=at.whole("context"),
        kind=at.text("kind", "decoder", "encoder", "encoder-decoder"),
        encoder_layers=at.whole("encoder_layers", most=MOST_PARTS),
        window=None if at.absent("window") else at.whole("window", 1),
    )


def _gap(path: Path, where: str, value: Any) -> Gap:
    at = Fields.of(path, where, value, "name", "what", "layer", "calls")
    layer = None if at.absent("layer") else at.whole("layer", most=MOST_PARTS)
    return Gap(at.text("name"), at.text("what", *KINDS_OF_GAPS), layer, at.whole("calls"))


def _call(path: Path, where: str, value: Any, version: int) -> CallFacts:
    names = ("layer", "name", "kind", "part", "kernel", "scale", "softcap", "mask", "kept", "stored")
    at = Fields.of(path, where, value, *names, *["repeat"] * (version > 1))
    mask = Fields.of(path, f"{where}.mask", at.values["mask"], "causal", "window", "offset")
    part, kind = at.text("part", *(("decoder", "encoder") if version == 1 else ())), at.text("kind", *KINDS)
    if version == 1 and (part, kind) == ("encoder", "cross"):
        at.wrong("kind", '"self" in an encoder')
    if not is_part(part):
        at.wrong("part", PART_IN_WORDS)
    return CallFacts(
        layer=at.whole("layer", most=MOST_PARTS),
        name=at.text("name"),
        kind=kind,
        part=part,
        repeat=at.whole("repeat") if version > 1 else 0,
        kernel=at.text("kernel"),
        scale=at.number("scale"),
        softcap=None if at.absent("softcap") else at.number("softcap"),
        causal=mask.flag("causal"),
        window=None if mask.absent("window") else mask.whole("window", 1),
        offset=mask.whole("offset", most=MOST // 2),  # so that a position added to it is still of 64 bits
        kept=None if at.absent("kept") else _kept(path, at.at("kept"), at.values["kept"]),
        stored=None if at.absent("stored") else _stored(path, at.at("stored"), at.values["stored"]),
    )


def _kept(path: Path, where: str, value: Any) -> KeptFacts:
    at = Fields.of(path, where, value, "heads", "key_heads", "of_heads", "of_rows")
    return KeptFacts(
        at.wholes("heads"), at.wholes("key_heads"), at.whole("of_heads", most=MOST_PARTS), at.whole("of_rows")
    )


def _stored(path: Path, where: str, value: Any) -> Stored:
    at = Fields.of(path, where, value, "format", "rows", "weight_error", "sum_error")
    rounded = at.text("format", "float16", "bfloat16")
    return Stored(rounded, at.wholes("rows"), at.number("weight_error"), at.number("sum_error"))


def _files(path: Path, value: Any) -> dict[str, FileFacts]:
    names = tuple(value) if isinstance(value, dict) else ()
    listed = Fields.of(path, "files", value, *names)
    found = {}
    for name in names:
        at = Fields.of(path, listed.at(name), value[name], "bytes", "tensors")
        entries = at.values["tensors"]
        inside = tuple(entries) if isinstance(entries, dict) else ()
        each = Fields.of(path, at.at("tensors"), entries, *inside)
        found[name] = FileFacts(at.whole("bytes"), {one: _spec(path, each.at(one), entries[one]) for one in inside})
    return found


def _spec(path: Path, where: str, value: Any) -> Spec:
    at = Fields.of(path, where, value, "dtype", "shape", "crc32")
    dtype, shape, stated = at.text("dtype", *DTYPES), at.wholes("shape"), at.text("crc32")
    if len(stated) != 8 or stated.strip("0123456789abcdef"):
        at.wrong("crc32", "eight hexadecimal digits, in small letters")
    if len(shape) > 3 or math.prod(size or 1 for size in shape) > MOST:  # also of an array with a size of 0
        at.wrong("shape", "three sizes at most, and no more numbers than a file can hold", f"{list(shape[:3])}")
    return Spec(dtype, shape, int(stated, 16))


def _check_order(path: Path, manifest: Manifest) -> None:
    places = [call.place for call in manifest.calls]
    if places != sorted(set(places)):
        expected = "each call once: towers by name, then an encoder, then a decoder; of each self- before "
        expected += "cross-attention, layers ascending, then repeats"
        broken(path, "calls", expected=expected, given="another order", key="calls")


def _check_names(path: Path, manifest: Manifest) -> None:
    expected = {TOKENS, PREDICTIONS, *(call.file for call in manifest.calls)}
    for name in sorted(expected ^ set(manifest.files)):
        if name in expected:
            broken(path, "files", expected=f"an entry for {name}", given="none", file=name)
        broken(path, "files", expected="the files of its calls alone", given=f"{name[:80]!r}", file=name)
