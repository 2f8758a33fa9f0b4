"""Recording to a file and in part: the same numbers as in memory, call by call, of every kind of model."""

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import wherefrom
from kinds import CONFIGS, PAIRS, small_model
from wherefrom import InputError, Mask, RecordingError
from wherefrom.capture.streaming import Keep, Stream
from wherefrom.model.attention_function import Site
from wherefrom.questions import row_of_weights
from wherefrom.recording import Call, Recording

TEXT = "a byte [MASK] is a token"
ARRAYS = ("q", "k", "v", "lse")


def both(model: wherefrom.LanguageModel, tmp_path: Path, **how: object) -> tuple[Recording, Recording]:
    written = {"written": "so far"} if model.config.kind == "encoder-decoder" else {}
    memory = wherefrom.record(model, TEXT, predictions="last", **written)
    return memory, wherefrom.record(model, TEXT, to=tmp_path / "x.wherefrom", **written, **how)


def test_predicted_tokens_are_named(tmp_path: Path) -> None:
    model = small_model("llama")
    for recording in both(model, tmp_path):
        (kept,) = recording.predictions
        assert kept.labels == tuple(model.tokenizer.label(number) for number in kept.ids)
        assert len(kept.labels) == 5


def assert_same_facts(one: Recording, other: Recording) -> None:
    for name in ("model", "predictions", "written_from"):
        assert getattr(one, name) == getattr(other, name)
    for mine, theirs in ((one.tokens, other.tokens), (one.source, other.source)):
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.text, tuple(mine)) == (theirs.text, tuple(theirs))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_holds_what_memory_does(kind: str, tmp_path: Path) -> None:
    memory, file = both(small_model(kind), tmp_path)
    assert_same_facts(memory, file)
    assert [repr(call) for call in memory.calls] == [repr(call) for call in file.calls]
    for one, other in zip(memory.calls, file.calls, strict=True):
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for field in ("layer", "name", "kind", "part", "mask", "scale", "kernel", "kept", "stored"):
            assert getattr(one, field) == getattr(other, field)
        assert one.checks[0].rows == other.checks[0].rows
        assert other.checks[0].sum_error <= other.checks[0].tolerance
    assert file.path == tmp_path / "x.wherefrom"


@pytest.mark.parametrize("kind", ["qwen3", "bert", *PAIRS])
def test_each_heads_slice_of_the_output_projection_rebuilds_the_sublayer(kind: str, tmp_path: Path) -> None:
    model = small_model(kind)
    _, file = both(model, tmp_path)
    for call in file.calls:
        stack = model.transformer.encoder if call.part == "encoder" and kind in PAIRS else model.transformer
        block = stack.blocks[call.layer]
        linear = (block.cross_attention if call.kind == "cross" else block.attention).output
        y = torch.randn(1, call.heads, 5, call.output.shape[2])
        expected = linear(y.transpose(1, 2).flatten(2))[0]
        if linear.bias is not None:
            expected = expected - linear.bias
        found = torch.einsum("hmv,htv->tm", torch.tensor(call.output), y[0])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_without_output_projections(tmp_path: Path) -> None:
    _, file = both(small_model("llama"), tmp_path, output=False)
    assert all(call.output is None for call in file.calls)


@pytest.mark.parametrize("kind", ["llama", "windowed encoder", "marian"])
@pytest.mark.parametrize("to_file", [False, True])
def test_a_part_is_that_part_of_the_whole(kind: str, to_file: bool, tmp_path: Path) -> None:
    model = small_model(kind)
    written = {"written": "so far"} if kind == "marian" else {}
    whole = wherefrom.record(model, TEXT, **written)
    how = {"to": tmp_path / "part.wherefrom"} if to_file else {}
    part = wherefrom.record(model, TEXT, layers=(2, 1), heads=(5, 0, 3), positions=range(1, 6, 2), **written, **how)
    assert_same_facts(whole, part)
    assert {call.layer for call in part.calls} == ({1, 2})
    assert len(part.calls) == len([call for call in whole.calls if call.layer in (1, 2)])
    for call in part.calls:
        own = whole.call(call.layer, call.kind, call.part)
        rows = [1, 3, 5] if call.part == model.transformer.part else list(range(own.destinations))
        assert call.head_numbers == (0, 3, 5)
        assert call.rows.tolist() == rows
        assert call.k.shape[0] == len({own.key_heads[head] for head in (0, 3, 5)})
        for row in rows:
            found, expected = (row_of_weights(one, row) for one in (call, own))
            np.testing.assert_allclose(found, expected[[0, 3, 5]], rtol=0, atol=1e-14)
    kept = {"layers": (1, 2), "heads": (0, 3, 5), "positions": (1, 3, 5)}
    size = wherefrom.forecast_bytes(whole.model, len(whole), source_tokens=len(whole.source or ()), **kept)
    assert sum(call.bytes for call in part.calls) == size


def test_what_is_kept_in_memory_is_a_copy_that_nobody_changes() -> None:
    model = small_model("llama")
    part = wherefrom.record(model, TEXT, positions=(3,))
    before = [np.array(call.k) for call in part.calls]
    wherefrom.record(model, "something else, as long!")
    for call, kept in zip(part.calls, before, strict=True):
        np.testing.assert_array_equal(call.k, kept)
        for name in ARRAYS:
            with pytest.raises(ValueError, match="read-only"):
                getattr(call, name)[0] = 1


@pytest.mark.parametrize("kind", ["llama", "marian"])
def test_a_generation_in_a_file(kind: str, tmp_path: Path) -> None:
    model = small_model(kind)
    memory = wherefrom.record_generation(model, "ab", max_tokens=5)
    file = wherefrom.record_generation(model, "ab", max_tokens=5, to=tmp_path / "written.wherefrom")
    assert_same_facts(memory, file)
    assert file.written_from == memory.written_from == (1 if kind == "marian" else 2)
    for one, other in zip(memory.calls, file.calls, strict=True):
        np.testing.assert_array_equal(one.q, other.q)
        assert one.checks == other.checks
        assert other.output.shape == (6, 48, 8)


def test_progress_is_told_of_every_call(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    wherefrom.record(
        small_model("marian"),
        TEXT,
        to=tmp_path / "x.wherefrom",
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(done, 8) for done in range(1, 9)]


def test_rounding_is_measured(tmp_path: Path) -> None:
    memory, file = both(small_model("llama"), tmp_path, store="float16")
    call, own = file.calls[2], memory.calls[2]
    assert call.q.dtype == np.float16
    assert call.stored.format == "float16"
    row = call.stored.rows[-1]
    found, expected = (row_of_weights(one, row) for one in (call, own))
    assert 0 < np.abs(found - expected).max() <= call.stored.weight_error < 0.05
    assert "float16" in wherefrom.sources(file).exactness


def test_no_file_is_left_of_a_pass_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    block = model.transformer.blocks[2].attention.query
    monkeypatch.setattr(block, "forward", lambda x: torch.full((*x.shape[:2], 48), torch.nan))
    with pytest.raises(RecordingError, match="layer 2"):
        wherefrom.record(model, TEXT, to=tmp_path / "x.wherefrom")
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_not_finite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    key = model.transformer.blocks[1].attention.key
    plain = key.forward

    def broken(x: torch.Tensor) -> torch.Tensor:
        k = plain(x)
        k[0, 5, 8] = torch.inf  # head 1
        return k

    monkeypatch.setattr(key, "forward", broken)
    for how in ({}, {"to": tmp_path / "x.wherefrom"}):
        with pytest.raises(RecordingError) as caught:
            wherefrom.record(model, TEXT, **how)
        assert "layer 1" in str(caught.value)
        assert str(caught.value).startswith(
            "the key of layer 1 (blocks.1.attention), key head 1, position 5: expected fin"
        )
        assert (caught.value.layer, caught.value.head, caught.value.position) == (1, 1, 5)
    assert list(tmp_path.iterdir()) == []


WRONG = [
    ({"layers": ()}, "the layers to keep: expected at least one, got none"),
    ({"layers": (3,)}, "the layer: expected a whole number from 0 to 2, got 3"),
    ({"heads": (6,)}, "the head: expected a whole number from 0 to 5, got 6"),
    ({"positions": (19,)}, "the position: expected a whole number from 0 to 18, got 19"),
    ({"positions": 3}, "the positions to keep: expected whole numbers, such as (0, 1), got 3"),
    ({"store": "float16"}, "store: expected none for a recording in memory, got 'float16'"),
]


@pytest.mark.parametrize(("how", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_part_that_there_is_not(how: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        wherefrom.record(small_model("llama"), TEXT, **how)


def test_a_stream_takes_one_whole_text() -> None:
    q = torch.zeros(1, 2, 3, 4)
    stream, site = Stream(lambda call: None), Site(0, "here")
    with pytest.raises(RecordingError, match="expected one whole text, got a batch of 1, from position 2 on"):
        stream(q, q, q, mask=Mask(offset=2), scale=1.0, site=site)
    with pytest.raises(RecordingError, match="got a batch of 2"):
        stream(torch.cat([q, q]), q, q, mask=Mask(), scale=1.0, site=site)
    assert Keep().everything


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_reading_beyond_the_training(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = small_model(kind)
    wherefrom.write_folder(folder, model.transformer, model.tokenizer)
    said: list[str] = []
    longer = wherefrom.load(folder, context=200, say=said.append)
    assert longer.config == replace(model.config, context=200)
    assert len(said) == 1
    assert said[0].endswith("on up to 64 tokens and may read 200: beyond its training its predictions get worse.")
    assert len(wherefrom.record(longer, "x" * 200)) == 200
    with pytest.raises(InputError):
        wherefrom.record(wherefrom.load(folder), "x" * 200)
    short = wherefrom.record(longer, TEXT).calls[2].q
    np.testing.assert_array_equal(short, wherefrom.record(model, TEXT).calls[2].q)


def test_learnt_positions_end(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = small_model("gpt2")
    wherefrom.write_folder(folder, model.transformer, model.tokenizer)
    with pytest.raises(InputError, match=r"the context: expected the 64 tokens for which .* has learnt positions"):
        wherefrom.load(folder, context=200)
    with pytest.raises(InputError, match="the context: expected a whole number from 1 up, got 0"):
        wherefrom.load(folder, context=0)


def test_a_long_texts_feed_forward_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    whole = model.transformer(torch.tensor([list(range(60))]))
    monkeypatch.setattr("wherefrom.model.transformer.ROWS_AT_ONCE", 7)
    torch.testing.assert_close(model.transformer(torch.tensor([list(range(60))])), whole, rtol=0, atol=1e-5)


def test_every_field_of_a_call_is_looked_at() -> None:
    assert {field.name for field in fields(Call)} == {
        *("layer", "name", "kind", "part", "mask", "scale", "kernel", "kept", "stored", "checks", "softcap", "repeat"),
        *(*ARRAYS, "bias", "sinks", "output"),
    }
