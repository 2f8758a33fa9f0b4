"""Recordings that are checked in: every later version reads them, number for number, and writes the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wherefrom.recording.writer as writer
from by_hand import attend
from recordings import GOLDEN, GOLDENS, assert_same, bytes_of
from wherefrom.recording import Array, open_recording, save_recording, verify_recording

SIZE = {"float16": 2, "bfloat16": 2}


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


@pytest.mark.parametrize("name", GOLDENS)
def test_a_golden_recording_is_written_byte_for_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "__version__", "0.1.0")  # that which wrote them
    again = save_recording(verify_recording(GOLDEN / f"{name}.wherefrom").recording, tmp_path / "a")
    assert bytes_of(again) == bytes_of(GOLDEN / f"{name}.wherefrom")


def test_a_golden_recording_is_small_and_whole() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDENS)
    assert sum(len(data) for data in bytes_of(GOLDEN).values()) < 100_000


def test_its_log_sum_exp_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    call = open_recording(GOLDEN / "float32.wherefrom").calls[0]
    expected = attend(call.q, call.k, call.v, call.mask, scale=call.scale).lse
    np.testing.assert_allclose(call.lse, expected, rtol=1e-6)
