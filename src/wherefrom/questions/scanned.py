"""Statistics over all weights of a recording's calls (floor 4): scanned once, kept beside the recording's file.

It turns a call into the plain arrays that `wherefrom.scans` takes, and gives `Scan`s to the questions beside it. What
was found of a recording that lies in a file is written into its folder, `scans/`, a file a call: the next question
reads it. Such a file is believed only if it says that it is of these very arrays and is as it was written; it may be
removed at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from wherefrom.attention import Mask
from wherefrom.checks import check_items, whole
from wherefrom.errors import InputError
from wherefrom.recording import Array, Call, Recording, check_recording, is_numbered
from wherefrom.recording.layout import SCANS
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
    repeat: int = 0,
    threshold: float = THRESHOLD,
    top: int = TOP,
) -> Scan:
    """Return statistics over all weights of one layer's call, as arrays: exact, in one pass and in linear memory.

    `Scan` says what there is: the entropy and the kinds of sources of every destination, the weight that every source
    received, histograms of distance, the strongest sources, the map in blocks at every zoom level.

    Args:
        recording: of any model.
        layer: from 0.
        wanted: the names of the statistics, such as ("entropy", "received"), or a single one; only those are computed.
        kind: "self" or "cross".
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of the layer's module.
        threshold: the weight from which a destination counts as a reader of a source.
        top: how many of the strongest sources of each destination are kept.

    Raises:
        InputError: a layer that the recording does not hold, or not with all destinations; an unknown statistic, or one
            that the call does not have; a threshold or top that is no number above 0.
    """
    recording = check_recording(recording)
    call = recording.call(layer, kind, part, repeat)
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
    given = (wanted,) if isinstance(wanted, str) else wanted
    given = check_items("what is wanted", given, expected="names of statistics", way_out='Such as ("entropy", "top").')
    names = tuple(dict.fromkeys(map(str, given)))
    most = whole("the number of strongest sources", top, least=1, way_out="8 is a good one.")
    for call in calls:
        require_all_rows(call)
        text = recording.texts_of(call)[1]
        codes = None if is_numbered(text) else np.asarray(text.ids)
        own_top = min(most, call.sources)  # there are no more
        kept = _Kept.of(recording, call, codes, threshold, own_top)
        known = None if kept is None else kept.read()
        held = () if known is None else known.names
        missing = [name for name in names if name not in held]
        if not missing and known is not None and names:
            yield known
            continue
        found = scan_attention(attention_of(call, codes), missing or names, threshold=threshold, top=own_top)
        arrays = found.to_arrays() if known is None else known.to_arrays() | found.to_arrays()
        if kept is not None:
            kept.write(arrays)
        yield Scan.from_arrays(arrays, threshold=threshold, top=own_top)


def attention_of(call: Call, codes: Array | None) -> Attention:
    """Return the plain arrays of a call as a scan takes them, with the ids of its sources' tokens as codes."""
    return Attention(
        q=call.q,
        k=call.k,
        lse=call.lse,
        mask=mask_of(call),
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
        bias=call.bias,
        key_heads=call.key_heads,
        codes=codes,
    )


def mask_of(call: Call) -> Mask:
    """Return the mask of the heads that were kept."""
    explicit, mask = call.mask.explicit, call.mask
    if explicit is not None and explicit.ndim == 3 and call.kept is not None:
        return replace(mask, explicit=explicit[list(call.head_numbers)])
    return mask


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


def require_whole_text(recording: Recording, call: Call) -> None:
    """Refuse a question in positions of the text about a call that does not read all of it, from its beginning on.

    A call over more positions than its text has tokens has other positions, which count within the call.

    Raises:
        InputError: the call begins at a later position, or has fewer destinations or sources than the text has tokens.
    """
    sizes = call.destinations, call.sources
    known = zip(recording.known_texts(call), sizes, strict=True)
    listed, read = (size if text is None else len(text) for text, size in known)
    later = call.mask.offset > 0 and call.sources <= read
    if later or call.destinations < listed or call.sources < read:
        raise InputError(
            f"the call of layer {call.layer}",
            expected=f"{listed:,} destinations from position 0 on over {read:,} sources, those of the text",
            given=f"{call.destinations:,} from position {call.mask.offset:,} on over {call.sources:,}",
            way_out="Record the pass over the whole text.",
            layer=call.layer,
        )


class _Kept:
    """The scan of a call that lies, or will lie, in its recording's folder."""

    def __init__(self, path: Path, of: str, threshold: float, top: int) -> None:
        self._path, self._facts = path, {"of": of, "threshold": repr(threshold), "top": repr(top)}
        self._threshold, self._top = threshold, top

    @classmethod
    def of(cls, recording: Recording, call: Call, codes: Array | None, threshold: float, top: int) -> _Kept | None:
        """Return that of a call that lies in a file itself; None of one in memory."""
        if recording.path is None or call.origin is None:
            return None
        name, identity = call.origin
        text = None if codes is None else zlib.crc32(np.ascontiguousarray(codes).view(np.uint8).data)
        of = json.dumps([VERSION, identity, text])
        return cls(recording.path / SCANS / name, of, threshold, top)

    def read(self) -> Scan | None:
        """Return what is kept; None if nothing is, or if it is of something else, or not as it was written."""
        try:
            facts, arrays = _read_file(self._path)
        except (OSError, ValueError):
            return None
        if facts.get("of") != self._facts["of"] or facts.get("crc32") != _checksum(facts, arrays):
            return None
        dropped = (WITH_THRESHOLD if facts.get("threshold") != self._facts["threshold"] else ()) + (
            WITH_TOP if facts.get("top") != self._facts["top"] else ()
        )
        held = {name: array for name, array in arrays.items() if name.split(".")[0] not in dropped}
        return Scan.from_arrays(held, threshold=self._threshold, top=self._top)

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Keep what was found; where the folder cannot be written to, nothing is kept."""
        from safetensors.numpy import save

        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        facts = {**self._facts, "crc32": _checksum(self._facts, whole)}
        partial = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            for left in self._path.parent.glob(f".{self._path.name}.*"):  # by one that was killed
                left.unlink(missing_ok=True)
            try:
                partial.write_bytes(save(whole, metadata=facts))
                partial.replace(self._path)
            finally:
                partial.unlink(missing_ok=True)


def _read_file(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the facts and the arrays of a file of ours; a link, or a pipe that would be waited for, is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what was written.
    """
    from safetensors import SafetensorError  # which takes a while, and only who scans pays for it
    from safetensors.numpy import load

    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is no file")
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    facts = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    try:
        return dict(facts), load(data)
    except SafetensorError as error:
        raise ValueError(f"{error}") from error


def _checksum(facts: Mapping[str, str], arrays: Mapping[str, Array]) -> str:
    """Return a checksum of what a file says of itself, and of its arrays, their names, kinds and shapes."""
    said = {name: value for name, value in facts.items() if name != "crc32"}
    found = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), found)
        found = zlib.crc32(array.reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"
