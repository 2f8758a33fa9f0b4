"""Statistics over all weights of a recording's calls (floor 4): scanned once, kept beside the recording's file.

It turns a call into the plain arrays that `wherefrom.scans` takes, and gives `Scan`s to the questions beside it. What
was found of a recording that lies in a file is written into its folder, `scans/`, a file a call: the next question
reads it. Such a file is believed only if it says that it is of these very arrays and is as it was written; it may be
removed at any time.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from wherefrom.checks import check_index
from wherefrom.errors import InputError, RecordingError
from wherefrom.questions.scope import Scope
from wherefrom.recording import Array, Call, Recording, check_recording
from wherefrom.recording.layout import SCANS, TOKENS, read_manifest
from wherefrom.scans import Attention, Scan
from wherefrom.scans import scan as scan_attention

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (calls done, calls in all)."""

THRESHOLD, TOP = 0.05, 8
VERSION = 1
"""Of the files in `scans/`; others are computed again."""
WITH_TOP = ("strongest",)
WITH_THRESHOLD = ("readers", "last_reader")
"""What depends on how many strongest sources are kept, and on the weight from which a destination is a reader."""


def scan(
    recording: Recording,
    layer: int,
    wanted: Iterable[str],
    *,
    kind: str = "self",
    part: str | None = None,
    threshold: float = THRESHOLD,
    top: int = TOP,
) -> Scan:
    """Return statistics over all weights of one layer's call, as arrays: exact, in one pass and in linear memory.

    `Scan` says what there is: the entropy and the kinds of sources of every destination, the weight that every source
    received, histograms of distance, the strongest sources, the map in blocks at every zoom level.

    Args:
        recording: of any model.
        layer: from 0.
        wanted: the names of the statistics, such as ("entropy", "received"); only those are computed.
        kind: "self" or "cross".
        part: "decoder" or "encoder"; the one that predicts unless given.
        threshold: the weight from which a destination counts as a reader of a source.
        top: how many of the strongest sources of each destination are kept.

    Raises:
        InputError: a layer that the recording does not hold, or not with all destinations; an unknown statistic, or one
            that the call does not have; a threshold or top that is no number above 0.
    """
    recording = check_recording(recording)
    call = recording.call(layer, kind, part)
    return next(scans_of(recording, [call], wanted, threshold=threshold, top=top))


def scans_of(
    recording: Recording,
    calls: Iterable[Call],
    wanted: Iterable[str],
    *,
    threshold: float = THRESHOLD,
    top: int = TOP,
) -> Iterator[Scan]:
    """Yield the scan of each call, from the recording's folder where it is there; what is not is kept there.

    Raises:
        InputError: as `scan`.
    """
    names = tuple(dict.fromkeys(wanted))
    kept = _Kept.of(recording)
    for call in calls:
        require_all_rows(call)
        known = None if kept is None else kept.read(call, threshold, top)
        held = () if known is None else known.names
        missing = [name for name in names if name not in held]
        if not missing and known is not None and names:
            yield known
            continue
        codes = np.asarray(recording.read_by(call.kind, call.part)[1].ids)
        found = scan_attention(attention_of(call, codes), missing or names, threshold=threshold, top=top)
        arrays = found.to_arrays() if known is None else known.to_arrays() | found.to_arrays()
        if kept is not None:
            kept.write(call, arrays, threshold, top)
        yield Scan.from_arrays(arrays, threshold=threshold, top=top)


def attention_of(call: Call, codes: Array | None) -> Attention:
    """Return the plain arrays of a call as a scan takes them, with the ids of its sources' tokens as codes."""
    explicit, mask = call.mask.explicit, call.mask
    if explicit is not None and explicit.ndim == 3 and call.kept is not None:
        mask = replace(mask, explicit=explicit[list(call.head_numbers)])
    return Attention(
        q=call.q,
        k=call.k,
        lse=call.lse,
        mask=mask,
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
        bias=call.bias,
        key_heads=call.key_heads,
        codes=codes,
    )


def require_all_rows(call: Call) -> None:
    """Refuse a question about all destinations of a call of which only some were kept.

    Raises:
        InputError: the call does not hold every destination's query.
    """
    if not call.all_rows:
        raise InputError(
            "the recording",
            expected="every destination, since the question is about all of them",
            given=f"{len(call.rows):,} of {call.destinations:,} in layer {call.layer}",
            way_out="Record the text again with all positions kept.",
            layer=call.layer,
        )


class _Kept:
    """The scans that lie in a recording's folder."""

    def __init__(self, folder: Path, identities: Mapping[tuple[str, str, int], tuple[str, str]]) -> None:
        self._folder, self._identities = folder, identities

    @classmethod
    def of(cls, recording: Recording) -> _Kept | None:
        """Return those of a recording that was opened from a folder."""
        if recording.path is None:
            return None
        try:
            manifest = read_manifest(recording.path)
        except (OSError, RecordingError):  # it was moved or removed while it was in use: nothing is kept
            return None
        tokens = {name: spec.crc32 for name, spec in manifest.files[TOKENS].tensors.items()}
        identities = {}
        for call in manifest.calls:
            of_call = {name: spec.crc32 for name, spec in manifest.files[call.file].tensors.items()}
            identity = json.dumps([VERSION, of_call, tokens], sort_keys=True)
            identities[call.part, call.kind, call.layer] = (Path(call.file).name, identity)
        return cls(recording.path / SCANS, identities)

    def read(self, call: Call, threshold: float, top: int) -> Scan | None:
        """Return what is kept of a call; None if nothing is, or if it is not as it was written."""
        from safetensors import SafetensorError, safe_open

        file, identity = self._identities[_key(call)]
        try:
            with safe_open(self._folder / file, framework="numpy") as opened:
                facts = opened.metadata() or {}
                if facts.get("of") != identity:
                    return None
                arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no dict
        except (OSError, SafetensorError):
            return None
        if facts.get("crc32") != _checksum(arrays):
            return None
        dropped = (WITH_THRESHOLD if facts.get("threshold") != repr(threshold) else ()) + (
            WITH_TOP if facts.get("top") != repr(top) else ()
        )
        held = {name: array for name, array in arrays.items() if name.split(".")[0] not in dropped}
        return Scan.from_arrays(held, threshold=threshold, top=top)

    def write(self, call: Call, arrays: Mapping[str, Array], threshold: float, top: int) -> None:
        """Keep what was found of a call; where the folder cannot be written to, nothing is kept."""
        from safetensors.numpy import save_file

        file, identity = self._identities[_key(call)]
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        facts = {"of": identity, "threshold": repr(threshold), "top": repr(top), "crc32": _checksum(whole)}
        partial = self._folder / f".{file}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            for left in self._folder.glob(f".{file}.*"):  # by one that was killed
                left.unlink(missing_ok=True)
            try:
                save_file(whole, partial, metadata=facts)
                partial.replace(self._folder / file)
            finally:
                partial.unlink(missing_ok=True)


def _key(call: Call) -> tuple[str, str, int]:
    return call.part, call.kind, call.layer


def _checksum(arrays: Mapping[str, Array]) -> str:
    """Return a checksum of arrays, their names, kinds and shapes."""
    found = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), found)
        found = zlib.crc32(array.reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"


def calls_in_scope(recording: Recording, layer: Any, kind: str, part: str | None) -> list[Call]:
    """Return the calls of one layer, or of every layer that the recording holds.

    Raises:
        InputError: there are none.
    """
    scope = Scope(kind=kind, part=part).within(recording.model)
    layers = recording.model.layers_of(part or recording.model.part)
    if layer is None:
        return [call for call, _ in scope.calls(recording)]
    return [recording.call(check_index("layer", layer, layers), kind, part)]
