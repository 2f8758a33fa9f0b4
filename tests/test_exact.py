"""Weights of any call against the double-precision page: softcaps, biases, sinks, kept parts, long rows, no mask."""

from dataclasses import replace

import numpy as np
import pytest

from by_hand import MASKS, keeping, random_call, recording_of
from wherefrom import InputError, Scope, attend, readers, received, sources, weights
from wherefrom.attention import Mask
from wherefrom.questions import column_of_weights, heads, row_of_weights, window_of_weights
from wherefrom.questions.exact import LARGE, SHORT, WORTH
from wherefrom.recording import Call, Stored

DRAW = np.random.default_rng(3)
ALSO = {
    "softcap": {"softcap": 1.5},
    "bias of all heads": {"bias": DRAW.standard_normal((1, 7, 7)).astype(np.float32)},
    "bias of each head": {"bias": DRAW.standard_normal((6, 7, 7)).astype(np.float32)},
    "sinks": {"sinks": DRAW.standard_normal(6).astype(np.float32)},
    "all": {
        "softcap": 2.0,
        "bias": DRAW.standard_normal((6, 7, 7)).astype(np.float32),
        "sinks": DRAW.standard_normal(6).astype(np.float32),
    },
}
NEAR = 4e-6
"""A float32 lse near 10 is off by up to 5e-7, which is the relative error of its weights."""


def page(call):
    return attend(
        call.q, call.k, call.v, call.mask, scale=call.scale, softcap=call.softcap, bias=call.bias, sinks=call.sinks
    )


def off(values, expected):
    assert np.array_equal(np.ma.getmaskarray(values), np.ma.getmaskarray(expected))
    return float(np.abs(values - expected).filled(0).max())


def all_ways(call, heads, rows):
    """The same weights [H, T, S] by windows, by rows and by columns."""
    size = call.sources
    yield np.ma.stack(
        [
            np.ma.concatenate([window_of_weights(call, head, range(row, row + 1), range(size)) for row in rows])
            for head in heads
        ]
    )
    yield np.ma.stack([row_of_weights(call, row) for row in rows], axis=1)
    yield np.ma.stack([column_of_weights(call, source) for source in range(size)], axis=2)


@pytest.mark.parametrize("also", ALSO)
@pytest.mark.parametrize("mask", MASKS)
def test_every_way_is_the_page(mask, also):
    call = random_call(MASKS[mask], **ALSO[also])
    for found in all_ways(call, range(6), range(7)):
        assert off(found, page(call).weights) <= NEAR


@pytest.mark.parametrize("also", [{}, *ALSO.values()], ids=["plain", *ALSO])
@pytest.mark.parametrize("mask", MASKS)
def test_what_was_kept_has_the_same_weights(mask, also):
    call = random_call(MASKS[mask], **also)
    heads, rows = [1, 4, 5], [0, 3, 6]
    kept = keeping(call, heads, rows)
    assert (kept.heads, kept.k.shape[0], kept.destinations, kept.all_rows) == (3, 2, 7, False)
    for found in all_ways(kept, heads, rows):
        assert off(found, page(call).weights[np.ix_(heads, rows)]) <= NEAR


def test_with_sinks_a_row_and_its_share_are_one():
    call = random_call(Mask(), **ALSO["sinks"])
    share = np.exp(call.sinks[:, None] - call.lse.astype(np.float64))
    rows = window_of_weights(call, 2, range(7), range(7)).sum(axis=1)
    assert share[2, 0] > 0.9
    assert np.abs(rows + share[2] - 1.0).max() < NEAR


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_a_long_row_is_exact_where_it_matters(spread):
    draw, size = np.random.default_rng(8), SHORT + 9000
    q, k = (spread * draw.standard_normal((2, size, 64)).astype(np.float32) for _ in range(2))
    scores = np.einsum("hd,hsd->hs", q[:, -1].astype(np.float64), k[:, :].astype(np.float64)) / 8
    lse = np.full((2, size), np.nan, np.float32)
    lse[:, -1] = np.log(np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)) + scores.max(axis=1)
    call = Call(0, "long", "self", q, k, k, lse, Mask(), 0.125, "by hand", ())
    expected = np.exp(scores - lse[:, -1:].astype(np.float64))
    row = row_of_weights(call, size - 1)
    assert bool((expected > WORTH).any()) == (spread > 1)
    assert np.abs(row - expected)[expected > WORTH].filled(1).max(initial=0) < 1e-12
    assert np.abs(row - expected).max() < 1e-8
    window = window_of_weights(call, 1, range(size - 1, size), range(size))
    assert window.size < LARGE
    assert np.abs(window[0] - expected[1]).max() < 1e-12


LARGE_MASKS = {
    "causal": Mask(),
    "padding on the left": Mask(padding=np.arange(150) >= 20),  # the first twenty rows are empty
    "window": Mask(window=40),
}


@pytest.mark.parametrize("also", [{}, {"softcap": 3.0}], ids=["plain", "softcap"])
@pytest.mark.parametrize("mask", LARGE_MASKS)
def test_a_large_window_is_that_of_its_small_pieces(mask, also):
    call = random_call(LARGE_MASKS[mask], heads=2, length=150, head_size=16, **also)
    large = window_of_weights(call, 1, range(150), range(150))
    assert large.size >= LARGE
    for row in range(150):
        small = window_of_weights(call, 1, range(row, row + 1), range(150))[0]
        assert np.array_equal(np.ma.getmaskarray(large[row]), np.ma.getmaskarray(small))
        assert np.abs(large[row] - small).filled(0).max() < 1e-13


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda call: call.place_of_head(2),
            "the head: expected one of those that the recording keeps of layer 0 (1, 4)",
        ),
        (lambda call: call.place_of_head(6), "the head: expected a whole number from 0 to 5, got 6"),
        (lambda call: row_of_weights(call, 4), "the destination: expected one of those that the recording keeps"),
        (lambda call: row_of_weights(call, 7), "the position: expected a whole number from 0 to 6, got 7"),
        (lambda call: window_of_weights(call, 3, range(1), range(1)), "the head: expected one of those"),
        (lambda call: window_of_weights(call, 4, range(2), range(1)), "the destination: expected one of those"),
    ],
)
def test_what_was_not_kept_is_refused(ask, sentence):
    with pytest.raises(InputError) as caught:
        ask(keeping(random_call(Mask()), [1, 4], [0, 6]))
    assert str(caught.value).startswith(sentence)


def partial():
    """Layers 0 and 3 of a model of 4, with some heads and destinations of the second."""
    whole = recording_of(random_call(Mask()), *(random_call(Mask(), layer=layer) for layer in (1, 2, 3)))
    return replace(whole, calls=(whole.calls[0], keeping(whole.calls[3], [1, 4], [0, 6])))


def test_answers_of_a_part_say_so():
    found = sources(partial(), 6, top=2)
    assert "mean over the 8 heads that the recording keeps of those asked for" in found.question
    rows = [row_of_weights(call, 6) for call in partial().calls]
    mean = np.concatenate(rows).mean(axis=0)
    assert found.rows[0][2] == pytest.approx(mean.max())
    assert "layer 3, head 4" in sources(partial(), 6, layer=3, head=4).question


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda r: sources(r, 6, layer=1), "the layer: expected one of 0, 3, got 1."),
        (lambda r: weights(r, layer=2, head=0), "the layer: expected one of 0, 3, got 2."),
        (lambda r: sources(r, 6, head=0), "the head: expected one of those that the recording keeps of layer 3 (1, 4)"),
        (lambda r: sources(r, 2), "the destination: expected one of those that the recording keeps of layer 3 (0, 6)"),
        (lambda r: readers(r, 2), "the recording: expected every destination, since the question is about all of them"),
        (
            lambda r: weights(r, layer=3, head=1),
            "the range of destinations: expected some of those that the recording",
        ),
        (lambda r: heads(r, layer=3), "the recording: expected every destination"),
        (lambda r: Scope((2,)).describe(r), "the layer: expected one of 0, 3, got 2."),
    ],
)
def test_a_question_about_what_is_not_there_says_what_is(ask, sentence):
    with pytest.raises(InputError) as caught:
        ask(partial())
    assert str(caught.value).startswith(sentence)


def test_rounded_numbers_say_so():
    call = replace(random_call(Mask()), stored=Stored("float16", (0, 6), 3e-4, 1e-3))
    said = "recomputed from q and k that the file holds in float16"
    assert sources(recording_of(call)).exactness.startswith(said)
    assert "at most 3.0e-04" in weights(recording_of(call), layer=0, head=0).exactness
    assert heads(recording_of(call)).exactness.startswith(said)


def test_a_window_of_what_was_kept():
    part = recording_of(keeping(random_call(Mask()), [1, 4], [6]))
    found = weights(part, layer=0, head=4)
    assert (found.destinations, found.sources) == (range(6, 7), range(7))
    assert found.left_out.tolist() == [0.0]


def test_the_share_of_a_sink_is_not_beside_the_window():
    call = random_call(Mask(), **ALSO["sinks"])
    assert weights(recording_of(call), layer=0, head=2).left_out.tolist() == [0.0] * 7
    half = weights(recording_of(call), layer=0, head=2, sources=range(3))
    beside = window_of_weights(call, 2, range(7), range(3, 7)).sum(axis=1)
    assert float(np.abs(half.left_out - beside).max()) < NEAR
    assert half.left_out.tolist()[:3] == [0.0] * 3


@pytest.mark.parametrize(
    "ask",
    [lambda r: sources(r, 6), lambda r: readers(r, 0), lambda r: received(r), lambda r: weights(r, layer=0, head=0)],
)
def test_a_call_that_begins_later_is_refused_by_name(ask):
    later = random_call(Mask(offset=4))
    short = replace(later, q=later.q[:, :3], lse=later.lse[:, :3])
    with pytest.raises(InputError) as caught:
        ask(recording_of(short, letters="abcdefg"))
    assert str(caught.value).startswith(
        "the call of layer 0: expected 7 destinations from position 0 on over 7 sources, those of the text, got 3 from "
        "position 4 on over 7."
    )
