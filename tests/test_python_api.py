"""The verbs as a person types them: what prints, what whole numbers are, and what is refused with a way out."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import wherefrom
from small import write_small_model
from wherefrom import Cut, Destination, InputError, Scope, Target, knock_out, knock_out_heads
from wherefrom.tokens import Tokens

TEXT = "To be, or not"
ONE, TWO = np.int64(1), np.uint8(2)


@pytest.fixture(scope="module")
def traced(small):
    return wherefrom.trace(small, TEXT)


@pytest.fixture(scope="module")
def last(small, traced):
    return Destination(small, traced.recording)


def test_a_trace_prints_its_sources(traced):
    head, predicted, *table = str(traced).splitlines()
    assert head == repr(traced)
    label, share = traced.predicted[0]
    assert predicted.startswith(f'predicted next: "{label}" {100 * share:.1f}%, ')
    assert "\n".join(table) == str(traced.sources())
    assert len(table) == 1 + 2 + 10 + 1 + 2
    assert len(str(traced)) < 2000
    assert table[-1] == f"knock_out {traced.knockouts.exactness}"


def test_the_sources_of_a_trace_are_its_numbers(traced):
    answer = traced.sources(top=TWO)
    for source, row in zip(traced.order[:2].tolist(), answer, strict=True):
        assert row == {
            "source": source,
            "token": traced.tokens[source].label,
            "weight": traced.weights[source],
            "knock_out": traced.nats[source],
        }
    assert answer.remainder == pytest.approx(traced.weights[traced.order[2:]].sum())
    largest = abs(traced.nats[traced.order[2]])
    assert answer.left_out == (
        f"Not listed: 11 more sources with {answer.remainder:.4f} of the weight, knock-outs within ±{largest:.4f} nats."
    )
    assert "1 more source with" in traced.sources(12).left_out
    assert traced.sources(13).remainder == 0
    assert traced.sources(99).left_out == "Nothing is left out."
    assert json.loads(json.dumps(answer.to_json())) == answer.to_json()
    with pytest.raises(InputError, match=r"top: expected a whole number from 1 up, got 0\."):
        traced.sources(0)


def test_values_show_themselves_on_one_line(small, traced, last):
    aim = traced.aim.label
    assert repr(traced) == f'Trace("{TEXT}" -> "{aim}", 13 tokens)'
    lead = wherefrom.trace(small, f"{'x' * 50}\n{TEXT}", against="!")
    assert repr(lead) == f'Trace("…{"x" * 46}\\n{TEXT}" -> "{lead.aim.label}" over "!", 64 tokens)'
    assert repr(traced.recording) == f"Recording({small.name}, 13 tokens, 3 calls, 16.5 kB)"
    assert repr(wherefrom.record(small, "a")) == f"Recording({small.name}, 1 token, 3 calls, 1.3 kB)"
    assert repr(traced.recording.calls[1]) == (
        "Call(layer 1, blocks.1.attention, self, 6 heads on 2, 13 x 13 positions, 5.5 kB)"
    )
    nats = np.array([0.1, -0.456])
    assert repr(replace(traced.knockouts, nats=nats, cuts=((0,), (1,)), target=Target(7))) == (
        "Knockouts(Target(id=7, against=None), position 12, 2 cuts, the largest -0.46 nats)"
    )
    heads = knock_out_heads(last, Target(33), [])
    assert repr(heads) == "HeadKnockouts(0 x 3 x 6 sources, layers, heads; within ±0.00 nats)"
    assert repr(traced.sources(1)).endswith(", 1 row)")
    assert repr(wherefrom.weights(traced.recording, layer=0, head=0)).endswith("destinations 0 to 12?', 13 x 13)")


def test_one_token_has_one_probability(small, smollm):
    for model, text in ((small, TEXT), (smollm, "The capital of France is")):
        first = wherefrom.trace(model, text, carried_sources=0)
        assert first.aim.probability == first.predicted[0][1]
        assert first.aim.label == first.predicted[0][0]
        ids = first.recording.prediction(first.position).ids
        for at, token in enumerate(ids):
            again = wherefrom.trace(model, text, target=token, carried_sources=0)
            assert again.aim.probability == again.predicted[at][1]


def test_numpys_whole_numbers_are_whole_numbers(small, traced, last):
    assert Target(np.int32(7), ONE) == Target(7, 1)
    assert Scope(np.array([2, 0]), range(2)) == Scope((2, 0), (0, 1))
    assert Cut(np.array([3]), [1]) == Cut((3,), (1,))
    recording = traced.recording
    assert wherefrom.sources(recording, TWO, layer=ONE, head=TWO, top=TWO) == (
        wherefrom.sources(recording, 2, layer=1, head=2, top=2)
    )
    window = wherefrom.weights(recording, layer=ONE, head=TWO)
    assert window == wherefrom.weights(recording, layer=1, head=2)
    json.dumps(window.to_json())
    how = {"target": np.int64(33), "against": ONE, "position": np.int16(8), "layer": ONE, "carriers": TWO}
    again = wherefrom.trace(small, TEXT, **how, carried_sources=ONE)
    assert again.aim.target == Target(33, 1)
    assert (again.position, len(again.carried), len(again.carried[0].carriers)) == (8, 1, 2)
    json.dumps(again.to_json())
    measured = knock_out(last, Target(33), np.array([[0, 1], [2, 3]]))
    assert measured.cuts == ((0, 1), (2, 3))
    assert knock_out_heads(last, Target(33), np.array([3])).sources == (3,)
    assert recording.call(ONE) is recording.calls[1]
    assert recording.prediction(np.int64(12)) is recording.predictions[-1]
    assert len(wherefrom.record_generation(small, "ab", max_tokens=TWO, stop_ids=())) == 4


def test_a_forecast_takes_what_record_takes(small, traced):
    size = traced.recording.bytes
    for text in (TEXT, small.tokenizer.encode(TEXT), 13, np.int64(13)):
        assert wherefrom.forecast(small, text) == size
    assert wherefrom.forecast(small, 0) == 0


WRONG = [
    (lambda m, t, p: Target(" Mary"), "a target's id: expected a whole number from 0 up, got ' Mary'."),
    (lambda m, t, p: Target(True), "a target's id: expected a whole number from 0 up, got True."),
    (lambda m, t, p: Target(-1), "a target's id: expected a whole number from 0 up, got -1."),
    (lambda m, t, p: Target(3, 2.0), "a target's against: expected a whole number from 0 up, got 2.0."),
    (lambda m, t, p: Target(3, 3), "a target's against: expected another token than its id, got 3 for both."),
    (lambda m, t, p: Scope(layers=3), "the layers: expected whole numbers, as a tuple, a range or an array, got 3."),
    (
        lambda m, t, p: Scope(None, "12"),
        "the heads: expected whole numbers, as a tuple, a range or an array, got '12'.",
    ),
    (lambda m, t, p: Scope([1, 1.5]), "the layers: expected whole numbers, as a tuple, a range or an array, got 1.5 a"),
    (lambda m, t, p: Scope([True]), "got True among them. A single one is written (3,); None means all."),
    (
        lambda m, t, p: Cut(3, (1,)),
        "the destinations of a cut: expected whole numbers in a row, such as (0, 1), got 3.",
    ),
    (lambda m, t, p: Cut((3,), (1,), (2,)), "the scope of a cut: expected a Scope, got a value of type tuple."),
    (
        lambda m, t, p: knock_out(p, 33),
        "the target: expected a Target, got 33. Give a token id as one: wherefrom.Target",
    ),
    (lambda m, t, p: knock_out_heads(p, " to", [0]), "the target: expected a Target, got ' to'."),
    (lambda m, t, p: knock_out(t.recording, Target(1)), "the destination: expected a Destination, got a value of"),
    (lambda m, t, p: knock_out(p, Target(257)), "the target: expected a token id from 0 to 256, got 257."),
    (lambda m, t, p: knock_out_heads(p, Target(1, 900), []), "the target: expected a token id from 0 to 256, got 900."),
    (lambda m, t, p: knock_out(p, Target(1), scope=(3,)), "the scope: expected a Scope, got a value of type tuple."),
    (
        lambda m, t, p: knock_out(p, Target(1), [0, 1]),
        "the cuts: expected groups of sources, got 0. Each cut is a group",
    ),
    (lambda m, t, p: knock_out(p, Target(1), 3), "the cuts: expected groups of sources, got 3. Each cut is a group:"),
    (lambda m, t, p: knock_out(p, Target(1), np.arange(2)), "got np.int64(0). Each cut is a group: [(0,), (1,)]"),
    (lambda m, t, p: knock_out_heads(p, Target(1), 3), "the sources: expected positions, such as (0, 1), got 3."),
    (lambda m, t, p: Destination(m, t), "the recording: expected a Recording, got a value of type Trace. Make one"),
    (
        lambda m, t, p: Destination(m.transformer, t.recording),
        "the model: expected a LanguageModel, got a value of ty",
    ),
    (lambda m, t, p: wherefrom.sources(t), "that of a trace is trace.recording."),
    (lambda m, t, p: wherefrom.readers(t, 1), "that of a trace is trace.recording."),
    (lambda m, t, p: wherefrom.weights(t, layer=0, head=0), "that of a trace is trace.recording."),
    (lambda m, t, p: t.recording.call(True), "the layer: expected one of 0 to 2, got True."),
    (lambda m, t, p: wherefrom.trace(m, None), "the prompt: expected a text (str), got None."),
    (lambda m, t, p: wherefrom.trace("smollm2", "x"), "the model: expected a LanguageModel, got 'smollm2'. Load it"),
    (lambda m, t, p: wherefrom.generate(m, b"ab"), 'of type bytes. Bytes become a text by .decode("utf-8").'),
    (lambda m, t, p: wherefrom.record(m, [1, 2]), "the prompt: expected a text (str), got a value of type list."),
    (lambda m, t, p: wherefrom.record_generation(m, 3), "the prompt: expected a text (str), got a value of type int."),
    (lambda m, t, p: wherefrom.record(m, "ab", predictions="first"), 'predictions: expected "last" or "all", got \'fi'),
    (lambda m, t, p: wherefrom.record(m, "ab", predictions=None), 'predictions: expected "last" or "all", got None.'),
    (lambda m, t, p: wherefrom.trace(m, TEXT, target=1.5), "the target: expected a token id from 0 to 256, got 1.5."),
    (
        lambda m, t, p: wherefrom.trace(m, TEXT, against=b"x"),
        "to compare with: expected a token id from 0 to 256, got b",
    ),
    (lambda m, t, p: wherefrom.forecast(m, None), "the prompt: expected a text (str), got None."),
    (lambda m, t, p: wherefrom.forecast(m, -1), "the number of tokens: expected a whole number from 0 up, got -1."),
    (lambda m, t, p: wherefrom.forecast_bytes(m, 3), "ask `wherefrom.forecast(model, text)`."),
    (
        lambda m, t, p: wherefrom.rerun(m.transformer, [1], Cut((), ())),
        "the model: expected a LanguageModel, got a val",
    ),
    (lambda m, t, p: wherefrom.rerun(m, "ab", Cut((), ())), "the token ids: expected whole numbers in a row, such as"),
    (
        lambda m, t, p: wherefrom.rerun(m, [1, 257], Cut((), ())),
        "the token id: expected a whole number from 0 to 256, g",
    ),
    (lambda m, t, p: wherefrom.rerun(m, [1, 2], (1,)), "the cut: expected a Cut, got a value of type tuple."),
    (
        lambda m, t, p: wherefrom.rerun(m, [1, 2], Cut((2,), (0,))),
        "the position: expected a whole number from 0 to 1, ",
    ),
    (
        lambda m, t, p: wherefrom.rerun(m, [1, 2], Cut((1,), (-1,))),
        "the position: expected a whole number from 0 to 1,",
    ),
    (lambda m, t, p: wherefrom.rerun(m, [1, 2], Cut((1,), (0,), Scope((3,)))), "the layer: expected a whole number"),
    (lambda m, t, p: wherefrom.rerun(m, [], Cut((), ())), "the text: expected at least one token"),
    (
        lambda m, t, p: wherefrom.rerun(m, [1, 2, 3], Cut((2, 1), (0, 1))),
        "a cut: expected something left to read for destination 1, which reads 0 to 1, got all of it cut.",
    ),
]


@pytest.mark.parametrize(("ask", "sentence"), WRONG, ids=[str(at) for at in range(len(WRONG))])
def test_what_cannot_be_asked_says_the_way_out(small, traced, last, ask, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        ask(small, traced, last)


def test_tokens_of_another_tokenizer_are_refused(small, smollm):
    foreign = smollm.tokenizer.encode("ab is")
    assert foreign.ids[0] > 257
    with pytest.raises(InputError, match=r"for \"ab\" at position 0, which is beyond its vocabulary\. Read") as caught:
        wherefrom.record(small, foreign)
    assert (caught.value.position, caught.value.id) == (0, foreign.ids[0])
    ours = small.tokenizer.encode("b!b?")
    with pytest.raises(InputError, match="the tokens: expected those of SmolLM2") as caught:
        wherefrom.record(smollm, ours)
    assert caught.value.position == 0
    swapped = replace(ours, items=(*ours.items[:3], replace(ours.items[3], id=ours.items[2].id)))
    with pytest.raises(InputError, match=r'for "\?" at position 3, which spells b\'b\' there') as caught:
        wherefrom.record(small, swapped)
    assert (caught.value.position, caught.value.id) == (3, ours.items[2].id)
    for verb in (wherefrom.record, wherefrom.forecast):
        with pytest.raises(InputError, match="the tokens: expected those of"):
            verb(small, foreign)


def test_tokens_are_bounded_by_the_context_like_a_text(small):
    long = small.tokenizer.encode("z" * 301)
    with pytest.raises(InputError, match="expected at most 300 tokens"):
        wherefrom.record(small, long)
    fits = Tokens(long.text[:300], long.items[:300])
    assert len(wherefrom.record(small, fits)) == 300


def test_a_model_of_the_same_words_takes_the_tokens(small, tmp_path):
    other = wherefrom.load(write_small_model(tmp_path / "other", seed=9))
    assert len(wherefrom.record(other, small.tokenizer.encode("shared words"))) == 12
