"""Two recordings side by side: distances against the double-precision page, figures, and pairs that are none."""

import re
from dataclasses import replace

import numpy as np
import pytest

from by_hand import MASKS, call_of, keeping, random_call, recording_of
from kinds import small_model
from wherefrom import InputError, Mask, diff, heads, record
from wherefrom.questions import window_of_weights

EVERY = range(7)


def dense(call, head):
    return window_of_weights(call, head, EVERY, EVERY)


@pytest.mark.parametrize("mask", MASKS)
def test_the_distance_of_a_head_is_half_the_difference_of_its_rows(mask):
    one, other = (random_call(MASKS[mask], seed=seed) for seed in (1, 2))
    answer = diff(recording_of(one), recording_of(other), top=6)
    for row in answer:
        apart = 0.5 * np.abs(dense(one, row["head"]) - dense(other, row["head"])).sum(axis=1)  # masked where empty
        if apart.count() == 0:
            assert row["moved"] is None
            continue
        assert row["moved"] == pytest.approx(float(apart.mean()), abs=2e-6)
        assert row["largest"] == pytest.approx(float(apart.max()), abs=2e-6)
        assert apart[row["at"]] == pytest.approx(row["largest"], abs=2e-6)
        assert row["token"] == "abcdefg"[row["at"]]
    moved = [row["moved"] for row in answer if row["moved"] is not None]
    assert moved == sorted(moved, reverse=True)


def test_values_that_one_can_do_on_paper():
    keys = np.log([[[1], [1]]])
    even, first = call_of(np.ones((1, 2, 1)), keys), call_of(np.ones((1, 2, 1)), np.array([[[60.0], [0.0]]]))
    (row,) = diff(recording_of(even), recording_of(first))
    assert row["moved"] == pytest.approx(0.25)  # the first row is all itself in both; half of the second moves
    assert (row["largest"], row["at"]) == (pytest.approx(0.5), 1)
    (same,) = diff(recording_of(even), recording_of(replace(even)))
    assert same["moved"] == 0.0


def test_only_what_is_in_both_is_compared():
    one = recording_of(random_call(Mask()), random_call(Mask(), layer=1, seed=3))
    part = replace(one, calls=(keeping(one.calls[1], [2, 5], list(EVERY)),))
    answer = diff(one, part)
    assert [(row["layer"], row["head"], row["moved"]) for row in answer] == [(1, 2, 0.0), (1, 5, 0.0)]
    assert answer.left_out == "No head that both hold is left out."
    top = diff(one, recording_of(random_call(Mask(), seed=8), random_call(Mask(), layer=1, seed=9)), top=2)
    assert top.left_out.startswith("Not listed: 10 more heads, none of them above 0.")


def test_two_texts_are_compared_by_their_figures():
    model = small_model("llama")
    one, other = record(model, "abcabcabc"), record(model, "a text of another kind")
    answer = diff(one, other, top=18)
    figures = [{(row["layer"], row["head"]): row for row in heads(each)} for each in (one, other)]
    assert len(answer) == 18
    for row in answer:
        own, theirs = (each[row["layer"], row["head"]] for each in figures)
        shares = ("largest", "first", "self", "previous", "duplicate", "induction")
        apart = {name: abs(own[name] - theirs[name]) for name in shares}
        assert row["apart"] == max(apart.values()) == apart[row["figure"]]
        assert (row["first_text"], row["second_text"]) == (own[row["figure"]], theirs[row["figure"]])
    assert "9 and 22 tokens" in answer.question
    assert len(diff(one, other, layer=1)) == 6


def test_a_wide_mask_in_one_of_them():
    draw = {"length": 200, "heads": 2, "kv_heads": 1}
    one, other = random_call(Mask(), **draw), random_call(Mask.bidirectional(), **draw)
    every = range(200)
    for pair in ((one, other), (other, one)):
        for row in diff(*(recording_of(call, letters="x" * 200) for call in pair)):
            own, theirs = (window_of_weights(call, row["head"], every, every) for call in pair)
            assert row["moved"] == pytest.approx(float(0.5 * np.abs(own - theirs).sum(axis=1).mean()), abs=2e-6)


def test_a_sink_is_one_of_the_sources():
    sinks = [np.array([value], np.float32) for value in (0.0, 3.0)]
    one, other = (call_of(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), sinks=each) for each in sinks)
    (row,) = diff(*(recording_of(call) for call in (one, other)))
    assert row["moved"] == pytest.approx(1 / 2 - 1 / (1 + np.exp(3)), abs=1e-6)  # all that moves goes to the sink


def test_what_an_encoder_read_is_a_text_too():
    model = small_model("marian")
    one, other = record(model, "abcabc"), record(model, "xyzzy wq")
    assert "the figures of two texts" in diff(one, other).question
    assert "of the encoder of marian" in diff(one, other, part="encoder").question
    assert "of cross-attention" in diff(one, record(model, "abcabc"), kind="cross").question
    with pytest.raises(InputError, match="got two texts, through cross-attention"):
        diff(one, other, kind="cross")


def test_a_model_that_may_read_further_is_the_same_model():
    model = small_model("llama")
    one, other = record(model, "a text"), record(model, "another text")
    longer = replace(other, model=replace(other.model, context=9000))
    assert diff(one, longer).rows == diff(one, other).rows


def small(*calls, **others):
    return replace(recording_of(*calls), **others)


CALL = random_call(Mask())
WRONG = [
    (lambda: diff(small(CALL), CALL), "the recording: expected a Recording, got a value of type Call"),
    (
        lambda: diff(small(CALL), small(random_call(Mask(), heads=2))),
        "the two recordings: expected of models with as many layers and heads, so that each head has its counterpart, "
        "got 1 layers of 6 heads and 1 layers of 2 heads.",
    ),
    (
        lambda: diff(
            small(CALL), replace(recording_of(CALL, letters="gfedcba"), model=replace(small(CALL).model, name="other"))
        ),
        "the two recordings: expected one text in two models, or two texts in one model, in self-attention, got two",
    ),
    (lambda: diff(small(CALL), small(CALL), layer=1), "the layer: expected a whole number from 0 to 0, got 1"),
    (lambda: diff(small(CALL), small(CALL), top=0), "top: expected a whole number from 1 up, got 0"),
    (
        lambda: diff(small(CALL), small(CALL, calls=(keeping(CALL, [0], [6]),))),
        "the recording: expected every destination, since the question is about all of them",
    ),
    (
        lambda: diff(
            replace(small(CALL, replace(CALL, layer=1)), calls=(CALL,)),
            replace(small(CALL, replace(CALL, layer=1)), calls=(replace(CALL, layer=1),)),
        ),
        "the two recordings: expected a layer, and a head of it, that both hold, got layers 0 and 1",
    ),
]


@pytest.mark.parametrize(("ask", "sentence"), WRONG, ids=[sentence[:60] for _, sentence in WRONG])
def test_a_pair_that_is_none(ask, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        ask()
