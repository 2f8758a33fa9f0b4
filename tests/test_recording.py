"""Recording: what is kept, how large it is, what it costs in copies (nothing), and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import wherefrom
from wherefrom.attention import Mask, attend
from wherefrom.capture import native
from wherefrom.capture.memory import Spare
from wherefrom.capture.passes import facts_of
from wherefrom.capture.recorder import Recorder
from wherefrom.checks import check_index
from wherefrom.errors import InputError, RecordingError
from wherefrom.model.attention_function import Site
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.language import read_prompt
from wherefrom.recording import ModelFacts, Recording, forecast_bytes
from wherefrom.tokens import Tokens

TEXT = "The bat flew home; the bat broke."
LAYERS, HEADS, KV_HEADS, SIZE = 3, 6, 2, 10


@pytest.fixture(scope="module")
def recording(small: wherefrom.LanguageModel) -> Recording:
    return wherefrom.record(small, TEXT)


def test_one_call_a_layer(recording: Recording) -> None:
    n = len(TEXT)
    assert len(recording) == n
    assert [call.layer for call in recording.calls] == [0, 1, 2]
    for call in recording.calls:
        assert (call.name, call.kind) == (f"blocks.{call.layer}.attention", "self")
        assert call.q.shape == (HEADS, n, SIZE)
        assert call.k.shape == call.v.shape == (KV_HEADS, n, SIZE)
        assert call.lse.shape == (HEADS, n)
        assert {call.q.dtype, call.k.dtype, call.v.dtype, call.lse.dtype} == {np.dtype(np.float32)}
        assert (call.mask, call.scale) == (Mask(), SIZE**-0.5)
        assert (call.heads, call.key_heads) == (HEADS, tuple(h // (HEADS // KV_HEADS) for h in range(HEADS)))
        assert call.kernel == "torch flash, CPU"
        assert len(call.checks) == 1


def test_what_is_known_about_the_model(small: wherefrom.LanguageModel, recording: Recording) -> None:
    assert recording.model == ModelFacts(small.name, small.fingerprint, LAYERS, HEADS, KV_HEADS, SIZE, 300)
    assert recording.tokens == small.tokenizer.encode(TEXT)
    assert recording.written_from is None
    assert recording.seconds > 0


def test_lse_is_that_of_the_page(recording: Recording) -> None:
    for call in recording.calls:
        right = attend(call.q, call.k, call.v, call.mask, scale=call.scale)
        assert abs(call.lse - right.lse).max() <= 1e-5


def test_recording_changes_nothing(small: wherefrom.LanguageModel, recording: Recording) -> None:
    ids = torch.tensor([recording.tokens.ids])
    recorder = Recorder(60, 800)
    assert torch.allclose(small.transformer(ids, attention=recorder), small.transformer(ids), rtol=0, atol=1e-5)
    for ours, theirs in zip(recorder.calls(), recording.calls, strict=True):
        assert np.array_equal(ours.lse, theirs.lse)


@pytest.mark.parametrize("length", [1, 2, 3, 50, 100, 200, 300])
def test_the_forecast_is_exact(small: wherefrom.LanguageModel, length: int) -> None:
    recording = wherefrom.record(small, "x" * length)
    # a token: three layers of 6 queries, 2 keys, 2 values of 10 numbers of 4 bytes, and 6 lse of 4 bytes
    assert recording.bytes == length * 3 * ((6 + 2 + 2) * 10 * 4 + 6 * 4)
    assert wherefrom.forecast_bytes(facts_of(small), length) == recording.bytes
    assert recording.bytes == sum(a.nbytes for c in recording.calls for a in (c.q, c.k, c.v, c.lse))


def test_twice_the_text_is_twice_the_recording(small: wherefrom.LanguageModel) -> None:
    for n in (1, 37, 150):
        assert wherefrom.record(small, "y" * 2 * n).bytes == 2 * wherefrom.record(small, "y" * n).bytes


@given(tokens=st.integers(0, 10**6), item_size=st.sampled_from([2, 4]))
def test_a_forecast_is_linear(tokens: int, item_size: int) -> None:
    facts = ModelFacts("SmolLM2", "", layers=30, heads=9, kv_heads=3, head_size=64, context=8192)
    one = 30 * ((9 + 3 + 3) * 64 * item_size + 9 * 4)
    assert forecast_bytes(facts, tokens, item_size=item_size) == tokens * one


def test_the_last_prediction(small: wherefrom.LanguageModel, recording: Recording) -> None:
    (kept,) = recording.predictions
    logits = small.transformer(torch.tensor([recording.tokens.ids]))[0, -1].double()
    right = torch.log_softmax(logits, dim=-1)
    assert kept.position == len(TEXT) - 1
    assert kept.ids == tuple(torch.topk(logits, 5).indices.tolist())
    assert kept.log_probabilities == pytest.approx([float(right[token]) for token in kept.ids], abs=1e-5)
    assert (kept.next_id, kept.next_log_probability) == (None, None)
    assert recording.prediction(len(TEXT) - 1) is kept


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 300])
def test_all_predictions(small: wherefrom.LanguageModel, length: int) -> None:
    text = (TEXT * 10)[:length]
    recording = wherefrom.record(small, text, predictions="all")
    ids = recording.tokens.ids
    right = torch.log_softmax(small.transformer(torch.tensor([ids]))[0].double(), dim=-1)
    assert [kept.position for kept in recording.predictions] == list(range(length))
    for t, kept in enumerate(recording.predictions):
        assert kept.log_probabilities == pytest.approx(sorted(right[t].tolist(), reverse=True)[:5], abs=1e-4)
        assert [float(right[t, token]) for token in kept.ids] == pytest.approx(kept.log_probabilities, abs=1e-4)
        if t + 1 < length:
            assert kept.next_id == ids[t + 1]
            assert kept.next_log_probability == pytest.approx(float(right[t, ids[t + 1]]), abs=1e-4)
    assert recording.predictions[-1].next_id is recording.predictions[-1].next_log_probability is None


@pytest.mark.parametrize("layer", [-1, 3, 99])
def test_a_layer_that_is_not_there(recording: Recording, layer: int) -> None:
    with pytest.raises(InputError, match=rf"the layer: expected one of 0 to 2, got {layer}\.") as caught:
        recording.call(layer)
    assert caught.value.facts["layer"] == layer


def test_layers_by_their_number(recording: Recording) -> None:
    backwards = replace(recording, calls=recording.calls[::-1])
    for layer in range(3):
        assert backwards.call(layer) is recording.calls[layer]
    cross = replace(recording.calls[1], kind="cross")
    with pytest.raises(InputError, match="the layer"):
        replace(recording, calls=(recording.calls[0], cross)).call(1)


@pytest.mark.parametrize("position", [-1, 0, 31, 33])
def test_a_prediction_that_was_not_kept(recording: Recording, position: int) -> None:
    with pytest.raises(InputError, match=rf"expected one whose prediction was kept \(32\), got {position}") as caught:
        recording.prediction(position)
    assert caught.value.facts["position"] == position


def test_many_kept_predictions_are_listed_briefly(small: wherefrom.LanguageModel) -> None:
    recording = wherefrom.record(small, TEXT, predictions="all")
    with pytest.raises(InputError, match=r"kept \(0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\), got 33"):
        recording.prediction(33)


@pytest.mark.parametrize("value", [-1, 5, 6, 2.0, "2", None, True, np.float64(1)])
def test_what_is_no_index(value: object) -> None:
    with pytest.raises(InputError, match="the head: expected a whole number from 0 to 4") as caught:
        check_index("head", value, 5)
    assert "Heads are numbered from 0; there are 5." in str(caught.value)
    assert caught.value.facts == {"value": value, "size": 5}


@pytest.mark.parametrize("value", [0, 4, np.int64(3), np.uint8(2)])
def test_what_is_an_index(value: int) -> None:
    assert check_index("head", value, 5) == value
    assert type(check_index("head", value, 5)) is int


def call_of(batch: int = 1, rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(batch, heads, rows, 8, generator=generator) for heads in (4, 2, 2))


def test_a_batch_is_refused(small: wherefrom.LanguageModel) -> None:
    with pytest.raises(RecordingError, match="next row 0, got 5 rows from position 0 on, a batch of 2") as caught:
        small.transformer(torch.zeros(2, 5, dtype=torch.long), attention=Recorder(60, 800))
    assert caught.value.facts["layer"] == 0


def test_two_texts_in_one_recorder_are_refused(small: wherefrom.LanguageModel) -> None:
    recorder, ids = Recorder(60, 800), torch.arange(5)[None]
    small.transformer(ids, attention=recorder)
    with pytest.raises(RecordingError, match="next row 5, got 5 rows from position 0 on, a batch of 1") as caught:
        small.transformer(ids, attention=recorder)
    assert caught.value.facts["layer"] == 0
    assert [call.q.shape[1] for call in recorder.calls()] == [5, 5, 5]  # and the first is still whole


def test_a_text_from_its_middle_is_refused(small: wherefrom.LanguageModel) -> None:
    cache = KeyValueCache(small.config, 9)
    small.transformer(torch.arange(4)[None], cache=cache)
    with pytest.raises(RecordingError, match="next row 0, got 5 rows from position 4 on"):
        small.transformer(torch.arange(5)[None], cache=cache, attention=Recorder(60, 800))


def test_another_mask_in_between_is_refused() -> None:
    recorder, site = Recorder(60, 800), Site(0, "here")
    recorder(*call_of(), mask=Mask(window=3), scale=1.0, site=site)
    q, k, v = call_of(rows=5)
    with pytest.raises(RecordingError, match="next row 4"):
        recorder(q[:, :, 4:], k, v, mask=Mask(offset=4), scale=1.0, site=site)


def test_layers_keep_their_true_numbers() -> None:
    recorder = Recorder(60, 800)
    for layer in (7, 3):
        recorder(*call_of(), mask=Mask(), scale=1.0, site=Site(layer, f"l{layer}"))
    assert [(call.layer, call.name) for call in recorder.calls()] == [(3, "l3"), (7, "l7")]


def test_what_is_kept_is_what_was_computed_and_nobody_can_change_it(small: wherefrom.LanguageModel) -> None:
    recorder = Recorder(3, 23)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def watch(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        seen.append((q, k, v))
        return recorder(q, k, v, mask=mask, scale=scale, site=site)

    small.transformer(torch.arange(23)[None], attention=watch)
    for call, given_arrays in zip(recorder.calls(), seen, strict=True):
        for kept, computed in zip((call.q, call.k, call.v), given_arrays, strict=True):
            assert np.array_equal(kept, computed[0].numpy())
            computed.zero_()
            assert kept.any()
            with pytest.raises(ValueError, match="read-only"):
                kept[0, 0, 0] = 5.0
        assert not call.lse.flags.writeable


def test_with_a_cache_the_rows_of_every_step_are_joined(small: wherefrom.LanguageModel) -> None:
    recorder, cache = Recorder(3, 12), KeyValueCache(small.config, 12)
    for ids in torch.arange(12)[None].split([5, 1, 6], dim=1):
        small.transformer(ids, attention=recorder, cache=cache)
    for call in recorder.calls():
        assert np.array_equal(call.k, cache.keys[call.layer][0].numpy())
        assert np.array_equal(call.v, cache.values[call.layer][0].numpy())
        assert call.q.shape[1] == call.k.shape[1] == call.lse.shape[1] == 12
        assert call.mask == Mask()
        assert len(call.checks) == 3


@pytest.mark.parametrize(("layers", "positions"), [(2, 5), (3, 4)])
def test_more_than_was_set_aside_is_refused(small: wherefrom.LanguageModel, layers: int, positions: int) -> None:
    with pytest.raises(RecordingError, match=f"at most {positions} positions in {layers} layers"):
        small.transformer(torch.arange(5)[None], attention=Recorder(layers, positions))


def test_memory_is_used_again_only_when_nobody_holds_it(small: wherefrom.LanguageModel) -> None:
    first = wherefrom.record(small, TEXT)
    place, numbers = first.calls[0].q.ctypes.data, first.calls[0].q.copy()
    second = wherefrom.record(small, TEXT[::-1])
    assert second.calls[0].q.ctypes.data != place
    assert np.array_equal(first.calls[0].q, numbers)
    held = second.calls[1].lse  # one array is enough to keep all of its kind
    place = held.ctypes.data
    del second
    third = wherefrom.record(small, TEXT)
    assert third.calls[1].lse.ctypes.data != place
    kept = third.calls[0].q.ctypes.data
    del third, held
    assert wherefrom.record(small, TEXT).calls[0].q.ctypes.data == kept


def test_the_memory_that_is_kept_is_never_what_a_view_of_a_view_looks_at() -> None:
    spare, kind = Spare(), np.dtype(np.float32)
    lent = spare.take("q", (2, 3, 4), kind)
    lent[:] = 7
    view = lent[1][:, 1:].T
    place = lent.ctypes.data
    del lent
    assert spare.take("q", (2, 3, 4), kind).ctypes.data != place
    assert view.min() == view.max() == 7
    del view
    again = spare.take("q", (2, 3, 4), kind)
    assert again.ctypes.data == place
    tensor = torch.from_numpy(again)[0, 1:]
    del again
    assert spare.take("q", (2, 3, 4), kind).ctypes.data != place
    assert tensor.min() == 7


def test_no_more_memory_is_kept_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spare, "MOST", 100)
    spare, kind = Spare(), np.dtype(np.uint8)
    places = {}
    for name, size in (("q", 60), ("k", 50), ("v", 40)):
        places[name] = spare.take(name, (size,), kind).ctypes.data
    kept = {name: array.nbytes for name, array in spare._free.items()}
    assert kept == {"q": 60, "v": 40}


def test_bfloat16_is_kept_exactly_and_lse_in_float32() -> None:
    q, k, v = (x.bfloat16() for x in call_of())
    recorder = Recorder(60, 800)
    recorder(q, k, v, mask=Mask(), scale=1.0, site=Site(0, "here"))
    (call,) = recorder.calls()
    for kept, computed in zip((call.q, call.k, call.v), (q, k, v), strict=True):
        assert kept.dtype == np.float32  # which holds every bfloat16; float16 does not
        assert np.array_equal(kept, computed[0].float().numpy())
    assert call.lse.dtype == np.float32


def test_progress_is_told(small: wherefrom.LanguageModel) -> None:
    told: list[tuple[int, int]] = []
    wherefrom.record(small, TEXT, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_tokens_instead_of_a_text(small: wherefrom.LanguageModel, recording: Recording) -> None:
    again = wherefrom.record(small, small.tokenizer.encode(TEXT))
    assert again.tokens == recording.tokens
    assert again.predictions == recording.predictions
    with pytest.raises(InputError, match="at least one token"):
        wherefrom.record(small, Tokens("", ()))


@pytest.mark.parametrize(
    ("text", "given"),
    [("", "got nothing"), ("   ", "only blanks"), ("\n\t \u3000", r"only blanks \('\\n\\t \\u3000'\)")],
)
def test_an_empty_prompt(small: wherefrom.LanguageModel, text: str, given: str) -> None:
    for verb in (wherefrom.record, wherefrom.record_generation, wherefrom.generate, read_prompt):
        with pytest.raises(InputError, match=f"the prompt: expected some text, got .*{given.removeprefix('got ')}"):
            verb(small, text)


def test_a_prompt_that_is_too_long(small: wherefrom.LanguageModel) -> None:
    assert len(wherefrom.record(small, "z" * 300)) == 300
    with pytest.raises(InputError, match=r"expected at most 300 tokens \(the context of small\d*\), got 301") as caught:
        wherefrom.record(small, "z" * 301)
    assert (caught.value.facts["tokens"], caught.value.facts["context"]) == (301, 300)


def test_a_prompt_that_leaves_no_room(small: wherefrom.LanguageModel) -> None:
    assert len(read_prompt(small, "z" * 290, room=10)) == 290
    with pytest.raises(InputError, match="got 290 tokens and room for 11 more") as caught:
        read_prompt(small, "z" * 290, room=11)
    assert (caught.value.facts["tokens"], caught.value.facts["context"]) == (290, 300)
    for verb in (wherefrom.record_generation, wherefrom.generate):
        with pytest.raises(InputError, match="room for 11 more"):
            verb(small, "z" * 290, max_tokens=11)


loaded = cache(wherefrom.load)  # hypothesis prints a failing test's arguments: a folder is short, a model is not


@settings(max_examples=20)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip))
def test_any_text_is_recorded(small_folder: Path, text: str) -> None:
    recording = wherefrom.record(loaded(small_folder), text)
    assert recording.tokens.text == text
    assert len(recording) == len(text.encode())


def test_a_recording_larger_than_the_free_memory_is_refused_before_anything_runs(
    small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = wherefrom.forecast(small, TEXT)
    monkeypatch.setattr(native, "free_memory", lambda: needed - 1)
    monkeypatch.setattr(small.transformer, "stream", None)
    with pytest.raises(InputError, match=r"the recording: expected at most .* GB, the memory that is free") as caught:
        wherefrom.record(small, TEXT)
    assert caught.value.facts["bytes"] == needed
    with pytest.raises(InputError, match="the memory that is free"):
        wherefrom.record_generation(small, TEXT, max_tokens=1)
    monkeypatch.undo()
    monkeypatch.setattr(native, "free_memory", lambda: needed)
    assert wherefrom.record(small, TEXT).bytes == needed


def test_the_free_memory_is_a_size_or_unknown() -> None:
    free = native.free_memory()
    assert free is None or 2**20 < free < 2**50
