"""Every way in which a recording's file can be broken has a sentence, and is tried here."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordings import GOLDEN, bytes_of, exact_call, plain
from wherefrom.attention import Mask
from wherefrom.errors import InputError, RecordingError
from wherefrom.recording import open_recording, save_recording
from wherefrom.recording import verify_recording as verify

CALL = "calls/decoder-self-001.safetensors"
SELF = "calls/decoder-self-000.safetensors"


@pytest.fixture(params=["everything", "everything-2"])
def whole(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A golden recording with everything optional, of either version."""
    return shutil.copytree(GOLDEN / f"{request.param}.wherefrom", tmp_path / "a.wherefrom")


@pytest.fixture(params=["float32", "float32-2"])
def simple(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A golden recording of a decoder, of either version."""
    return shutil.copytree(GOLDEN / f"{request.param}.wherefrom", tmp_path / "a.wherefrom")


@pytest.fixture
def towers(tmp_path: Path) -> Path:
    """A golden recording with several towers, executions, and gaps."""
    return shutil.copytree(GOLDEN / "towers-2.wherefrom", tmp_path / "a.wherefrom")


def refused(path: Path, sentence: str, **facts: object) -> None:
    """Assert that a recording is refused by a sentence that begins so, behind its path, and with facts."""
    with pytest.raises(RecordingError) as caught:
        verify(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")
    for name, value in ({"path": path} | facts).items():
        assert getattr(caught.value, name) == value


def seal(content: bytes) -> bytes:
    """A manifest's bytes with the checksum that they should have."""
    return b'{"crc32": "%08x",\n' % zlib.crc32(content) + content


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and set its checksum right, as no accident would."""
    file = path / "recording.json"
    content = json.loads(file.read_bytes())
    content.pop("crc32")
    change(content)
    rest = json.dumps(content)[1:].replace('"format": "wherefrom recording", ', '"format": "wherefrom recording",\n', 1)
    file.write_bytes(seal(rest.encode()))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def header(path: Path, old: bytes, new: bytes) -> None:
    """Change a header's text, of which the length stays."""
    assert len(old) == len(new)
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    assert old in data[:size]
    path.write_bytes(data[:size].replace(old, new) + data[size:])


def spaced(path: Path) -> None:
    """Take a blank from behind a header's text into it."""
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    assert data[size - 1 : size] == b" "
    path.write_bytes(data[:8] + data[8 : size - 1].replace(b":", b": ", 1) + data[size:])


# Not a recording ------------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "a", "the recording: expected a folder with a recording, got nothing there. Check the path.")


def test_a_single_file(whole: Path) -> None:
    file = whole / CALL
    refused(file, "the recording: expected a folder with a recording, got a file. Name the folder that")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    refused(tmp_path, "the recording: expected a folder with a recording, got a folder without a recording.json")


def test_a_file_that_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "a", "the recording: expected a folder with a recording, got nothing there")


@pytest.mark.parametrize("path", ["a\0b", 5, None])
def test_no_path(path: Any) -> None:
    with pytest.raises(InputError, match="the path: expected a "):
        open_recording(path)
    with pytest.raises(InputError, match="the path: expected a "):
        save_recording(plain(), path)


# The manifest ---------------------------------------------------------------------------------------------------------


def manifest(text: str | bytes) -> Callable[[Path], None]:
    data = text.encode() if isinstance(text, str) else text
    return lambda path: (path / "recording.json").write_bytes(data)


def value(*keys: str | int, to: Any) -> Callable[[Path], None]:
    """Set one value of the manifest."""

    def change(content: dict[str, Any]) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return lambda path: edit(path, change)


def without(*keys: str | int) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return lambda path: edit(path, change)


HEAD = b'"format": "wherefrom recording",\n"version": 1'
MANIFESTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (
        manifest(""),
        'recording.json: expected a manifest of a recording, beginning with its own {"crc32": ...}',
    ),
    "of another program": (manifest('{"a": 1}'), "recording.json: expected a manifest of a recording"),
    "cut short": (
        lambda path: manifest((path / "recording.json").read_bytes()[:300])(path),
        "recording.json: expected the checksum that it states, ",
    ),
    "a byte changed": (lambda path: flip(path / "recording.json", 500), "recording.json: expected the checksum"),
    "its checksum changed": (lambda path: flip(path / "recording.json", 12), "recording.json: expected the checksum"),
    "too large": (manifest(b" " * (2**24 + 1)), "recording.json: expected at most 16,777,216 bytes, got 16,777,217"),
    "not JSON": (manifest(seal(HEAD)), "recording.json: expected JSON, got text that is none (Expecting"),
    "not UTF-8": (manifest(seal(HEAD + b"\xff")), "recording.json: expected JSON, got text that is none ('utf-8'"),
    "nested deeply": (
        manifest(seal(HEAD + b', "a": ' + b"[" * 10**6)),
        "recording.json: expected JSON of a few levels, got deep nesting",
    ),
    "a key twice": (
        manifest(seal(HEAD + b', "version": 1}')),
        "recording.json: expected JSON, got text that is none (the key 'version' stands there twice)",
    ),
    "a NaN": (
        manifest(seal(HEAD + b', "seconds": NaN}')),
        "recording.json: expected JSON, got text that is none (NaN is no number)",
    ),
    "an infinity": (
        lambda path: manifest(
            seal((path / "recording.json").read_bytes()[22:].replace(b'"seconds": 12.5', b'"seconds": 1e999'))
        )(path),
        "the manifest.seconds: expected a finite number, got inf",
    ),
    "a number of too many digits": (
        manifest(seal(HEAD + b', "seconds": ' + b"9" * 5000 + b"}")),
        "recording.json: expected JSON, got text that is none (Exceeds the limit",
    ),
    "another format": (value("format", to="another"), 'recording.json: expected the format "wherefrom recording", got'),
    "a newer version": (
        value("version", to=3),
        "recording.json: expected format version 1 or 2, got version 3, written by wherefrom 0.1.0. Open it with that",
    ),
    "no version": (without("version"), "recording.json: expected format version 1 or 2, got None"),
    "version 0": (value("version", to=0), "recording.json: expected format version 1 or 2, got 0"),
    "a version that is none": (value("version", to=True), "recording.json: expected format version 1 or 2, got True"),
    "a key missing": (without("model"), "the manifest: expected the key 'model', got none"),
    "a key too many": (
        value("more", to=1),
        "the manifest: expected no key beyond those of the format, got a key 'more'",
    ),
    "another unit": (value("units", "logarithms", to="bits"), "the manifest.units: expected the units of the format"),
    "the model a list": (value("model", to=[]), "model: expected an object, got a list"),
    "the model without its name": (without("model", "name"), "model: expected the key 'name', got none"),
    "of a kind that is none": (value("model", "kind", to="bird"), 'model.kind: expected "decoder" or "encoder" or'),
    "half a layer": (
        value("model", "layers", to=1.5),
        "model.layers: expected a whole number from 0 to 100000, got 1.5",
    ),
    "a true number": (
        value("model", "heads", to=True),
        "model.heads: expected a whole number from 0 to 100000, got true",
    ),
    "more layers than can be": (
        value("model", "layers", to=10**9),
        "model.layers: expected a whole number from 0 to 100000, got 1000000000",
    ),
    "a huge number": (
        value("model", "heads", to=2**63),
        "model.heads: expected a whole number from 0 to 100000, got a number",
    ),
    "a number as its name": (value("model", "name", to=5), "model.name: expected a text, got 5"),
    "a window of 0": (value("model", "window", to=0), "model.window: expected a whole number from 1, got 0"),
    "the calls an object": (value("calls", to={}), "the manifest.calls: expected a list, got an object"),
    "a call too many": (
        lambda path: edit(path, lambda content: content["calls"].append(content["calls"][-1])),
        "calls: expected each call once",
    ),
    "calls in another order": (
        lambda path: edit(path, lambda content: content["calls"].reverse()),
        "calls: expected each call once: towers by name, then an encoder, then a decoder; of each self- before cross-",
    ),
    "a call missing": (
        without("calls", 1),
        "files: expected the files of its calls alone, got 'calls/decoder-self-001.safetensors'",
    ),
    "a file's entry missing": (without("files", CALL), f"files: expected an entry for {CALL}, got none"),
    "a file elsewhere": (
        value("files", "../x.safetensors", to={"bytes": 0, "tensors": {}}),
        "files: expected the files",
    ),
    "a call of another kind": (value("calls", 0, "kind", to="both"), 'calls[0].kind: expected "self" or "cross", got'),
    "a scale of text": (value("calls", 0, "scale", to="1"), "calls[0].scale: expected a finite number, got '1'"),
    "causal by number": (
        value("calls", 0, "mask", "causal", to=1),
        "calls[0].mask.causal: expected true or false, got 1",
    ),
    "a mask without its offset": (without("calls", 0, "mask", "offset"), "calls[0].mask: expected the key 'offset'"),
    "an offset beyond 64 bits": (
        value("calls", 0, "mask", "offset", to=2**63 - 1),
        "calls[0].mask.offset: expected a wh",
    ),
    "heads of text": (value("calls", 1, "kept", "heads", to=["1"]), "calls[1].kept.heads: expected a list of whole"),
    "rounded to a format that is none": (
        value("calls", 0, "stored", to={"format": "int8", "rows": [], "weight_error": 0, "sum_error": 0}),
        'calls[0].stored.format: expected "float16" or "bfloat16", got \'int8\'',
    ),
    "an unknown dtype": (
        value("files", CALL, "tensors", "q", "dtype", to="F8_E4M3"),
        f'files.{CALL}.tensors.q.dtype: expected "F64" or "I64" or "F32" or "BF16" or "F16"',
    ),
    "a checksum in capitals": (
        value("files", CALL, "tensors", "q", "crc32", to="0123ABCD"),
        f"files.{CALL}.tensors.q.crc32: expected eight hexadecimal digits, in small letters, got '0123ABCD'",
    ),
    "four sizes": (
        value("files", CALL, "tensors", "q", "shape", to=[1, 2, 4, 5]),
        f"files.{CALL}.tensors.q.shape: expected three sizes at most",
    ),
    "sizes beyond every file": (
        value("files", CALL, "tensors", "q", "shape", to=[0, 2**62, 2**62]),
        f"files.{CALL}.tensors.q.shape: expected three sizes at most, and no more numbers than a file can hold",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_wrong(name: str, whole: Path) -> None:
    spoil, sentence = MANIFESTS[name]
    spoil(whole)
    refused(whole, sentence)


FIRST_ONLY: dict[str, tuple[Callable[[Path], None], str]] = {
    "gaps": (value("gaps", to=[]), "the manifest: expected no key beyond those of the format, got a key 'gaps'"),
    "a repeat": (value("calls", 0, "repeat", to=0), "calls[0]: expected no key beyond those of the format, got a key"),
    "another part": (value("calls", 0, "part", to="vision"), 'calls[0].part: expected "decoder" or "encoder", got'),
    "cross-attention in an encoder": (
        value("calls", 0, "kind", to="cross"),
        'calls[0].kind: expected "self" in an encoder, got',
    ),
    "what version 2 says": (value("version", to=2), "the manifest: expected the key 'gaps', got none"),
}


@pytest.mark.parametrize("name", FIRST_ONLY)
def test_version_1_has_nothing_of_version_2(name: str, tmp_path: Path) -> None:
    spoil, sentence = FIRST_ONLY[name]
    whole = shutil.copytree(GOLDEN / "everything.wherefrom", tmp_path / "a.wherefrom")
    spoil(whole)
    refused(whole, sentence)


def exchanged(one: int, other: int) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        calls = content["calls"]
        calls[one], calls[other] = calls[other], calls[one]

    return lambda path: edit(path, change)


PART = 'calls[0].part: expected small letters, digits, "_" and ".", a letter first, 100 characters at most, got'
ORDER = "calls: expected each call once: towers by name"
SECOND_ONLY: dict[str, tuple[Callable[[Path], None], str]] = {
    "no gaps": (without("gaps"), "the manifest: expected the key 'gaps', got none"),
    "gaps that are none": (value("gaps", to={}), "the manifest.gaps: expected a list, got an object"),
    "a gap that is none": (value("gaps", 0, to="a.b"), "gaps[0]: expected an object, got 'a.b'"),
    "a gap without its name": (without("gaps", 1, "name"), "gaps[1]: expected the key 'name', got none"),
    "a gap with more": (value("gaps", 1, "more", to=1), "gaps[1]: expected no key beyond those of the format, got a k"),
    "a gap of another kind": (
        value("gaps", 1, "what", to="convolution"),
        'gaps[1].what: expected "softmax" or "scaled_dot_product_attention" or "multi_head_attention" or "no attent',
    ),
    "a gap before all layers": (
        value("gaps", 1, "layer", to=-1),
        "gaps[1].layer: expected a whole number from 0 to 100000, got -1",
    ),
    "half an execution": (value("gaps", 1, "calls", to=0.5), "gaps[1].calls: expected a whole number from 0, got 0.5"),
    "no repeat": (without("calls", 0, "repeat"), "calls[0]: expected the key 'repeat', got none"),
    "a repeat below 0": (
        value("calls", 0, "repeat", to=-1),
        "calls[0].repeat: expected a whole number from 0, got -1",
    ),
    "a part in capitals": (value("calls", 0, "part", to="Vision"), f"{PART} 'Vision'"),
    "a part without a name": (value("calls", 0, "part", to=""), f"{PART} ''"),
    "a part with a dash": (value("calls", 0, "part", to="vision-self"), f"{PART} 'vision-self'"),
    "a part elsewhere": (value("calls", 0, "part", to="../vision"), f"{PART} '../vision'"),
    "a part of a line more": (value("calls", 0, "part", to="vision\n"), PART),
    "a part of 101 letters": (value("calls", 0, "part", to="a" * 101), f"{PART} a long text"),
    "a part that is a number": (value("calls", 0, "part", to=5), "calls[0].part: expected a text, got 5"),
    "another repeat": (
        value("calls", 1, "repeat", to=2),
        "files: expected the files of its calls alone, got 'calls/vision-self-000-1.safetensors'",
    ),
    "the same call twice": (value("calls", 1, "repeat", to=0), ORDER),
    "executions in another order": (exchanged(0, 1), ORDER),
    "layers in another order": (exchanged(0, 2), ORDER),
    "parts in another order": (exchanged(3, 4), ORDER),
    "a tower behind a text": (exchanged(4, 5), ORDER),
    "cross- before self-attention": (exchanged(6, 7), ORDER),
}


@pytest.mark.parametrize("name", SECOND_ONLY)
def test_what_version_2_has_may_be_wrong(name: str, towers: Path) -> None:
    assert [call.part for call in verify(towers).recording.calls][3:6] == ["vision", "vision.pooler", "decoder"]
    spoil, sentence = SECOND_ONLY[name]
    spoil(towers)
    refused(towers, sentence)


def test_a_newer_version_is_told_by_number(whole: Path) -> None:
    value("version", to=7)(whole)
    refused(whole, "recording.json", version=7)


def test_of_a_newer_version_nothing_else_is_looked_at(whole: Path) -> None:
    edit(whole, lambda content: [content.update(version=3, more=[]), content.pop("model")])
    shutil.rmtree(whole / "calls")
    refused(whole, "recording.json: expected format version 1 or 2, got version 3, written by wherefrom 0.1.0.")


def test_other_files_are_not_looked_at(whole: Path) -> None:
    (whole / "notes.txt").write_text("mine")
    (whole / "calls" / "decoder-self-009.safetensors").write_text("no such call")
    assert verify(whole).files == 6


def test_a_manifest_that_is_a_folder(whole: Path) -> None:
    (whole / "recording.json").unlink()
    (whole / "recording.json").mkdir()
    refused(whole, "recording.json: expected a file or folder of its own, got a link or something else")


# Files that do not fit one another ------------------------------------------------------------------------------------


def spec(file: str, name: str, **to: Any) -> Callable[[Path], None]:
    """Change what the manifest says of one array."""
    return lambda path: edit(path, lambda content: content["files"][file]["tensors"][name].update(to))


def added(file: str, name: str, dtype: str, *shape: int) -> Callable[[Path], None]:
    entry = {"dtype": dtype, "shape": list(shape), "crc32": "00000000"}
    return lambda path: edit(path, lambda content: content["files"][file]["tensors"].update({name: entry}))


KEPT_ROWS = ("calls", 1, "kept")
DISAGREEING: dict[str, tuple[Callable[[Path], None], str]] = {
    "no q": (without("files", CALL, "tensors", "q"), f"the array 'q' in {CALL}: expected it, got none of that name"),
    "an array without meaning": (
        added(CALL, "w", "F32", 0),
        f"the array 'w' in {CALL}: expected no array beyond those of the format",
    ),
    "rows of a whole call": (
        added("calls/encoder-self-000.safetensors", "rows", "I64", 7),
        "the array 'rows' in calls/enc",
    ),
    "k of another size": (
        spec(CALL, "k", shape=[2, 7, 4]),
        f"k in {CALL}: expected F16 or BF16 or F32 or F64 of shape [K, S, 5], got F32 of shape [2, 7, 4]",
    ),
    "v of other heads": (
        spec(CALL, "v", shape=[1, 7, 3]),
        f"v in {CALL}: expected F16 or BF16 or F32 or F64 of shape [2,",
    ),
    "lse of 16 bits": (spec(CALL, "lse", dtype="F16"), f"lse in {CALL}: expected F32 of shape [2, 4], got F16"),
    "q of whole numbers": (spec(CALL, "q", dtype="I64"), f"q in {CALL}: expected F16 or BF16 or F32 or F64 of shape"),
    "sinks of other heads": (
        spec(CALL, "sinks", shape=[3]),
        f"sinks in {CALL}: expected F16 or BF16 or F32 or F64 of sh",
    ),
    "padding of other sources": (
        spec(CALL, "padding", shape=[6]),
        f"padding in {CALL}: expected BOOL of shape [7], got B",
    ),
    "an explicit mask of kept rows": (
        spec(CALL, "explicit", shape=[6, 4, 7]),
        f"explicit in {CALL}: expected BOOL of shape [7, 7] or [6, 7, 7], got BOOL of shape [6, 4, 7]",
    ),
    "a bias of three heads": (
        spec(CALL, "bias", shape=[3, 4, 7]),
        f"bias in {CALL}: expected F16 or BF16 or F32 or F64 of shape [2, 4, 7] or [1, 4, 7], got F32 of",
    ),
    "no sources": (
        lambda path: [spec(CALL, name, shape=[2, 0, size])(path) for name, size in (("k", 5), ("v", 3))],
        f"q, k and v in {CALL}: expected a size of one at least everywhere, got S of 0",
    ),
    "heads that are no multiple": (
        lambda path: [
            spec("calls/encoder-self-000.safetensors", name, shape=[4, 7, size])(path)
            for name, size in (("k", 5), ("v", 3))
        ],
        "q and k in calls/encoder-self-000.safetensors: expected heads that are a multiple of 4 key heads, got 6",
    ),
    "kept heads that descend": (
        value(*KEPT_ROWS, "heads", to=[5, 1]),
        f"kept heads in {CALL}: expected 2 of 6, ascendin",
    ),
    "kept heads beyond all": (
        value(*KEPT_ROWS, "of_heads", to=5),
        f"kept heads in {CALL}: expected 2 of 5, ascending, g",
    ),
    "kept key heads beyond": (
        value(*KEPT_ROWS, "key_heads", to=[0, 2]),
        f"kept key heads in {CALL}: expected for each of",
    ),
    "rows of fewer": (value(*KEPT_ROWS, "of_rows", to=3), f"rows in {CALL}: expected 3 destinations at most, got 4"),
    "a softcap of 0": (
        value("calls", 1, "softcap", to=0),
        f"the softcap in {CALL}: expected a number above 0, got 0.0",
    ),
    "rounded, it says": (
        value("calls", 0, "stored", to={"format": "float16", "rows": [], "weight_error": 0, "sum_error": 0}),
        "q in calls/encoder-self-000.safetensors: expected F16, as its call says that it was rounded, got F32",
    ),
    "tokens of two lengths": (
        spec("tokens.safetensors", "ids", shape=[6]),
        "spans in tokens.safetensors: expected I64 of shape [6, 2], got I64 of shape [7, 2]",
    ),
    "half a source": (
        without("files", "tokens.safetensors", "tensors", "source.ids"),
        "the array 'source.ids' in tokens.safetensors: expected it, got none of that name",
    ),
    "more predictions than tokens": (
        lambda path: [
            spec("predictions.safetensors", name, shape=shape)(path)
            for name, shape in (("positions", [8]), ("ids", [8, 0]), ("log_probabilities", [8, 0]))
        ],
        "positions in predictions.safetensors: expected 7 predictions at most",
    ),
    "written from beyond the end": (value("written_from", to=8), "written_from: expected one of 7 tokens, got 8"),
    "more destinations than tokens": (
        value(*KEPT_ROWS, "of_rows", to=8),
        f"explicit in {CALL}: expected BOOL of shape [8, 7] or [6, 8, 7], got BOOL of shape [6, 7, 7]",
    ),
}


@pytest.mark.parametrize("name", DISAGREEING)
def test_arrays_that_do_not_fit(name: str, whole: Path) -> None:
    spoil, sentence = DISAGREEING[name]
    spoil(whole)
    refused(whole, sentence)


def test_in_version_1_no_more_sources_than_tokens(tmp_path: Path) -> None:
    simple = shutil.copytree(GOLDEN / "float32.wherefrom", tmp_path / "a.wherefrom")
    for array, size in (("k", 5), ("v", 3)):
        spec(SELF, array, shape=[2, 8, size])(simple)
    refused(simple, f"the sources of {SELF}: expected as many as tokens, 7, at most, got 8", layer=0)


# The files themselves -------------------------------------------------------------------------------------------------


def test_a_file_that_is_missing(whole: Path) -> None:
    size = (whole / CALL).stat().st_size
    (whole / CALL).unlink()
    refused(whole, f"{CALL}: expected a file of {size:,} bytes, got nothing there", file=CALL)
    shutil.rmtree(whole / "calls")
    refused(whole, "calls/")


@pytest.mark.parametrize("name", [CALL, "tokens.safetensors", "predictions.safetensors"])
def test_a_file_cut_short(name: str, whole: Path) -> None:
    data = (whole / name).read_bytes()
    (whole / name).write_bytes(data[:-1])
    refused(whole, f"{name}: expected {len(data):,} bytes, got {len(data) - 1:,}", file=name, size=len(data) - 1)


def test_a_file_cut_short_since_it_was_opened(whole: Path) -> None:
    call = open_recording(whole).calls[1]
    (whole / CALL).write_bytes((whole / CALL).read_bytes()[:-1])
    with pytest.raises(RecordingError, match=rf"{CALL}: expected [\d,]+ bytes, got"):
        _ = call.q
    (whole / CALL).unlink()
    with pytest.raises(RecordingError, match=r"expected a file that can be read, got .*No such file"):
        _ = call.q


@pytest.mark.parametrize("inside", [True, False])
def test_a_link(inside: bool, whole: Path, tmp_path: Path) -> None:
    target = whole / "b" if inside else tmp_path / "b"
    (whole / CALL).rename(target)
    (whole / CALL).symlink_to(target)
    refused(whole, f"{CALL}: expected a file or folder of its own, got a link or something else. Copy the recording")


def test_a_folder_of_calls_that_is_a_link(whole: Path, tmp_path: Path) -> None:
    (whole / "calls").rename(tmp_path / "calls")
    (whole / "calls").symlink_to(tmp_path / "calls")
    refused(whole, "calls: expected a file or folder of its own, got a link")


def test_a_link_to_the_whole_folder_is_fine(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to(whole)
    assert verify(tmp_path / "b").files == 6


def arrays_of(folder: Path) -> list[tuple[str, str]]:
    content = json.loads((folder / "recording.json").read_bytes())
    return [
        (file, name)
        for file, facts in content["files"].items()
        for name, entry in facts["tensors"].items()
        if np.prod(entry["shape"])
    ]


@pytest.mark.parametrize(("file", "array"), arrays_of(GOLDEN / "everything.wherefrom"))
def test_one_bit_of_one_array(file: str, array: str, whole: Path) -> None:
    data = (whole / file).read_bytes()
    size = int.from_bytes(data[:8], "little")
    first = json.loads(data[8 : 8 + size])[array]["data_offsets"][0]
    flip(whole / file, 8 + size + first)
    known = {"layer": int(file[-15:-12])} if file.startswith("calls/") else {}
    refused(whole, f"{array} in {file}: expected the checksum ", file=file, array=array, **known)


HEADERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "another length": (lambda file: flip(file, 0), f"the header of {CALL}: expected a length of "),
    "not JSON": (lambda file: header(file, b'{"checks', b'["checks'), f"the header of {CALL}: expected JSON, got text"),
    "another name": (
        lambda file: header(file, b'"sinks"', b'"sunks"'),
        f"the header of {CALL}: expected the array 'sinks",
    ),
    "an array too many": (
        lambda file: header(file, b"}}" + 5 * b" ", b'},"":0}'),
        f"the header of {CALL}: expected the arrays that the manifest lists, got '' too",
    ),
    "an unknown dtype": (
        lambda file: header(file, b'"q":{"dtype":"F32"', b'"q":{"dtype":"F99"'),
        f"the dtype of q in the header of {CALL}: expected one of F64, I64, F32, BF16, F16, BOOL, U8, got F99",
    ),
    "another dtype": (
        lambda file: header(file, b'"q":{"dtype":"F32"', b'"q":{"dtype":"I64"'),
        f"the dtype of q in the header of {CALL}: expected F32, got I64",
    ),
    "another shape": (
        lambda file: header(file, b'"shape":[2,4,5]', b'"shape":[4,2,5]'),
        f"the shape of q in the header of {CALL}: expected [2, 4, 5], got [4, 2, 5]",
    ),
    "another spelling": (lambda file: spaced(file), f"the header of {CALL}: expected the one spelling that the format"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_wrong(name: str, whole: Path) -> None:
    spoil, sentence = HEADERS[name]
    spoil(whole / CALL)
    refused(whole, sentence)


def test_arrays_that_overlap(whole: Path) -> None:
    """Two arrays of one size whose places in the file are one."""
    data = (whole / CALL).read_bytes()
    entries = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    k, v = (f"[{start},{end}]".encode() for start, end in (entries[name]["data_offsets"] for name in ("k", "output")))
    if len(k) != len(v):
        v = v.ljust(len(k))
    header(whole / CALL, b'"data_offsets":' + v, b'"data_offsets":' + k)
    refused(whole, f"the data_offsets of output in the header of {CALL}: expected [", array="output")


def test_a_file_of_another_call(simple: Path) -> None:
    """Two calls of the same shapes, swapped: only the checksums tell."""
    first, second = simple / SELF, simple / CALL
    if first.stat().st_size == second.stat().st_size:
        pytest.fail("the calls of this recording should differ in their checks")
    path = save_recording(
        replace(plain(), calls=tuple(exact_call(Mask(), layer=n, by=n + 1) for n in (0, 1))), simple.parent / "b"
    )
    data = bytes_of(path)
    (path / SELF).write_bytes(data[CALL])
    (path / CALL).write_bytes(data[SELF])
    refused(path, f"q in {SELF}: expected the checksum", layer=0, array="q")


# Numbers that a right checksum does not make right --------------------------------------------------------------------


def forge(path: Path, file: str, name: str, to: Any) -> None:
    """Write other numbers of an array, and set every checksum right."""
    data = bytearray((path / file).read_bytes())
    size = 8 + int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8:size])[name]["data_offsets"]
    new = np.asarray(to).tobytes()
    assert len(new) == end - start
    data[size + start : size + end] = new
    (path / file).write_bytes(data)
    spec(file, name, crc32=f"{zlib.crc32(new):08x}")(path)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


FORGED: dict[str, tuple[str, str, Any, str]] = {
    "a NaN in v": (
        CALL,
        "v",
        _floats(*[0.0] * 41, np.nan),
        f"v in {CALL}: expected finite numbers, got a NaN or an inf",
    ),
    "minus infinity in k": (CALL, "k", _floats(*[0.0] * 69, -np.inf), f"k in {CALL}: expected finite numbers"),
    "a NaN in lse": (CALL, "lse", _floats(*[-np.inf] * 7, np.nan), f"lse in {CALL}: expected finite numbers"),
    "infinity in lse": (CALL, "lse", _floats(*[-np.inf] * 7, np.inf), f"lse in {CALL}: expected finite numbers"),
    "a bool of 2": (CALL, "padding", np.uint8([1, 1, 1, 0, 1, 1, 2]), f"padding in {CALL}: expected bytes of 0 or 1"),
    "rows that descend": (CALL, "rows", [0, 4, 2, 6], f"rows in {CALL}: expected destinations below 7, ascending"),
    "rows beyond all": (CALL, "rows", [0, 2, 4, 7], f"rows in {CALL}: expected destinations below 7, ascending"),
    "checks that end beyond": (
        CALL,
        "checks.ends",
        [3, 4],
        f"checks in {CALL}: expected rows from 0, and ends that asc",
    ),
    "checks of rows below 0": (CALL, "checks.rows", [0, -1, 6], f"checks in {CALL}: expected rows from 0"),
    "ids below 0": ("tokens.safetensors", "ids", [-1] * 7, "ids and spans in tokens.safetensors: expected ids from 0"),
    "spans beyond the text": (
        "tokens.safetensors",
        "spans",
        [[0, 99]] * 7,
        "ids and spans in tokens.safetensors: expect",
    ),
    "spans that end before": (
        "tokens.safetensors",
        "spans",
        [[1, 0]] * 7,
        "ids and spans in tokens.safetensors: expect",
    ),
    "data that end beyond": (
        "tokens.safetensors",
        "data.ends",
        [99] * 7,
        "data.ends in tokens.safetensors: expected en",
    ),
    "data that descend": (
        "tokens.safetensors",
        "data.ends",
        [5, 4, 9, 9, 9, 9, 18],
        "data.ends in tokens.safetensors: e",
    ),
    "a source's spans": (
        "tokens.safetensors",
        "source.spans",
        [[0, 99]] * 7,
        "source.ids and source.spans in tokens.saf",
    ),
    "a position beyond": (
        "predictions.safetensors",
        "positions",
        [7],
        "the numbers in predictions.safetensors: expected",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_numbers_that_mean_nothing(name: str, whole: Path) -> None:
    file, array, to, sentence = FORGED[name]
    forge(whole, file, array, to)
    refused(whole, sentence, file=file)


PREDICTED: dict[str, tuple[str, Any]] = {
    "a position twice": ("positions", [6, 6]),
    "a next token of nobody": ("next.rows", [2]),
    "a next token below 0": ("next.ids", [-5]),
    "a label of nobody": ("label.ids", [1, 7, 14]),
    "labels that overlap": ("labels.ends", [0, 3, 1]),
    "labels that are no text": ("labels", np.full(3, 0xFF, np.uint8)),
    "an id below 0": ("ids", [[1, 2], [3, -4]]),
    "a log-probability that is none": ("log_probabilities", [[-1.0, np.nan], [-1.0, -2.0]]),
    "an infinite log-probability": ("next.log_probabilities", [np.inf]),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_that_mean_nothing(name: str, simple: Path) -> None:
    array, to = PREDICTED[name]
    forge(simple, "predictions.safetensors", array, to)
    with pytest.raises(RecordingError, match=r"in predictions\.safetensors: expected"):
        open_recording(simple)


def test_text_that_is_no_utf8(whole: Path) -> None:
    data = bytes_of(whole)["tokens.safetensors"]
    size = 8 + int.from_bytes(data[:8], "little")
    for name in ("text", "labels"):
        start, end = json.loads(data[8:size])[name]["data_offsets"]
        forge(whole, "tokens.safetensors", name, np.full(end - start, 0xFF, np.uint8))
        refused(whole, f"{name} in tokens.safetensors: expected UTF-8, got invalid start byte at byte 0")
        (whole / "tokens.safetensors").write_bytes(data)
        spec("tokens.safetensors", name, crc32=f"{zlib.crc32(data[size + start : size + end]):08x}")(whole)


def test_labels_that_end_inside_a_character(whole: Path) -> None:
    ends = np.frombuffer(_array(whole, "labels.ends"), np.int64).copy()
    assert _array(whole, "labels")[:4] == "Zoë".encode()
    forge(whole, "tokens.safetensors", "labels.ends", [3, *ends[1:]])
    refused(whole, "labels.ends in tokens.safetensors: expected ends between characters, got one inside a character")


def _array(folder: Path, name: str) -> bytes:
    data = (folder / "tokens.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8:size])[name]["data_offsets"]
    return data[size + start : size + end]


def test_a_folder_that_may_not_be_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may read everything, the system's refusal is played."""

    def no(self: Path, *_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", no)
    refused(whole, "the recording: expected files that can be read, got [Errno 13] Permission denied")
