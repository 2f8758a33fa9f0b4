"""Recordings and knock-outs of every kind of model: decoders with windows and norms, encoders, encoder-decoders."""

from __future__ import annotations

import re
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch

import wherefrom
from kinds import CONFIGS, DECODERS, MASK, PAIRS, small_model
from test_trace import SCHEMA
from wherefrom import Cut, Destination, InputError, Scope, Target, knock_out, knock_out_heads
from wherefrom.attention import Mask, attend
from wherefrom.capture.fused import attend_masked
from wherefrom.capture.recorder import Recorder
from wherefrom.model.attention_function import Site, fused, plain, strips
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.initial import draw
from wherefrom.questions import row_of_weights
from wherefrom.views.terminal import trace_lines

TEXT = "The bridge was [MASK] it"
WRITTEN = "Die Br\u00fccke"
CLOSE = 2e-5


def recorded(kind: str, **how) -> wherefrom.Recording:
    model = small_model(kind)
    return wherefrom.record(model, TEXT, **({"written": WRITTEN} if kind in PAIRS else {}), **how)


def twin(at: Destination, target: Target, sources, scope: Scope) -> float:
    """The knock-out by running everything again, all other destinations held as they were."""
    recording = at.recording
    source_ids = None if recording.source is None else recording.source.ids
    values = []
    for cut in (Cut((), (), scope), Cut((at.position,), sources, scope)):
        logits = wherefrom.rerun(at.model, recording.tokens.ids, cut, source_ids=source_ids, hold_others=True)
        values.append(float(target.of_logits(logits[at.position])))
    return values[0] - values[1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_call_is_recorded_under_its_name(kind):
    recording, config = recorded(kind), CONFIGS[kind]
    own = [(layer, f"blocks.{layer}.attention", "self", recording.model.part) for layer in range(config.layers)]
    encoder = [(n, f"encoder.blocks.{n}.attention", "self", "encoder") for n in range(config.encoder_layers)]
    cross = [(layer, f"blocks.{layer}.cross_attention", "cross", "decoder") for layer in range(config.layers)]
    expected = encoder + own + (cross if config.encoder_layers else [])
    assert [(call.layer, call.name, call.kind, call.part) for call in recording.calls] == expected
    modules = dict(small_model(kind).transformer.named_modules())
    assert all(call.name in modules for call in recording.calls)
    assert recording.model.kind == config.kind


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_recorded_is_what_the_equations_say(kind):
    model, recording = small_model(kind), recorded(kind)
    outputs = {}

    def watched(q, k, v, *, mask, scale, site):
        outputs[site.name] = plain(q, k, v, mask=mask, scale=scale, site=site)
        return outputs[site.name]

    with torch.inference_mode():
        ids, transformer = torch.tensor([recording.tokens.ids]), model.transformer
        memory = None
        if recording.source is not None:
            memory = transformer.encode(torch.tensor([recording.source.ids]), attention=watched)
        transformer.stream(ids, attention=watched, memory=memory)
    for call in recording.calls:
        dense = attend(call.q, call.k, call.v, call.mask, scale=call.scale)
        np.testing.assert_allclose(dense.output.filled(np.nan), outputs[call.name][0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dense.lse.filled(np.nan), call.lse, rtol=1e-5, atol=1e-5)
        for head in (0, 5):
            kinds = {"kind": call.kind, "part": call.part}
            window = wherefrom.weights(recording, layer=call.layer, head=head, **kinds)
            np.testing.assert_allclose(window.values.filled(np.nan), dense.weights[head], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_forecast_is_the_size(kind):
    recording = recorded(kind)
    written = (WRITTEN,) if kind in PAIRS else ()
    assert wherefrom.forecast(small_model(kind), TEXT, *written) == recording.bytes
    counts = (len(recording.tokens),) if recording.source is None else (len(recording.source), len(recording.tokens))
    assert wherefrom.forecast(small_model(kind), *counts) == recording.bytes


CUTS = [
    (kind, position, scope)
    for kind, positions in {
        "llama": (6, 18), "gpt2": (17,), "mistral": (1, 9, 18), "qwen3": (14,),
        "bert": (0, 15, 18), "windowed encoder": (0, 12, 18), "marian": (0, 4, 11), "pre-norm pair": (0, 11),
    }.items()
    for position in positions
    for scope in (Scope(), Scope((1,)), Scope(None, (0, 4)), Scope((2, 0), (3,)))
]  # fmt: skip


@pytest.mark.parametrize(("kind", "position", "scope"), CUTS, ids=str)
def test_knock_outs_of_a_position_are_what_running_everything_again_says(kind, position, scope):
    at = Destination(small_model(kind), recorded(kind), position)
    target = Target(97)
    kinds = ["cross"] if kind in PAIRS else []
    kinds += ["self"] if len(at.readable()) > 1 else []
    for way in kinds:
        asked = replace(scope, kind=way)
        readable = sorted(at.readable(way))
        cuts = [[readable[0]], [readable[-1]], readable[1:4], readable[: len(readable) // 2]]
        cuts = [cut for cut in cuts if cut and len(cut) < len(readable)]
        measured = knock_out(at, target, cuts, scope=asked)
        expected = [twin(at, target, cut, asked) for cut in cuts]
        np.testing.assert_allclose(measured.nats, expected, rtol=0, atol=CLOSE)
        assert np.abs(measured.nats).max() > 1e-3  # the cuts did something


@pytest.mark.parametrize(("kind", "way"), [("mistral", "self"), ("bert", "self"), *((kind, "cross") for kind in PAIRS)])
def test_knock_outs_of_single_heads_are_what_running_everything_again_says(kind, way):
    at, target = Destination(small_model(kind), recorded(kind), 7), Target(97, 98)
    source = sorted(at.readable(way))[1]
    heads = knock_out_heads(at, target, [source], scope=Scope((0, 2), (1, 5), way))
    expected = [[twin(at, target, [source], Scope((layer,), (head,), way)) for head in (1, 5)] for layer in (0, 2)]
    np.testing.assert_allclose(heads.nats[0], expected, rtol=0, atol=CLOSE)
    assert np.abs(heads.nats).max() > 1e-4


def test_a_source_beyond_the_window_costs_nothing():
    at = Destination(small_model("mistral"), recorded("mistral"), 10)
    assert at.readable() == {7, 8, 9, 10}
    measured = knock_out(at, Target(97), [(source,) for source in range(11)])
    np.testing.assert_allclose(measured.nats[:7], 0.0, atol=CLOSE)
    assert np.abs(measured.nats[7:]).min() > 1e-4
    assert knock_out(at, Target(97)).cuts == ((7,), (8,), (9,), (10,))  # only what can be read is cut unless asked for
    traced = wherefrom.trace(small_model("mistral"), TEXT, position=10)
    assert [source["position"] for source in traced.to_json()["sources"]] == [7, 8, 9, 10]
    assert np.isnan(traced.nats).tolist() == [True] * 7 + [False] * 4
    assert set(traced.order.tolist()) == {7, 8, 9, 10}
    assert "others" not in "".join(line.plain for line in trace_lines(traced))
    with pytest.raises(InputError, match=r"at most 3, so that something is left to read, got 4 of 4"):
        knock_out(at, Target(97), [(7, 8, 9, 10)])


@pytest.mark.parametrize("kind", ["llama", "mistral", *PAIRS])
def test_behind_a_cut_the_total_knock_out_differs_from_the_direct_one_and_before_it_nothing_does(kind):
    model, recording = small_model(kind), recorded(kind)
    source_ids = None if recording.source is None else recording.source.ids
    cut = Cut((5,), (4,))
    held, free = (
        wherefrom.rerun(model, recording.tokens.ids, cut, source_ids=source_ids, hold_others=hold)
        for hold in (True, False)
    )
    torch.testing.assert_close(held[:6], free[:6], rtol=0, atol=CLOSE)
    assert float((held[6:] - free[6:]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
def test_a_recorded_generation_is_the_recording_of_one_pass(kind):
    model = small_model(kind)
    generated = wherefrom.record_generation(model, "A bridge", max_tokens=9, stop_ids=())
    if kind in PAIRS:
        whole = wherefrom.record(model, "A bridge", written=generated.tokens, predictions="all")
        assert (generated.source, generated.written_from) == (whole.source, 1)
    else:
        whole = wherefrom.record(model, generated.tokens, predictions="all")
        assert (generated.source, generated.written_from) == (None, 8)
    assert len(generated.calls) == len(whole.calls)
    for one, other in zip(generated.calls, whole.calls, strict=True):
        assert (one.name, one.kind, one.part, one.q.shape, one.k.shape) == (
            other.name, other.kind, other.part, other.q.shape, other.k.shape,
        )  # fmt: skip
        for name in ("q", "k", "v", "lse"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-4)
    for position in range(generated.written_from, len(generated)):  # row t - 1 wrote token t
        assert generated.prediction(position - 1).ids[0] == generated.tokens.ids[position]


@pytest.mark.parametrize("kind", ["bert", "windowed encoder"])
def test_a_masked_token_is_traced(kind):
    model = small_model(kind)
    traced = wherefrom.trace(model, TEXT, carried_sources=1)
    at = traced.position
    assert traced.tokens.ids[at] == MASK
    assert traced.tokens[at].label == "[MASK]"
    ids = torch.tensor([traced.tokens.ids])
    with torch.inference_mode():
        logits = model.transformer(ids)[0, at]
    assert traced.aim.target.id == int(logits.argmax())
    assert traced.aim.probability == pytest.approx(float(torch.softmax(logits, -1).max()), abs=1e-5)
    readable = range(len(ids[0])) if kind == "bert" else range(at - 2, at + 3)
    mean = np.mean([call.mask.dense(19, 19)[at] * dense_row(call, at) for call in traced.recording.calls], axis=0)
    np.testing.assert_allclose(traced.weights, mean, atol=1e-6)
    assert set(np.flatnonzero(traced.weights)) == set(readable)
    strongest = int(traced.order[0])
    expected = twin(Destination(model, traced.recording, at), traced.aim.target, [strongest], Scope())
    assert traced.nats[strongest] == pytest.approx(expected, abs=CLOSE)
    jsonschema.validate(traced.to_json(), SCHEMA)


def dense_row(call, at):
    return attend(call.q, call.k, call.v, call.mask, scale=call.scale).weights[:, at].filled(0.0).mean(axis=0)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("written", [None, WRITTEN])
def test_a_written_token_is_traced_to_the_words_of_the_source(kind, written):
    model = small_model(kind)
    traced = wherefrom.trace(model, "A bridge", written=written, carried_sources=1)
    assert (traced.scope.kind, traced.source_tokens.text) == ("cross", "A bridge")
    assert traced.source_tokens[8].label == "<end>"
    assert traced.position == (0 if written is None else 11)
    assert traced.tokens[0].label == "<start>"
    assert traced.weights.shape == traced.nats.shape == (9,)
    assert traced.weights.sum() == pytest.approx(1.0, abs=1e-5)
    strongest = int(traced.order[0])
    at = Destination(model, traced.recording)
    expected = twin(at, traced.aim.target, [strongest], Scope(kind="cross"))
    assert traced.nats[strongest] == pytest.approx(expected, abs=CLOSE)
    shown = traced.to_json()
    jsonschema.validate(shown, SCHEMA)
    assert (shown["source_text"], shown["scope"]["kind"]) == ("A bridge", "cross")
    assert not any(source["own"] for source in shown["sources"])


def test_a_written_token_is_traced_to_what_was_written():
    traced = wherefrom.trace(small_model("marian"), "A bridge", written=WRITTEN, through="self")
    assert traced.source_tokens is traced.tokens
    assert traced.to_json()["sources"][-1]["own"]
    expected = twin(Destination(small_model("marian"), traced.recording), traced.aim.target, [2], Scope())
    assert traced.nats[2] == pytest.approx(expected, abs=CLOSE)


def test_an_encoder_without_a_head_is_recorded_and_asked():
    recording = recorded("encoder")
    assert recording.predictions == ()
    assert len(wherefrom.sources(recording, 3, top=5)) == 5
    with pytest.raises(InputError, match=re.escape("the model: expected a head that scores tokens, got an encoder")):
        wherefrom.trace(small_model("encoder"), TEXT)


@pytest.mark.parametrize(
    ("kind", "named"),
    [("encoder", "an encoder"), ("llama", "a decoder"), ("pre-norm pair", "an encoder-decoder")],
)
def test_a_model_without_a_head_is_called_what_it_is(kind, named):
    config = replace(CONFIGS[kind], architecture="wherefrom", head="none", head_bias=False, tied=False)
    with pytest.raises(InputError, match=f"a head that scores tokens, got {named} without one. Record it"):
        draw(config, 0).logits(torch.zeros(1, 48))


def test_predictions_of_an_encoder_are_of_its_masked_tokens():
    masked = recorded("bert")
    assert [kept.position for kept in masked.predictions] == [15]
    assert masked.prediction(15).next_id is None
    assert len(recorded("bert", predictions="all").predictions) == 19


REFUSED = [
    ("llama", {"written": "a"}, "the written text: expected none, got one, for llama, a decoder, which has no encoder"),
    ("bert", {"written": "a"}, "the written text: expected none"),
    ("llama", {"through": "cross"}, 'through: expected "self", got "cross", for llama'),
    ("marian", {"written": ""}, "the written text: expected some text, got nothing"),
    ("marian", {"written": " "}, "the written text: expected some text, got only blanks (' '). Leave it out where"),
    ("marian", {"position": 1}, "the position: expected a whole number from 0 to 0, got 1"),
]


@pytest.mark.parametrize(("kind", "how", "sentence"), REFUSED)
def test_what_a_kind_of_model_cannot_be_asked(kind, how, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        wherefrom.trace(small_model(kind), TEXT, **how)


@pytest.mark.parametrize(
    ("text", "given"), [("no mask here", "got none."), ("[MASK] and [MASK]", "got 2, at positions 0, 6. Write [MASK]")]
)
def test_an_encoder_is_asked_about_one_masked_token(text, given):
    with pytest.raises(
        InputError, match=re.escape("the text of an encoder: expected one masked token, [MASK], " + given)
    ):
        wherefrom.trace(small_model("bert"), text)
    assert wherefrom.trace(small_model("bert"), text, position=2).position == 2


def test_an_encoder_writes_nothing():
    for verb in (wherefrom.generate, wherefrom.record_generation):
        with pytest.raises(InputError, match="the model: expected one that writes, got bert, an encoder"):
            verb(small_model("bert"), "abc")


def test_kinds_of_attention_that_are_not_there():
    recording = recorded("llama")
    with pytest.raises(InputError, match=re.escape("self-attention of its decoder, got cross of the decoder")):
        wherefrom.sources(recording, kind="cross")
    with pytest.raises(InputError, match="the kind of attention: expected 'self' or 'cross', got 'both'"):
        wherefrom.sources(recording, kind="both")
    with pytest.raises(InputError, match="got self of the encoder"):
        wherefrom.weights(recording, layer=0, head=0, part="encoder")
    pair = recorded("marian")
    with pytest.raises(InputError, match="the layer: expected a whole number from 0 to 1, got 2"):
        wherefrom.sources(pair, layer=2, part="encoder")
    with pytest.raises(InputError, match="got cross of the encoder"):
        wherefrom.sources(pair, kind="cross", part="encoder")


def test_questions_about_each_map_of_an_encoder_decoder_name_its_tokens():
    pair = recorded("marian")
    assert wherefrom.sources(pair, 0, kind="cross", top=99).rows[0][1] in {token.label for token in pair.source}
    assert len(wherefrom.sources(pair, 0, kind="cross", top=99)) == len(pair.source)
    assert len(wherefrom.readers(pair, 3, kind="cross", top=99)) == len(pair.tokens)
    assert len(wherefrom.readers(pair, 3, part="encoder", top=99)) == len(pair.source)
    assert "12 heads of the encoder (2 layers x 6)" in wherefrom.sources(pair, 3, part="encoder").question
    assert "18 heads of cross-attention (3 layers x 6)" in wherefrom.sources(pair, 3, kind="cross").question


def test_the_encoder_of_a_pair_is_cut_by_running_everything_again_only():
    at = Destination(small_model("marian"), recorded("marian"))
    for ask in (
        lambda scope: knock_out(at, Target(97), scope=scope),
        lambda s: knock_out_heads(at, Target(97), [0], scope=s),
    ):
        with pytest.raises(
            InputError, match="the scope: expected the part that predicts, the decoder, got the encoder"
        ):
            ask(Scope(part="encoder"))
    ids, source_ids = at.recording.tokens.ids, at.recording.source.ids
    cut = Cut((4,), (1,), Scope(part="encoder"))
    with pytest.raises(InputError, match="hold_others: expected False for a cut in the encoder"):
        wherefrom.rerun(at.model, ids, cut, source_ids=source_ids, hold_others=True)
    changed = wherefrom.rerun(at.model, ids, cut, source_ids=source_ids)
    assert float((changed - wherefrom.rerun(at.model, ids, Cut((), ()), source_ids=source_ids)).abs().max()) > 1e-3


def test_a_cut_leaves_something_within_the_window():
    model, ids = small_model("mistral"), recorded("mistral").tokens.ids
    with pytest.raises(InputError, match="left to read for destination 8, which reads 5 to 8, got all of it cut"):
        wherefrom.rerun(model, ids, Cut((8,), (5, 6, 7, 8)))
    assert torch.isfinite(wherefrom.rerun(model, ids, Cut((8,), (5, 6, 7)))).all()


def test_figures_of_an_encoder_decoder_are_of_one_part_at_a_time():
    model = small_model("marian")
    recording = wherefrom.record(model, "abc", written="xyz")  # four tokens each
    own, encoder = wherefrom.heads(recording), wherefrom.heads(recording, part="encoder")
    assert [row[:2] for row in own.rows] == [(layer, head) for layer in range(3) for head in range(6)]
    assert [row[:2] for row in encoder.rows] == [(layer, head) for layer in range(2) for head in range(6)]
    alone = wherefrom.heads(wherefrom.record(model, "abc", written="x"), part="encoder")
    assert encoder.rows == alone.rows
    with pytest.raises(InputError, match="got self of the encoder"):
        wherefrom.heads(recorded("llama"), part="encoder")


@pytest.mark.parametrize("kind", ["bert", "llama", "windowed encoder"])
def test_a_padded_text_is_recorded_as_one_text(kind):
    model, ids = small_model(kind), torch.arange(70, 80)[None]
    padding = torch.tensor([[True] * 7 + [False] * 3])
    recorder, alone = Recorder(3, 10), Recorder(3, 7)
    with torch.inference_mode():
        model.transformer.stream(ids, attention=recorder, padding=padding)
        model.transformer.stream(ids[:, :7], attention=alone)
    for padded, short in zip(recorder.calls(), alone.calls(), strict=True):
        assert padded.mask.padding.shape == (10,)
        for row in range(7):
            weights = row_of_weights(padded, row)
            assert weights.shape == (6, 10)
            np.testing.assert_allclose(weights[:, :7], row_of_weights(short, row), atol=2e-5)
            assert not weights[:, 7:].any()


def test_a_cache_remembers_which_of_the_source_is_padding():
    model = small_model("marian").transformer
    source = torch.tensor([[70, 71, 72, 256, 256]])
    padding = torch.tensor([[True, True, True, True, False]])
    with torch.inference_mode():
        memory = model.encode(source, padding=padding)
        cache = KeyValueCache(model.config, 4)
        model(torch.tensor([[258, 65]]), cache=cache, memory=memory, memory_padding=padding)
        stepped = model(torch.tensor([[66]]), cache=cache)[0, -1]
        whole = model(torch.tensor([[258, 65, 66]]), memory=memory, memory_padding=padding)[0, -1]
    torch.testing.assert_close(stepped, whole, rtol=0, atol=CLOSE)


def test_windows_of_a_pair_say_which_attention_they_show():
    pair = recorded("marian")
    windows = [
        wherefrom.weights(pair, layer=0, head=0, destinations=range(2), sources=range(2), **which)
        for which in ({}, {"kind": "cross"}, {"part": "encoder"})
    ]
    assert [(window.kind, window.part) for window in windows] == [
        ("self", "decoder"), ("cross", "decoder"), ("self", "encoder"),
    ]  # fmt: skip
    assert len({window.question for window in windows}) == 3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 5, 300, 700])
def test_a_window_is_computed_in_strips_that_give_the_same(causal, window):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, 1201, 8, generator=generator) for heads in (4, 2, 2))
    padding = np.arange(1201) < np.array([[1201], [900]])
    for mask in (Mask(causal, window), Mask(causal, window, padding=padding)):
        site = Site(0, "here")
        ours = fused(q, k, v, mask=mask, scale=0.3, site=site)
        dense = plain(q, k, v, mask=mask, scale=0.3, site=site)
        torch.testing.assert_close(ours[0], dense[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours[1, :, :900], dense[1, :, :900], rtol=1e-5, atol=1e-5)
        pieces = list(strips(mask, 1201, 1201))
        assert (len(pieces) > 1) == (window < 600)
        assert max(columns.stop - columns.start for _, columns, _ in pieces) <= max(
            1201 if window >= 600 else 0, 3 * 300
        )
    one = Mask(causal, window)
    alone = attend_masked(q[:1], k[:1], v[:1], mask=one, scale=0.3)
    dense_lse = attend(q[0], k[0], v[0], one, scale=0.3).lse.filled(np.nan)
    np.testing.assert_allclose(alone.lse[0], dense_lse, rtol=1e-5, atol=1e-5)
