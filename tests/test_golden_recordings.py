"""Recordings that are checked in: every later version reads them, number for number, and writes the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wherefrom.recording.writer as writer
from by_hand import attend
from recordings import FIRST, GOLDEN, GOLDENS, SECOND, assert_same, bytes_of
from wherefrom.recording import Array, open_recording, save_recording, verify_recording

WRITTEN_ONCE = {  # by version 1's writer, and unchanged since
    "float32": "867dc7ab154247ae41dfe0a047c51ec3ca777ec873ba8d28b3d6655124a5780e",
    "float16": "a0059c01509bcfdc25e3f0f843d81e06d9fa49c4b9ee0200c2e310a9789a35bf",
    "bfloat16": "8a7b9c66f4237ae420e2a9779c4f7484753fdabbd2842e8e2c2c89ae0aea80f5",
    "everything": "ee141466252ad98b2850a936c1bd97953b05ebd35fcc85e970732b2d88976aa4",
}


def half(values: Array, bits: int) -> Array:
    """Float32 numbers rounded to `bits` of significand, to the nearest, ties to even: by way of exact doubles."""
    significand, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(significand * 2.0**bits), exponent - bits)


@pytest.mark.parametrize("name", GOLDENS)
def test_a_golden_recording_is_read(name: str) -> None:
    make, store = GOLDENS[name]
    expected, opened = make(), open_recording(GOLDEN / f"{name}.wherefrom")
    if store is not None:
        bits = {"float16": 11, "bfloat16": 8}[store]
        for one, call in zip(opened.calls, expected.calls, strict=True):
            assert one.stored.format == store
            assert 0 < one.stored.weight_error < 2.0 ** (1 - bits) * 8  # scores here are below 8
            for array in ("q", "k", "v"):
                np.testing.assert_array_equal(getattr(one, array), half(getattr(call, array), bits))
        kept = {"float16": np.float16, "bfloat16": np.float32}[store]
        arrays = [{name: half(getattr(call, name), bits).astype(kept) for name in "qkv"} for call in expected.calls]
        calls = zip(expected.calls, opened.calls, arrays, strict=True)
        changed = tuple(replace(call, stored=one.stored, **own) for call, one, own in calls)
        expected = replace(expected, calls=changed)
    for one, call in zip(
        opened.calls, expected.calls, strict=True
    ):  # another machine's exp may differ in the last place
        np.testing.assert_allclose(one.lse, call.lse, rtol=1e-6)
    lse = [one.lse for one in opened.calls]
    expected = replace(expected, calls=tuple(replace(c, lse=own) for c, own in zip(expected.calls, lse, strict=True)))
    for one, call in zip(opened.calls, expected.calls, strict=True):
        if store == "bfloat16":  # the file has half of what is handed out
            assert one.bytes == sum(array.nbytes // 2 for array in (call.q, call.k, call.v)) + call.lse.nbytes
            continue
        assert one.bytes == call.bytes
    if store != "bfloat16":
        assert_same(opened, expected)


@pytest.mark.parametrize("name", SECOND)
def test_a_golden_recording_is_written_byte_for_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "__version__", "0.1.0")  # that which wrote them
    again = save_recording(verify_recording(GOLDEN / f"{name}.wherefrom").recording, tmp_path / "a")
    assert bytes_of(again) == bytes_of(GOLDEN / f"{name}.wherefrom")


@pytest.mark.parametrize("name", FIRST)
def test_recordings_of_version_1_are_as_they_were_written(name: str, tmp_path: Path) -> None:
    files = bytes_of(GOLDEN / f"{name}.wherefrom")
    assert b'"version": 1,' in files["recording.json"]
    assert (
        hashlib.sha256(b"".join(f"{file} ".encode() + data for file, data in files.items())).hexdigest()
        == (WRITTEN_ONCE[name])
    )
    again = bytes_of(save_recording(open_recording(GOLDEN / f"{name}.wherefrom"), tmp_path / "a"))
    assert {file: data for file, data in again.items() if file != "recording.json"} == {
        file: data for file, data in files.items() if file != "recording.json"
    }
    assert b'"version": 2,' in again["recording.json"]


def test_a_golden_recording_is_small_and_whole() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDENS)
    assert sum(len(data) for data in bytes_of(GOLDEN).values()) < 150_000


def test_its_log_sum_exp_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    call = open_recording(GOLDEN / "float32.wherefrom").calls[0]
    expected = attend(call.q, call.k, call.v, call.mask, scale=call.scale).lse
    np.testing.assert_allclose(call.lse, expected, rtol=1e-6)
