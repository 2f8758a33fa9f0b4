"""A recording's file: written and opened again it is the same, lazily; the same recording is the same bytes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wherefrom
from by_hand import MASKS, call_of, random_call
from recordings import assert_same, bytes_of, everything, facts_of, plain, tokens_of, uneven, with_everything
from wherefrom.attention import Mask
from wherefrom.questions.exact import row_of_weights
from wherefrom.recording import (
    ARRAYS,
    Check,
    Kept,
    Prediction,
    Recording,
    Stored,
    Writer,
    forecast_file_bytes,
    is_recording,
    open_recording,
    save_recording,
    verify_recording,
)
from wherefrom.spans import Tokens

LOADED = {*ARRAYS, "mask", "kept", "checks"}


def written(recording: Recording, folder: Path, **options: object) -> Recording:
    return open_recording(save_recording(recording, folder / "a.wherefrom", **options))


# Written, then opened -------------------------------------------------------------------------------------------------

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), min_size=7, max_size=7)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
NEXT = st.none() | st.tuples(st.integers(0, 2**40), FLOATS)


@st.composite
def calls(draw, layer: int, part: str, kind: str):
    mask = draw(st.sampled_from(list(MASKS.values())))
    call = random_call(mask, layer=layer, seed=draw(st.integers(0, 9)))
    heads, rows = call.q.shape[:2]
    call = replace(call, part=part, kind=kind, name=draw(st.text(max_size=9)), softcap=draw(st.none() | st.just(30.5)))
    rng = np.random.default_rng(layer)
    kinds = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    if draw(st.booleans()):
        call = replace(call, output=rng.random((heads, 4, 5)).astype(kinds), sinks=rng.random(heads).astype(kinds))
    if draw(st.booleans()):
        call = replace(call, bias=rng.random((draw(st.sampled_from([1, heads])), rows, 7)).astype(kinds))
    if draw(st.booleans()):
        call = replace(call, q=call.q.astype(kinds), k=call.k.astype(kinds))
    if draw(st.booleans()):
        call = replace(call, q=call.q.transpose(1, 0, 2).copy().transpose(1, 0, 2), checks=draw(checks()))
    if draw(st.booleans()):
        call = kept(call, draw(st.sets(st.integers(0, 5), min_size=1)), draw(st.sets(st.integers(0, 6), min_size=1)))
    return call


@st.composite
def checks(draw):
    rows = st.lists(st.integers(0, 6), max_size=4).map(tuple)
    return tuple(draw(st.lists(st.builds(Check, rows, FLOATS, FLOATS, FLOATS), max_size=3)))


def kept(call, heads, rows):
    heads, rows = sorted(heads), sorted(rows)
    what = Kept(tuple(heads), tuple(head // 3 for head in heads), np.array(rows), call.heads, call.destinations)
    some = {
        name: getattr(call, name)[heads] for name in ("q", "lse", "sinks", "output") if getattr(call, name) is not None
    }
    some |= {name: some[name][:, rows] for name in ("q", "lse")}
    if call.bias is not None:
        some["bias"] = call.bias[heads if len(call.bias) > 1 else [0]][:, rows]
    return replace(call, kept=what, **some)


@st.composite
def recordings(draw) -> Recording:
    pair = draw(st.booleans())
    kinds = [("decoder", "self", 0), ("decoder", "self", 3)]
    kinds = [("encoder", "self", 0), *kinds, ("decoder", "cross", 1)] if pair else kinds
    many = [draw(calls(layer, part, kind)) for part, kind, layer in kinds]
    width = draw(st.integers(0, 3))
    each = st.tuples(*[st.integers(0, 2**40)] * width), st.tuples(*[FLOATS] * width), NEXT
    predictions = [
        Prediction(position, *draw(st.tuples(*each[:2])), *(draw(each[2]) or (None, None)))
        for position in draw(st.permutations(range(7)).map(lambda order: order[: len(order) // 2]))
    ]
    return Recording(
        model=facts_of(name=draw(st.text(max_size=9)), kind="encoder-decoder" if pair else "decoder"),
        tokens=tokens_of(*draw(TEXTS)),
        calls=tuple(many),
        predictions=tuple(predictions),
        written_from=draw(st.none() | st.integers(0, 7)),
        seconds=draw(st.floats(0, 1e9)),
        source=tokens_of(*draw(TEXTS)) if pair else None,
    )


@given(recording=recordings())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_writing_and_opening_change_nothing(recording: Recording, tmp_path: Path) -> None:
    path = save_recording(recording, tmp_path / "a", overwrite=True)
    opened = open_recording(path)
    assert_same(opened, recording)
    assert verify_recording(path).recording.model == recording.model
    assert_same(open_recording(save_recording(opened, tmp_path / "b", overwrite=True)), recording)
    assert bytes_of(path) == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("make", [plain, everything, uneven])
def test_the_order_of_writing_does_not_change_the_bytes(make, tmp_path: Path) -> None:
    recording = make()
    assert_same(written(recording, tmp_path), recording)
    facts = {"model": recording.model, "tokens": recording.tokens, "source": recording.source}
    with Writer(tmp_path / "b", **facts) as writer:
        for call in reversed(recording.calls):
            writer.add(call)
        writer.finish(predictions=recording.predictions, written_from=recording.written_from, seconds=recording.seconds)
    assert bytes_of(tmp_path / "a.wherefrom") == bytes_of(tmp_path / "b")


def test_arrays_of_any_memory_order_are_written_alike(tmp_path: Path) -> None:
    call = random_call(Mask(), heads=4, kv_heads=4, length=26, head_size=3)
    turned = replace(call, q=np.asfortranarray(call.q), k=call.k[:, ::-1].copy()[:, ::-1], v=call.v.astype(">f4"))
    for name, one in (("a", call), ("b", turned)):
        with Writer(tmp_path / name, model=facts_of(), tokens=tokens_of(*"abcdefghijklmnopqrstuvwxyz")) as writer:
            writer.add(one)
            writer.finish(predictions=())
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_large_arrays_are_written_in_pieces(tmp_path: Path) -> None:
    """Pieces of 1 MB: of contiguous arrays, of strided ones, and of a strided one whose rows are larger than that."""
    rng = np.random.default_rng(3)
    wide = rng.random((2, 700, 800), dtype=np.float32)
    call = call_of(wide[:, ::2, 1:700], wide[:, 1::2, 1:700], wide[:, 1::2], mask=Mask())
    call = replace(call, output=np.moveaxis(rng.random((301, 800, 2)), 2, 0))
    recording = Recording(facts_of(), tokens_of(*"x" * 350), (call,), (), None, 0.0)
    assert_same(written(recording, tmp_path), recording)


@pytest.mark.parametrize("store", [None, "float16", "bfloat16"])
def test_other_programs_read_the_same_arrays(store: str | None, tmp_path: Path) -> None:
    opened = written(everything(), tmp_path, store=store)
    for call, file in zip(opened.calls, sorted((opened.path / "calls").iterdir(), key=_order), strict=True):
        found = safetensors.torch.load_file(file)
        for name in call.shapes:
            np.testing.assert_array_equal(found[name].to(_wide(found[name])).numpy(), getattr(call, name))
        if store != "bfloat16":  # numpy has none
            assert set(safetensors.numpy.load_file(file)) == set(found)
    words = safetensors.numpy.load_file(opened.path / "tokens.safetensors")
    assert words["ids"].tolist() == list(opened.tokens.ids)
    assert words["source.text"].tobytes().decode() == opened.source.text
    assert safetensors.numpy.load_file(opened.path / "predictions.safetensors")["positions"].tolist() == [6]


def _order(file: Path) -> int:
    return ["encoder-self-000", "decoder-self-001", "decoder-cross-002"].index(file.stem)


def _wide(tensor):
    import torch

    return torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype


# Opened ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_it_is_asked_for(tmp_path: Path) -> None:
    opened = written(everything(), tmp_path)
    call = opened.calls[1]
    assert repr(opened)
    assert repr(call)
    assert opened.bytes
    assert call.shapes["q"] == (2, 4, 5)
    assert call.heads == 2
    assert LOADED & set(call.__dict__) == set()
    first = call.q
    assert LOADED & set(call.__dict__) == {"q"}
    assert call.q is first  # checked once
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        call.lse[0] = 0


def test_an_opened_call_can_be_replaced_copied_and_pickled(tmp_path: Path) -> None:
    opened = written(everything(), tmp_path)
    for call, given_call in zip(opened.calls, everything().calls, strict=True):
        changed = replace(call, scale=2.0)
        assert (changed.scale, changed.shapes, changed.bytes) == (2.0, call.shapes, call.bytes)
        for other in (replace(changed, scale=call.scale), copy.copy(call), pickle.loads(pickle.dumps(call))):
            assert_same(replace(everything(), calls=(other,)), replace(everything(), calls=(given_call,)))
    with pytest.raises(AttributeError, match="no attribute 'group'"):
        _ = opened.calls[0].group


def test_tokens_and_predictions_of_a_file_are_sequences(tmp_path: Path) -> None:
    recording = plain()
    opened = written(recording, tmp_path)
    assert opened.tokens == recording.tokens
    assert recording.tokens == opened.tokens
    assert hash(opened.tokens) == hash(recording.tokens)
    assert opened.tokens[1:3] == recording.tokens[1:3]
    assert opened.tokens[-1] == recording.tokens[-1]
    assert Tokens("ab", opened.tokens.items[:2]) == Tokens("ab", recording.tokens.items[:2])
    assert opened.tokens != Tokens(recording.tokens.text, recording.tokens.items[:-1])
    assert opened.predictions == recording.predictions
    assert opened.predictions[-1:] == recording.predictions[-1:]
    assert opened.predictions != recording.predictions[:1]
    assert opened.predictions != "a text"
    assert (opened.prediction(6), repr(opened.predictions)) == (recording.predictions[1], repr(recording.predictions))
    with pytest.raises(IndexError):
        _ = opened.tokens[7]
    assert type(opened.predictions[0].next_id) is int
    assert type(opened.predictions[0].log_probabilities[0]) is float


def test_a_question_has_the_same_answer(tmp_path: Path) -> None:
    recording = plain()
    opened = written(recording, tmp_path)
    for one, other in zip(opened.calls, recording.calls, strict=True):
        np.testing.assert_array_equal(row_of_weights(one, 5), row_of_weights(other, 5))


def test_a_recording_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(plain(), tmp_path)
    monkeypatch.chdir(tmp_path)
    opened = open_recording("a.wherefrom")
    monkeypatch.chdir("/")
    assert_same(opened, plain())
    assert opened.path == tmp_path / "a.wherefrom"


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = save_recording(plain(), "~/a.wherefrom")
    assert path == tmp_path / "a.wherefrom"
    assert open_recording("~/a.wherefrom").path == path
    assert is_recording("~/a.wherefrom")
    assert not is_recording(tmp_path)
    assert not is_recording("~nobody/a")


def test_a_file_is_opened_without_torch_and_its_like(tmp_path: Path) -> None:
    path = save_recording(everything(), tmp_path / "a.wherefrom")
    code = f"""
import sys
from wherefrom.recording import open_recording, verify_recording
assert verify_recording({str(path)!r}).recording.calls[1].q.shape == (2, 4, 5)
loaded = {{name.split('.')[0] for name in sys.modules}}
print(*sorted(loaded & {{'torch', 'tokenizers', 'numba', 'polars', 'safetensors'}}))
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "", "")


def test_verifying_counts_what_it_read(tmp_path: Path) -> None:
    path = save_recording(everything(), tmp_path / "a.wherefrom")
    found = verify_recording(path)
    assert (found.files, found.bytes) == (6, sum(map(len, bytes_of(path).values())))
    assert found.arrays == sum(len(safetensors.numpy.load_file(file)) for file in path.rglob("*.safetensors"))


# Rounded --------------------------------------------------------------------------------------------------------------


def plain_weights(q, k, call) -> np.ndarray:
    """The weights of two arrays with the call's own lse, from the definition."""
    s = call.scale * (q.astype(np.float64) @ np.repeat(k.astype(np.float64), 3, axis=0).transpose(0, 2, 1))
    s = s if call.softcap is None else call.softcap * np.tanh(s / call.softcap)
    s = s if call.bias is None else s + call.bias
    allowed = np.broadcast_to(call.mask.permitted(range(7), range(7)), s.shape)
    return np.where(allowed, np.exp(s - np.where(np.isneginf(call.lse), np.inf, call.lse)[..., None]), 0.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("store", ["float16", "bfloat16"])
def test_rounding_says_what_it_did(store: str, mask: str, tmp_path: Path) -> None:
    for name, call in (("bare", random_call(MASKS[mask])), ("full", with_everything())):
        call = replace(call, q=call.q * np.float32(1.1), k=call.k * np.float32(1.1))
        if name == "bare":
            call = call_of(call.q, call.k, call.v, mask=call.mask, scale=call.scale)
        opened = written(
            Recording(facts_of(), tokens_of(*"abcdefg"), (call,), (), None, 0.0), tmp_path, store=store, overwrite=True
        )
        one = opened.calls[0]
        said, rows = one.stored, list(one.stored.rows)
        before, after = plain_weights(call.q, call.k, call), plain_weights(one.q, one.k, call)
        sums = after.sum(axis=-1)
        if call.sinks is not None:
            sums = sums + np.exp(call.sinks[:, None].astype(np.float64) - call.lse)
        off = np.abs(sums - 1)[:, rows][np.isfinite(call.lse[:, rows])]
        assert said.format == store
        assert 1 <= len(rows) <= 5
        assert said.weight_error == pytest.approx(np.abs(after - before)[:, rows].max(), rel=1e-9)
        assert said.weight_error > 0
        assert said.sum_error == pytest.approx(off.max(), rel=1e-9)
        np.testing.assert_array_equal(one.lse, call.lse)
        for array in ("q", "k", "v"):
            spacing = 2.0 ** -(11 if store == "float16" else 8)  # half of the last place, relative
            np.testing.assert_allclose(getattr(one, array), getattr(call, array), rtol=spacing, atol=2**-25)


def test_sixteen_bits_are_rounded_to_the_nearest_even(tmp_path: Path) -> None:
    """Between 1 and its successors: ties go to the even one; a bfloat16's step there is 2^-7, a float16's 2^-10."""
    steps = np.float32([0, 0.25, 0.5, 0.75, 1.5, 2.5, -0.5, -1.5])
    for store, step in (("bfloat16", 2**-7), ("float16", 2**-10)):
        call = call_of(np.sign(steps + 0.1)[None, None] * (1 + np.abs(steps) * np.float32(step)), np.ones((1, 1, 8)))
        one = written(
            Recording(facts_of(), tokens_of("a"), (call,), (), None, 0.0), tmp_path, store=store, overwrite=True
        )
        assert ((np.abs(one.calls[0].q[0, 0].astype(np.float64)) - 1) / step).tolist() == [0, 0, 0, 1, 2, 2, 0, 2]


def test_a_rounded_recording_is_saved_again_as_it_is(tmp_path: Path) -> None:
    for store in ("float16", "bfloat16"):
        first = save_recording(uneven(), tmp_path / store, store=store)
        for again in (None, store):
            second = save_recording(open_recording(first), tmp_path / "b", store=again, overwrite=True)
            assert bytes_of(first) == bytes_of(second)


def test_a_call_that_may_read_nothing_has_no_error_to_measure(tmp_path: Path) -> None:
    call = random_call(Mask.bidirectional(padding=np.zeros(7, bool)))
    opened = written(Recording(facts_of(), tokens_of(*"abcdefg"), (call,), (), None, 0.0), tmp_path, store="float16")
    assert opened.calls[0].stored == Stored("float16", (), 0.0, 0.0)


# Its size -------------------------------------------------------------------------------------------------------------


def predicted(row: int, *, last: bool) -> Prediction:
    """The prediction of five tokens, most of them those that the row before predicts."""
    ids = tuple(range(row, row + 5))
    return Prediction(row, ids, (-1.0,) * 5, *((None, None) if last else (1, -2.0)), tuple(f"{n:>5}" for n in ids))


@pytest.mark.parametrize("store", [None, "float16"])
@pytest.mark.parametrize("keep", ["all", "some"])
@pytest.mark.parametrize("pair", [False, True])
def test_the_size_is_known_before(pair: bool, keep: str, store: str | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    T, S, heads, positions = 150, 110, (0, 4, 5), (3, 77, 149)
    facts = facts_of(kind="encoder-decoder", encoder_layers=2) if pair else facts_of()

    def call(layer, part, kind, rows, sources):
        q, k = rng.random((6, rows, 5), np.float32), rng.random((2, sources, 5), np.float32)
        made = call_of(q, k, k, mask=Mask.bidirectional(), layer=layer)
        made = replace(made, part=part, kind=kind, output=rng.random((6, 30, 5), np.float32))
        made = replace(made, checks=(Check((0, 1, 2, 3, 4), 1.5e-8, 2.5e-8, 1e-5),))
        return made if keep == "all" else kept(made, heads, positions if part == "decoder" else range(rows))

    kinds = [("decoder", "self", T, T)]
    kinds = [("encoder", "self", S, S), *kinds, ("decoder", "cross", T, S)] if pair else kinds
    recording = Recording(
        facts,
        tokens_of(*["five "] * T),
        tuple(call(layer, *kind) for kind in kinds for layer in range(2)),
        tuple(predicted(row, last=row == T - 1) for row in range(T)),
        None,
        0.5,
        tokens_of(*["five "] * S) if pair else None,
    )
    size = sum(map(len, bytes_of(save_recording(recording, tmp_path / "a", store=store)).values()))
    some = {} if keep == "all" else {"heads": heads, "positions": positions}
    said = forecast_file_bytes(
        facts, T, source_tokens=S, item_size=2 if store else 4, output_width=30, predictions=T, **some
    )
    assert said == pytest.approx(size, rel=0.01)


def test_forecast_refuses_what_is_no_count() -> None:
    with pytest.raises(wherefrom.InputError, match="tokens: expected a whole number from 0 up, got -1"):
        forecast_file_bytes(facts_of(), -1)
    with pytest.raises(wherefrom.InputError, match="bytes of a number: expected 2, 4 or 8, got 3"):
        forecast_file_bytes(facts_of(), 1, item_size=3)
    assert forecast_file_bytes(facts_of(), 9, layers=[0]) < forecast_file_bytes(facts_of(), 9)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"layers": 5}, "the layers to keep: expected whole numbers, such as (0, 1), got 5."),
        ({"layers": [2]}, "the layer: expected a whole number from 0 to 1, got 2."),
        ({"heads": ["a"]}, "the head: expected a whole number from 0 to 5, got 'a'."),
        ({"heads": [99]}, "the head: expected a whole number from 0 to 5, got 99."),
        ({"positions": [0, 5]}, "the position: expected a whole number from 0 to 4, got 5."),
        ({"positions": []}, "the positions to keep: expected at least one, got none."),
        ({"item_size": []}, "the bytes of a number: expected 2, 4 or 8, got []."),
        ({"item_size": 4.0}, "the bytes of a number: expected 2, 4 or 8, got 4.0."),
        ({"written": -1}, "written: expected a whole number from 0 up, got -1."),
    ],
    ids=str,
)
def test_forecast_refuses_what_cannot_be_kept(chosen: dict[str, object], sentence: str) -> None:
    with pytest.raises(wherefrom.InputError) as caught:
        forecast_file_bytes(facts_of(), 5, **chosen)
    assert sentence in str(caught.value)


def test_what_is_given_twice_counts_once_in_a_forecast() -> None:
    once = forecast_file_bytes(facts_of(), 9, layers=(0,), heads=(1, 4), positions=(3, 8))
    assert forecast_file_bytes(facts_of(), 9, layers=[0, 0], heads=np.array([4, 1, 4]), positions=[8, 3] * 30) == once


def test_opening_reads_no_call(tmp_path: Path) -> None:
    """However large the arrays of calls are, opening reads their headers alone: the numbers may be gone."""
    path = save_recording(plain(), tmp_path / "a")
    file = path / "calls" / "decoder-self-001.safetensors"
    size = file.stat().st_size
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8
    os.truncate(file, header)
    os.truncate(file, size)  # a hole
    opened = open_recording(path)
    assert_same(replace(plain(), calls=opened.calls[:1]), replace(plain(), calls=plain().calls[:1]))
    with pytest.raises(wherefrom.RecordingError, match=r"q in calls/decoder-self-001.*: expected the checksum"):
        _ = opened.calls[1].q
