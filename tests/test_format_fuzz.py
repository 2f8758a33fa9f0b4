"""Damaged recordings, ten thousand of them in a long run: each is refused in a sentence, or read right; none crashes,
hangs or swells.

What an accident does (bits, bytes, lengths, files exchanged) must be noticed, or do no harm. What somebody forges, with
every checksum set right, must be refused or read as something that is consistent in itself.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from by_hand import random_call
from recordings import GOLDEN, assert_same, bytes_of, facts_of, tokens_of
from wherefrom.attention import Mask
from wherefrom.errors import WherefromError
from wherefrom.recording import ARRAYS, Call, Recording, open_recording, save_recording

SEED = 20260714
CASES = pytest.mark.parametrize("cases", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
Files = dict[str, bytes]
Draw = random.Random


# Accidents ------------------------------------------------------------------------------------------------------------


def one_file(draw: Draw, files: Files) -> str:
    return draw.choice(sorted(files))


def flipped(draw: Draw, files: Files) -> Files:
    name = one_file(draw, files)
    data = bytearray(files[name])
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return {name: bytes(data)}


def replaced(draw: Draw, files: Files) -> Files:
    name = one_file(draw, files)
    data = bytearray(files[name])
    start = draw.randrange(len(data))
    stop = min(len(data), start + draw.choice([1, 2, 8, 64]))
    data[start:stop] = draw.choice([bytes(stop - start), b"\xff" * (stop - start), draw.randbytes(stop - start)])
    return {name: bytes(data)}


def cut(draw: Draw, files: Files) -> Files:
    name = one_file(draw, files)
    return {name: files[name][: draw.randrange(len(files[name]))]}


def longer(draw: Draw, files: Files) -> Files:
    name = one_file(draw, files)
    at = draw.randint(0, len(files[name]))
    more = draw.choice([b"\0", b" ", b"0", b"}", draw.randbytes(draw.randint(1, 64)), files[name][:100]])
    return {name: files[name][:at] + more + files[name][at:]}


def moved(draw: Draw, files: Files) -> Files:
    """Bytes of one file over those of another, or of the same."""
    name, other = one_file(draw, files), one_file(draw, files)
    size = draw.choice([1, 8, 64, 512])
    start, target = draw.randrange(len(files[other])), draw.randrange(len(files[name]))
    piece = files[other][start : start + size]
    return {name: (files[name][:target] + piece + files[name][target + len(piece) :])}


def exchanged(draw: Draw, files: Files) -> Files:
    name, other = one_file(draw, files), one_file(draw, files)
    return {name: files[other], other: files[name]}


def misspelt(draw: Draw, files: Files) -> Files:
    """Another manifest, whose checksum is as it was."""
    data = forged(draw, files)["recording.json"]
    return {"recording.json": files["recording.json"][:22] + data[22:]}


# Forgeries ------------------------------------------------------------------------------------------------------------

NUMBERS = (-1, 0, 1, 2, 3, 5, 7, 8, 2**31, 2**53, 2**62, 2**63, 10**40, -0.0, 0.5, 1e300)
TEXTS = ("", "q", "F16", "I64", "self", "cross", "encoder", "float16", "00000000")
VALUES = (*NUMBERS, *TEXTS, None, True, False, [], {}, [0], [0, 1], [2**62, 4], [[]], {"a": 1})


def seal(content: bytes) -> bytes:
    return b'{"crc32": "%08x",\n' % zlib.crc32(content) + content


def manifest_of(content: dict[str, Any]) -> bytes:
    text = json.dumps(content)[1:]
    return seal(text.replace('"format": "wherefrom recording", ', '"format": "wherefrom recording",\n', 1).encode())


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def forged(draw: Draw, files: Files) -> Files:
    """A manifest with values changed, its checksum right."""
    content = json.loads(files["recording.json"])
    content.pop("crc32")
    for _ in range(draw.choice([1, 1, 2])):
        all_places = list(places(content))
        holder, key = draw.choice(all_places)
        action = draw.random()
        if action < 0.15:
            del holder[key]
        elif action < 0.3:
            other, at = draw.choice(all_places)
            holder[key] = (
                json.loads(json.dumps(other[at])) if at in other or (isinstance(at, int) and at < len(other)) else 0
            )
        elif action < 0.5 and isinstance(holder[key], int):
            holder[key] += draw.choice([-1, 1, 2**32])
        elif action < 0.6 and isinstance(holder, dict):
            holder[draw.choice(["", "q", "rows", "more", "kept"])] = draw.choice(VALUES)
        else:
            holder[key] = draw.choice(VALUES)
    return {"recording.json": manifest_of(content)}


def scribbled(draw: Draw, files: Files) -> Files:
    """A manifest's bytes changed, its checksum right."""
    rest = bytearray(files["recording.json"][22:])
    for _ in range(draw.choice([1, 1, 3])):
        at = draw.randrange(len(rest))
        rest[at : at + draw.choice([0, 1, 1, 5])] = draw.choice(
            [b"", b"9", b"-", b"e9", b"[", b'"', b"NaN", b"1e999", b"\xff", b"\\u0000"]
        )
    return {"recording.json": seal(bytes(rest))}


def renumbered(draw: Draw, files: Files) -> Files:
    """An array's bytes changed, its checksum and the manifest's right."""
    content = json.loads(files["recording.json"])
    content.pop("crc32")
    file = draw.choice(sorted(content["files"]))
    entries = content["files"][file]["tensors"]
    name = draw.choice(sorted(entries))
    data, size = bytearray(files[file]), 8 + int.from_bytes(files[file][:8], "little")
    start, stop = json.loads(data[8:size])[name]["data_offsets"]
    if stop > start:
        at = draw.randrange(start, stop)
        wide = min(stop, at + draw.choice([1, 8, 64]))
        data[size + at : size + wide] = draw.choice(
            [bytes(wide - at), b"\xff" * (wide - at), draw.randbytes(wide - at)]
        )
    entries[name]["crc32"] = f"{zlib.crc32(data[size + start : size + stop]):08x}"
    return {file: bytes(data), "recording.json": manifest_of(content)}


def rebuilt(draw: Draw, files: Files) -> Files:
    """A header and its manifest changed alike, sizes set right: an array of another kind, shape or name, or gone."""
    content = json.loads(files["recording.json"])
    content.pop("crc32")
    file = draw.choice(sorted(content["files"]))
    entries, data = content["files"][file]["tensors"], files[file]
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    name = draw.choice(sorted(entries))
    change = draw.choice(["dtype", "shape", "name", "gone", "offsets"])
    if change == "dtype":
        header[name]["dtype"] = entries[name]["dtype"] = draw.choice(
            ["F64", "I64", "F32", "BF16", "F16", "BOOL", "U8", "F8"]
        )
    elif change == "shape":
        shape = [draw.choice([0, 1, 2, 5, 7, 2**40]) for _ in range(draw.randint(0, 4))]
        header[name]["shape"] = entries[name]["shape"] = draw.choice([shape, entries[name]["shape"][::-1]])
    elif change == "name":
        new = draw.choice(["rows", "bias", "sinks", "explicit", "padding", "w", *entries])
        header[new], entries[new] = header.pop(name), entries.pop(name)
    elif change == "gone":
        del header[name], entries[name]
    else:
        header[name]["data_offsets"] = draw.choice(list(header.values()))["data_offsets"]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    made = len(text).to_bytes(8, "little") + text + data[size:]
    content["files"][file]["bytes"] = len(made)
    return {file: made, "recording.json": manifest_of(content)}


ACCIDENTS = (flipped, replaced, cut, longer, moved, exchanged, misspelt)
FORGERIES = (forged, scribbled, renumbered, rebuilt)


# Reading --------------------------------------------------------------------------------------------------------------


def walk(recording: Recording) -> None:
    """Ask a recording for everything, and find that what it says of itself agrees."""
    for tokens in (recording.tokens, recording.source or recording.tokens):
        assert len(tokens.ids) == len(tokens) == len(list(tokens))
        assert all(0 <= token.span[0] <= token.span[1] <= len(tokens.text) for token in tokens)
    assert all(0 <= prediction.position < len(recording) for prediction in recording.predictions)
    assert repr(recording)
    for call in recording.calls:
        assert repr(call)
        assert {field.name for field in fields(Call) if getattr(call, field.name, call) is call} == set()
        found = {name: getattr(call, name) for name in ARRAYS}
        assert call.shapes == {name: array.shape for name, array in found.items() if array is not None}
        assert len(call.head_numbers) == len(call.key_heads) == call.heads == len(call.lse)
        assert max(call.key_heads) < len(call.k)
        assert len(call.rows) == call.q.shape[1] <= call.destinations
        assert [len(text) for text in recording.texts_of(call)] == [call.destinations, call.sources]
        assert recording.call(call.layer, call.kind, call.part, call.repeat) is call
        assert all(call.place_of_head(head) == place for place, head in enumerate(call.head_numbers))
        assert call.place_of_row(int(call.rows[-1])) == len(call.rows) - 1
        assert np.isfinite(call.q).all()
        assert call.mask.permitted(call.rows[:2], range(call.sources)).shape[-1] == call.sources


def outcome(folder: Path) -> Recording | WherefromError:
    try:
        opened = open_recording(folder)
        walk(opened)
    except WherefromError as error:
        found: Recording | WherefromError = error
    else:
        found = opened
    assert len(str(found)) < 1000
    return found


class Damaged:
    """A recording's folder whose files are changed and put back."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, bytes_of(folder)
        self.whole = open_recording(folder)
        walk(self.whole)
        self.whole = replace(self.whole, calls=tuple(replace(call) for call in self.whole.calls))  # held in memory

    def put(self, files: Files) -> None:
        for name, data in files.items():
            with (self.folder / name).open("r+b") as file:  # emptied first, a file system would wait for its disk
                file.write(data)
                file.truncate()

    def try_one(self, mutate: Callable[[Draw, Files], Files], draw: Draw) -> bool:
        """Damage it, read it, put it back; return whether it was refused."""
        changed = mutate(draw, self.files)
        self.put(changed)
        found = outcome(self.folder)
        self.put({name: self.files[name] for name in changed})
        if isinstance(found, Recording) and (mutate in ACCIDENTS):
            assert_same(found, self.whole)
            assert all(self.files[name] == data for name, data in changed.items())  # only what is the same is the same
        return not isinstance(found, Recording)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Whatever hangs is ended."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def golden(name: str, to: Path) -> Damaged:
    return Damaged(shutil.copytree(GOLDEN / f"{name}.wherefrom", to / f"{name}.wherefrom"))


@pytest.mark.usefixtures("alarm")
@CASES
def test_damaged_recordings(cases: int, tmp_path: Path) -> None:
    recordings = [
        golden(name, tmp_path) for name in ("float32", "bfloat16-2", "everything", "everything-2", "towers-2")
    ]
    kinds = (*ACCIDENTS, *FORGERIES)
    refused = dict.fromkeys(kinds, 0)
    for case in range(cases):
        kind = kinds[case % len(kinds)]
        try:
            refused[kind] += recordings[case % len(recordings)].try_one(kind, Draw(SEED + case))
        except BaseException:
            print(f"seed {SEED}, case {case}, {kind.__name__}")
            raise
    print(f"seed {SEED}:", {kind.__name__: count for kind, count in refused.items()})
    each = cases // len(kinds)
    assert all(refused[kind] > 0.7 * each for kind in ACCIDENTS)
    assert all(0.05 * each < refused[kind] for kind in FORGERIES)
    assert refused[renumbered] < each  # some of what is forged is consistent, and is read


@pytest.mark.usefixtures("alarm")
def test_no_damage_makes_memory_swell(tmp_path: Path) -> None:
    """Reading takes at most four times the size of the files, whatever they say of themselves."""
    calls = tuple(random_call(Mask(), length=350, head_size=32, layer=layer) for layer in range(2))
    calls = (replace(calls[0], mask=Mask(explicit=np.tri(350, dtype=bool))), calls[1])
    recording = Recording(facts_of(), tokens_of(*["five "] * 350), calls, (), None, 0.0)
    damaged = Damaged(save_recording(recording, tmp_path / "a", store="bfloat16"))
    size = sum(map(len, damaged.files.values()))
    kinds, most = (*ACCIDENTS, *FORGERIES), 0
    for case in range(132):
        kind, draw = kinds[case % len(kinds)], Draw(SEED - case)
        changed = kind(draw, damaged.files)
        damaged.put(changed)
        tracemalloc.start()
        outcome(damaged.folder)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        damaged.put({name: damaged.files[name] for name in changed})
        most = max(most, peak)
        assert peak < 4 * size, f"seed {SEED}, case {case}, {kind.__name__}: {peak:,} bytes of {size:,}"
    print(f"seed {SEED}: at most {most / size:.2f} times the size of {size:,} bytes")
