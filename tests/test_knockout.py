"""Knock-outs: every number against the whole text run again with the cut in a dense mask, and against known values."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import wherefrom
from small import write_small_model
from wherefrom import Cut, Destination, InputError, Mask, RecordingError, Scope, Target, knock_out, knock_out_heads
from wherefrom.evidence import knockout
from wherefrom.model.attention_function import plain
from wherefrom.questions.asked import mean_row

KNOWN = json.loads((Path(__file__).parent / "data" / "smollm2_knockouts.json").read_text(encoding="utf-8"))["prompts"]
PROMPTS = ["ab", "xyz", "To be, or not", "one two three four, one two three four, one"]
SCOPES = [Scope(), Scope((1,)), Scope(None, (4,)), Scope((2,), (0,)), Scope((0, 2), (1, 3, 5)), Scope((1, 2), None)]
CLOSE = 1e-4  # nats


def last_of(model, text):
    return Destination(model, wherefrom.record(model, text))


def twins(last, target, groups, scope=None):
    """The same knock-outs by the slow twin: the whole text run again without a cut, and with each."""
    transformer, ids = last.model.transformer, last.recording.tokens.ids
    before = target.of_logits(transformer(torch.tensor([ids]), attention=plain)[0, -1])
    cuts = [Cut((last.position,), tuple(group), scope or Scope()) for group in groups]
    return [float(before - target.of_logits(wherefrom.rerun(last.model, ids, cut)[-1])) for cut in cuts]


def assert_close(measured, expected, bound=CLOSE):
    assert np.shape(measured) == np.shape(expected)
    assert np.abs(np.asarray(measured) - np.asarray(expected)).max() <= bound


@pytest.mark.parametrize("scope", SCOPES, ids=str)
@pytest.mark.parametrize("text", PROMPTS)
def test_every_source_costs_what_running_the_text_again_says(small, text, scope):
    last, target = last_of(small, text), Target(33)
    measured = knock_out(last, target, scope=scope)
    expected = twins(last, target, [[source] for source in range(len(text))], scope)
    assert_close(measured.nats, expected)
    assert measured.cuts == tuple((source,) for source in range(len(text)))
    assert measured.destination == last.position == len(text) - 1
    assert measured.nats.dtype == np.float64
    assert measured.rows == len(text) + 1
    assert np.abs(expected).max() > 100 * CLOSE  # so that the comparison says something


def test_of_two_tokens_either_edge_can_be_cut(small):
    last, target = last_of(small, "ab"), Target(65)
    without_source, without_own = knock_out(last, target).nats
    assert_close([without_source, without_own], twins(last, target, [[0], [1]]))
    assert abs(without_source - without_own) > 100 * CLOSE


def test_of_two_equal_tokens_nothing_is_lost_by_cutting_one(small):
    # Their values are the same in every layer, so a row's output is the same whatever its weights are.
    assert_close(knock_out(last_of(small, "aa"), Target(65)).nats, [0, 0], 1e-5)


@pytest.mark.parametrize("scope", [Scope(), Scope((0, 2), (1, 3))], ids=str)
def test_groups_of_sources_are_removed_together(small, scope):
    last, target = last_of(small, PROMPTS[2]), Target(98)
    groups = [(0, 1), (7, 2, 5), (12, 0), tuple(range(12)), tuple(range(1, 13)), (3,), (4, 4)]
    measured = knock_out(last, target, groups, scope=scope)
    assert_close(measured.nats, twins(last, target, groups, scope))
    assert measured.cuts == ((0, 1), (2, 5, 7), (0, 12), tuple(range(12)), tuple(range(1, 13)), (3,), (4,))
    assert measured.nats[5] == pytest.approx(knock_out(last, target, scope=scope).nats[3], abs=1e-5)


def test_a_target_may_be_one_tokens_lead_over_another(small):
    last, lead = last_of(small, PROMPTS[2]), Target(33, 77)
    measured = knock_out(last, lead)
    assert_close(measured.nats, twins(last, lead, measured.cuts))
    single, other = knock_out(last, Target(33)), knock_out(last, Target(77))
    assert_close(measured.nats, single.nats - other.nats)
    assert measured.before == pytest.approx(single.before - other.before, abs=1e-5)
    heads = knock_out_heads(last, lead, [2])
    assert_close(heads.nats, knock_out_heads(last, Target(33), [2]).nats - knock_out_heads(last, Target(77), [2]).nats)


@pytest.mark.parametrize("text", ["ab", PROMPTS[2]])
def test_every_head_alone_costs_what_running_the_text_again_says(small, text):
    last, target = last_of(small, text), Target(33)
    measured = knock_out_heads(last, target, range(len(text)))
    expected = [
        [twins(last, target, [[source]], Scope((layer,), (head,)))[0] for head in range(6)]
        for source in range(len(text))
        for layer in range(3)
    ]
    assert_close(measured.nats, np.reshape(expected, (len(text), 3, 6)))
    assert (measured.sources, measured.layers, measured.heads) == (tuple(range(len(text))), (0, 1, 2), tuple(range(6)))
    assert measured.rows == len(text) * 18 + 1
    assert np.abs(expected).max() > 100 * CLOSE


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_heads_of_a_scope_are_those_of_all(small, scope):
    last, target = last_of(small, PROMPTS[2]), Target(33)
    everything = knock_out_heads(last, target, range(13))
    layers, heads = scope.layers or range(3), scope.heads or range(6)
    measured = knock_out_heads(last, target, (11, 12, 0), scope=scope)
    assert (measured.sources, measured.layers, measured.heads) == ((11, 12, 0), tuple(layers), tuple(heads))
    assert_close(measured.nats, everything.nats[np.ix_([11, 12, 0], layers, heads)], 1e-5)


def test_one_head_alone_is_a_knock_out_of_its_scope(small):
    last, target = last_of(small, PROMPTS[3]), Target(33)
    alone = knock_out(last, target, scope=Scope((1,), (4,)))
    assert_close(knock_out_heads(last, target, range(43)).nats[:, 1, 4], alone.nats, 1e-5)


def test_no_source_no_heads(small):
    assert knock_out_heads(last_of(small, "abc"), Target(33), []).nats.shape == (0, 3, 6)


@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_batches_of_any_size_give_the_same_numbers(small, monkeypatch, at_once):
    last, target = last_of(small, PROMPTS[3]), Target(33)
    measured, heads = knock_out(last, target), knock_out_heads(last, target, range(43))
    monkeypatch.setattr(knockout, "ROWS_AT_ONCE", at_once)
    told, told_heads = [], []
    again = knock_out(last, target, progress=lambda done, total: told.append((done, total)))
    heads_again = knock_out_heads(last, target, range(43), progress=lambda *at: told_heads.append(at))
    # Two float32 sums in another order: some steps of float32 at the largest logit, which is below 32.
    same = 16 * float(np.spacing(np.float32(32)))
    assert_close(again.nats, measured.nats, same)
    assert_close(heads_again.nats, heads.nats, same)
    assert again.before == pytest.approx(measured.before, abs=same)
    assert again.rows == 43 + len(told)
    assert len(told) == -(-43 // at_once)
    for calls in (told, told_heads):
        assert calls[-1] == (43, 43)
        assert [done for done, _ in calls] == sorted({done for done, _ in calls})
        assert {total for _, total in calls} == {43}


@pytest.mark.parametrize("text", PROMPTS)
def test_the_version_without_a_cut_is_what_was_recorded(small, text):
    last = last_of(small, text)
    prediction = last.recording.prediction(last.position)
    log_probabilities = torch.log_softmax(last.logits(), dim=-1)
    assert_close(log_probabilities[list(prediction.ids)], prediction.log_probabilities, 2e-5)
    assert int(log_probabilities.argmax()) == prediction.ids[0]
    before = knock_out(last, Target(prediction.ids[0])).before
    assert before == pytest.approx(prediction.log_probabilities[0], abs=2e-5)
    everything = wherefrom.rerun(small, last.recording.tokens.ids, Cut((), ()))
    assert_close(log_probabilities, torch.log_softmax(everything[-1], dim=-1), 2e-5)


def test_a_recording_of_generated_text_can_be_cut_too(small):
    recording = wherefrom.record_generation(small, "To be, or", max_tokens=4, stop_ids=())
    assert len(recording) == 13
    last, target = Destination(small, recording), Target(33)
    assert_close(knock_out(last, target).nats, twins(last, target, [[source] for source in range(13)]))


def test_a_knock_out_says_how_exact_it_is(small):
    last = last_of(small, "abc")
    for measured in (knock_out(last, Target(33)), knock_out_heads(last, Target(33), [1])):
        assert measured.exactness == (
            "exact: measured by running the position again without the edge, within float32 rounding (about 1e-5 nats)"
        )


def test_nothing_recorded_is_changed(small):
    last = last_of(small, PROMPTS[2])
    arrays = [array for call in last.recording.calls for array in (call.q, call.k, call.v, call.lse)]
    copies = [array.copy() for array in arrays]
    first = knock_out(last, Target(33))
    knock_out_heads(last, Target(33), [1])
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))
    assert np.array_equal(knock_out(last, Target(33)).nats, first.nats)


def test_another_models_recording_is_refused(small, tmp_path):
    other = wherefrom.load(write_small_model(tmp_path, seed=8))
    with pytest.raises(InputError, match="the model of a knock-out: expected the recorded one") as caught:
        Destination(other, wherefrom.record(small, "abc"))
    assert other.fingerprint[:12] in str(caught.value)
    assert small.fingerprint[:12] in str(caught.value)


def test_one_token_has_nothing_to_cut(small):
    with pytest.raises(
        InputError, match=r"the prompt: expected at least two tokens, got one\. The first position reads"
    ):
        Destination(small, wherefrom.record(small, "a"))


def test_each_layer_is_cut_under_its_own_mask(small):
    recording = wherefrom.record(small, "abcdef")
    masks = (Mask(), Mask(window=3), Mask(padding=np.array([True, True, False, True, False, True])))
    calls = [replace(call, mask=mask) for call, mask in zip(recording.calls, masks, strict=True)]
    at = Destination(small, replace(recording, calls=calls))
    read = [np.arange(6)[at.others(layer)].tolist() for layer in range(3)]
    assert read == [[0, 1, 2, 3, 4], [3, 4], [0, 1, 3]]
    nats = knock_out(at, Target(33), [(0,), (2,)], scope=Scope((1,))).nats
    np.testing.assert_allclose(nats, 0.0, atol=1e-6)  # neither can be read there
    assert abs(knock_out(at, Target(33), [(2,)], scope=Scope((0,))).nats[0]) > 1e-4


def test_numbers_that_are_none_are_refused(small):
    recording = wherefrom.record(small, "abc")
    broken = replace(recording.calls[1], v=np.full_like(recording.calls[1].v, np.nan))
    last = Destination(small, replace(recording, calls=[recording.calls[0], broken, recording.calls[2]]))
    with pytest.raises(RecordingError, match="a knock-out: expected a finite log-probability, got NaN or an infinity"):
        knock_out(last, Target(33))
    with pytest.raises(RecordingError, match="a knock-out: expected a finite log-probability"):
        knock_out_heads(last, Target(33), [0])


WRONG = [
    (lambda last: knock_out(last, Target(1), []), "the cuts: expected at least one, got none."),
    (lambda last: knock_out(last, Target(1), [(0,), ()]), "a cut: expected at least one source and at most 12, so"),
    (lambda last: knock_out(last, Target(1), [range(13)]), "something is left to read, got 13 of 13. Remove fewer"),
    (lambda last: knock_out(last, Target(1), [(13,)]), "the position: expected a whole number from 0 to 12, got 13."),
    (lambda last: knock_out(last, Target(1), [(-1,)]), "the position: expected a whole number from 0 to 12, got -1."),
    (lambda last: knock_out(last, Target(1), [(True,)]), "expected a whole number from 0 to 12, got True."),
    (lambda last: knock_out(last, Target(1), scope=Scope((3,))), "the layer: expected a whole number from 0 to 2"),
    (lambda last: knock_out(last, Target(1), scope=Scope(None, (6,))), "the head: expected a whole number from 0 to 5"),
    (lambda last: knock_out(last, Target(1), scope=Scope(())), "the layers: expected at least one, got none."),
    (lambda last: knock_out_heads(last, Target(1), [13]), "expected a whole number from 0 to 12, got 13."),
    (lambda last: knock_out_heads(last, Target(1), [-1]), "expected a whole number from 0 to 12, got -1."),
    (lambda last: knock_out_heads(last, Target(1), [0], scope=Scope((3,))), "the layer: expected a whole number"),
    (lambda last: knock_out_heads(last, Target(1), [0], scope=Scope(None, ())), "the heads: expected at least one"),
]


@pytest.mark.parametrize(("ask", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_cut_that_cannot_be_made(small, ask, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        ask(last_of(small, PROMPTS[2]))


@pytest.mark.parametrize("known", KNOWN, ids=[known["prompt"] for known in KNOWN])
def test_the_real_model_gives_the_known_values(smollm, known):
    rounded = CLOSE + 0.5e-4  # the known values have four decimals
    last = last_of(smollm, known["prompt"])
    recording = last.recording
    prediction = recording.prediction(last.position)
    assert list(recording.tokens.ids) == known["ids"]
    assert prediction.ids[0] == known["target_id"]
    assert prediction.log_probabilities[0] == pytest.approx(known["log_probability"], abs=rounded)
    assert [smollm.tokenizer.label(token) for token in prediction.ids] == [token for token, _ in known["top5"]]
    assert_close(np.exp(prediction.log_probabilities), [share for _, share in known["top5"]], rounded)
    assert_close(mean_row(recording, last.position, Scope()), known["mean_weight_last_row"], rounded)
    measured = knock_out(last, Target(known["target_id"]))
    assert_close(measured.nats, known["direct_knockout_nats"], rounded)
    assert measured.before == pytest.approx(known["log_probability"], abs=rounded)


@pytest.mark.parametrize("text", ["Paris is", "One, two, three,", "Was läuft? A"])
def test_the_real_model_costs_what_running_the_text_again_says(smollm, text):
    last = last_of(smollm, text)
    target = Target(last.recording.prediction(last.position).ids[0])
    measured = knock_out(last, target)
    assert_close(measured.nats, twins(last, target, measured.cuts))
    strongest = int(np.abs(measured.nats).argmax())
    scope = Scope((last.recording.model.layers - 1,), (3,))
    heads = knock_out_heads(last, target, [strongest], scope=scope)
    assert_close(heads.nats.ravel(), twins(last, target, [[strongest]], scope))


TEXT = "Roses are red, violets are"


def test_a_recording_from_a_file_is_cut_like_one_in_memory(small, tmp_path):
    memory = wherefrom.record(small, TEXT)
    target = Target(memory.prediction(len(TEXT) - 1).ids[0])
    expected = knock_out(Destination(small, memory), target)
    file = wherefrom.record(small, TEXT, positions=(len(TEXT) - 1,), to=tmp_path / "x.wherefrom")
    found = knock_out(Destination(small, file), target)
    assert np.abs(found.nats - expected.nats).max() <= 1e-5
    assert found.exactness == expected.exactness
    rounded = wherefrom.record(small, TEXT, to=tmp_path / "y.wherefrom", store="float16")
    found = knock_out(Destination(small, wherefrom.record(small, TEXT)), target)
    half = knock_out(Destination(small, rounded), target)
    assert 0 < np.abs(half.nats - found.nats).max() < 0.1
    assert half.exactness.endswith("over keys and values rounded to float16")


@pytest.mark.parametrize(
    ("kept", "given"), [({"layers": (0, 2)}, "2 of 3 layers"), ({"heads": (0, 1)}, "2 of 6 heads in layer 0")]
)
def test_a_position_is_not_run_again_through_what_was_not_kept(small, kept, given):
    with pytest.raises(InputError, match=f"expected every layer and head, .*, got {given}"):
        Destination(small, wherefrom.record(small, TEXT, **kept))


def test_who_wants_to_be_told_sooner_says_how_many_run_at_once(small):
    last, target, told = last_of(small, PROMPTS[3]), Target(33), []
    found = knock_out(last, target, rows_at_once=10, progress=lambda *at: told.append(at))
    assert [done for done, _ in told] == [9, 18, 27, 35, 43]
    assert found.rows == 48
    with pytest.raises(InputError, match="rows_at_once: expected a whole number from 1 up, got 0"):
        knock_out(last, target, rows_at_once=0)
