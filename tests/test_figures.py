"""Figures of heads: against loops over the double-precision page, and heads whose figures one knows beforehand."""

import json
import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherefrom
from by_hand import MASKS, call_of, keeping, random_call, recording_of
from wherefrom import InputError, Mask, attend
from wherefrom.questions import heads
from wherefrom.questions.figures import FIGURES, figures_of

NAMES = {"itself": "self"}  # what an answer calls the field
EPSILON = float(np.finfo(np.float32).eps)


def by_loops(call, ids):
    """The figures as their definitions say it, pair by pair, from the dense page; None where nothing counts."""
    page = attend(call.q, call.k, call.v, call.mask, scale=call.scale)
    figures = {name: [] for name in FIGURES}
    for h in range(call.heads):
        seen = {name: [] for name in FIGURES}
        for i in range(len(ids)):
            if page.empty[h, i]:
                continue
            a = page.weights[h, i].data
            seen["entropy"].append(-sum(x * math.log(x) for x in a if x > 0))
            seen["effective"].append(math.exp(seen["entropy"][-1]))
            seen["largest"].append(max(a))
            seen["largest_score"].append(max(page.scores[h, i, page.permitted[h, i]]))
            if i >= 1:
                seen["first"].append(a[0])
                seen["itself"].append(a[i])
                seen["previous"].append(a[i - 1])
            earlier = [j for j in range(i) if ids[j] == ids[i]]
            after = [j for j in range(1, i + 1) if ids[j - 1] == ids[i]]
            assert len(earlier) == len(after)
            if earlier:
                seen["duplicate"].append(sum(a[j] for j in earlier))
                seen["induction"].append(sum(a[j] for j in after))
        for name, values in seen.items():
            best = max if name == "largest_score" else np.mean
            figures[name].append(float(best(values)) if values else None)
    return figures


def lists(figures):
    return {name: getattr(figures, name).tolist() for name in FIGURES}


def assert_near(found, expected, call):
    """An error of lse, at most half a step of float32, is the relative error d of its weights.

    Entropy is then off by d (entropy + 1), its exp by as much of itself. The largest score needs no lse: it is exact
    to float64. A step is that of the largest lse, and d is given twice its room.
    """
    d = EPSILON * max(1, float(np.abs(call.lse[np.isfinite(call.lse)]).max(initial=0)))
    assert d < 5e-6
    for name in FIGURES:
        for one, other in zip(found[name], expected[name], strict=True):
            if other is None:
                assert one is None, name
            elif name == "largest_score":
                assert one == pytest.approx(other, rel=1e-12)
            else:
                spread = math.log(len(call.lse[0])) + 1 if name in ("entropy", "effective") else 1
                assert abs(one - other) <= d * spread * max(1, other), name


def scored(*heads, mask=None, layer=0):
    """The call of heads whose scores [T, T] are given: with keys e_0, e_1, .. a query is its row of scores."""
    s = np.stack(heads).astype(float)
    return call_of(s, np.eye(s.shape[1])[None], mask=mask, layer=layer)


def reading(targets, length):
    """The scores of a head in which destination i reads targets[i] alone: the others weigh e^-1000, which is 0."""
    s = np.zeros((length, length))
    for i, j in targets.items():
        s[i, j] = 1000
    return s


def ids_of(text):
    return [ord(letter) for letter in text]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("text", ["abcabca", "aaaaaaa", "abcdefg", "abacdde"])
def test_under_any_mask_with_grouped_heads(name, kv_heads, text):
    call = random_call(MASKS[name], kv_heads=kv_heads)
    found = lists(figures_of(call, ids_of(text)))
    assert_near(found, by_loops(call, ids_of(text)), call)
    assert found["duplicate"] == [None] * 6 if text == "abcdefg" else None not in found["duplicate"]


def test_a_longer_text_of_several_strips():
    ids = np.random.default_rng(3).integers(0, 60, 301)  # 128 + 128 + 45 destinations
    for mask in (Mask(), Mask(window=17), Mask.bidirectional(window=130)):
        call = random_call(mask, heads=3, kv_heads=1, length=301)
        assert_near(lists(figures_of(call, ids)), by_loops(call, ids.tolist()), call)


@given(st.sampled_from(sorted(MASKS)), st.integers(1, 9), st.text("abc", min_size=7, max_size=7))
def test_strips_of_any_size_give_what_one_strip_gives(name, strip, text):
    call = random_call(MASKS[name])
    pieces, whole = (figures_of(call, ids_of(text), strip=size) for size in (strip, 7))
    for field in fields(whole):
        one, other = getattr(pieces, field.name), getattr(whole, field.name)
        assert np.array_equal(np.ma.getmaskarray(one), np.ma.getmaskarray(other))
        assert np.allclose(np.ma.filled(one, 0), np.ma.filled(other, 0), rtol=1e-12, atol=1e-15)


@given(st.sampled_from(sorted(MASKS)), st.integers(0, 99), st.text("abc", min_size=7, max_size=7))
def test_shares_are_shares_and_an_entropy_is_at_most_that_of_even_weights(name, seed, text):
    mask = MASKS[name]
    call = random_call(mask, seed=seed)
    figures = figures_of(call, ids_of(text))
    for share in ("largest", "first", "itself", "previous", "duplicate", "induction"):
        values = getattr(figures, share).compressed()
        assert np.all((values >= 0) & (values <= 1 + 1e-5))
    readable = mask.dense(7, 7).sum(axis=-1) * np.ones((6, 1))  # H T
    for h in range(6):
        counts = readable[h][readable[h] > 0]
        assert 0 <= figures.entropy[h] <= np.log(counts).mean() + 1e-5
        assert 1 <= figures.effective[h] <= counts.mean() + 1e-4
        assert figures.effective[h] >= math.exp(figures.entropy[h]) - 1e-9  # Jensen
        assert figures.largest[h] >= (1 / counts).mean() - 1e-5
    if mask.only_causal:
        assert np.all(figures.entropy <= np.log(np.arange(1, 8)).mean() + 1e-5)


def test_heads_that_read_one_source_have_the_figures_one_knows():
    text = "abcab"
    heads = {
        "previous": {i: i - 1 for i in range(1, 5)},
        "first": dict.fromkeys(range(1, 5), 0),
        "itself": {i: i for i in range(5)},
        "duplicate": {1: 1, 2: 2, 3: 0, 4: 1},
        "induction": {1: 1, 2: 2, 3: 1, 4: 2},
    }
    figures = figures_of(scored(*(reading(targets, 5) for targets in heads.values())), ids_of(text))
    shares = {name: getattr(figures, name).tolist() for name in heads}
    assert shares == {
        "previous": [1, 0.25, 0, 0, 0],  # 1 reads 0, which is its previous one
        "first": [0.25, 1, 0, 0.25, 0],
        "itself": [0, 0, 1, 0.5, 0.5],
        "duplicate": [0, 0.5, 0, 1, 0],  # 3 and 4 came before, at 0 and 1
        "induction": [0, 0, 0, 0, 1],  # and 1 and 2 came after those
    }
    assert figures.largest.tolist() == [1] * 5
    assert figures.entropy.tolist() == [0] * 5
    assert figures.effective.tolist() == [1] * 5
    assert figures.largest_score.tolist() == [1000] * 5


def test_a_head_that_reads_evenly_has_the_figures_one_knows():
    figures = figures_of(scored(np.zeros((5, 5))), ids_of("abbba"))
    near = {"abs": 1e-6}  # lse is float32
    assert figures.entropy[0] == pytest.approx(np.log([1, 2, 3, 4, 5]).mean(), **near)
    assert figures.effective[0] == pytest.approx(3, **near)
    assert figures.largest[0] == pytest.approx(np.mean([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]), **near)
    later = pytest.approx(np.mean([1 / 2, 1 / 3, 1 / 4, 1 / 5]), **near)
    assert (figures.first[0], figures.itself[0], figures.previous[0]) == (later, later, later)
    # positions 2 (one earlier b), 3 (two) and 4 (one earlier a), of 3, 4 and 5 sources
    repeats = pytest.approx(np.mean([1 / 3, 2 / 4, 1 / 5]), **near)
    assert (figures.duplicate[0], figures.induction[0]) == (repeats, repeats)
    assert figures.largest_score.tolist() == [0]


def test_right_after_an_earlier_one_may_be_the_destination_itself():
    """In "aa" what came after the earlier a is position 1, which asks."""
    figures = figures_of(scored(reading({1: 1}, 2), reading({1: 0}, 2)), ids_of("aa"))
    assert figures.induction.tolist() == [1, 0]
    assert figures.duplicate.tolist() == [0, 1]


def test_what_follows_in_a_bidirectional_text_is_no_repeat():
    s = reading({0: 2, 1: 3, 2: 0, 3: 1}, 4)
    figures = figures_of(scored(s, mask=Mask.bidirectional()), ids_of("abab"))
    assert figures.duplicate.tolist() == [1]  # destinations 2 and 3 alone; 0 and 1 read later ones
    assert figures.previous.tolist() == [0]
    assert figures.first.tolist() == [pytest.approx(1 / 3)]


def test_a_window_keeps_the_first_position_and_far_repeats_out_and_their_weight_is_0():
    figures = figures_of(scored(np.zeros((6, 6)), mask=Mask(window=2)), ids_of("abcabc"))
    assert figures.first[0] == pytest.approx(0.5 / 5)  # position 1 alone may read it
    assert figures.previous[0] == pytest.approx(0.5)
    assert figures.itself[0] == pytest.approx(0.5)
    assert figures.duplicate.tolist() == [0]  # three positions before, where the window of 2 does not reach
    assert figures.induction.tolist() == [0]


def test_the_largest_score_is_the_largest_that_is_permitted():
    s = np.full((3, 3), -5.0)
    s[0, 2] = 70  # of the future, in a decoder
    s[2, 1] = -1.5
    assert figures_of(scored(s), [1, 2, 3]).largest_score.tolist() == [-1.5]
    assert figures_of(scored(s, mask=Mask.bidirectional()), [1, 2, 3]).largest_score.tolist() == [70]


def test_rows_that_may_read_nothing_are_in_no_mean_and_counted():
    seen = np.tril(np.ones((2, 4, 4), bool))
    seen[0, 2] = False
    seen[1] = False
    figures = figures_of(scored(*np.zeros((2, 4, 4)), mask=Mask(explicit=seen)), ids_of("aaaa"))
    assert figures.empty.tolist() == [1, 4]
    assert figures.effective.tolist() == [pytest.approx((1 + 2 + 4) / 3), None]
    assert figures.itself.tolist() == [pytest.approx((1 / 2 + 1 / 4) / 2), None]
    assert figures.duplicate.tolist() == [pytest.approx((1 / 2 + 3 / 4) / 2), None]
    for name in FIGURES:
        values = getattr(figures, name)
        assert np.ma.getmaskarray(values).tolist() == [False, True]
        assert np.isnan(values.data[1])


def test_nothing_that_no_destination_counts_for_is_0():
    figures = figures_of(random_call(Mask()), ids_of("abcdefg"))
    assert figures.duplicate.tolist() == figures.induction.tolist() == [None] * 6
    alone = lists(figures_of(random_call(Mask(), length=1), [7]))
    assert {name for name, values in alone.items() if values == [None] * 6} == {
        *("first", "itself", "previous", "duplicate", "induction")
    }
    assert alone["effective"] == [pytest.approx(1, abs=1e-5)] * 6


def test_ids_matter_only_by_being_equal():
    call = random_call(Mask())
    expected = lists(figures_of(call, ids_of("abcabca")))
    assert lists(figures_of(call, [2**40, -1, 0, 2**40, -1, 0, 2**40])) == expected
    assert lists(figures_of(call, np.array([9, 4, 0, 9, 4, 0, 9], np.uint16))) == expected


def test_an_entropy_is_never_below_0_for_a_rounded_lse():
    call = scored(reading({1: 0, 2: 1}, 3))
    low = replace(call, lse=np.nextafter(call.lse, np.float32(-999)))  # weights of 1 + 2e-5
    assert figures_of(low, [1, 2, 3]).entropy.tolist() == [0]
    assert figures_of(low, [1, 2, 3]).largest[0] > 1


def test_half_precision_recordings_are_computed_in_double_precision():
    call = random_call(Mask())
    half = replace(call, q=call.q.astype(np.float16), k=call.k.astype(np.float16))
    whole = call_of(half.q, half.k, scale=half.scale)
    half = replace(half, lse=whole.lse)
    assert lists(figures_of(half, ids_of("abcabca"))) == lists(figures_of(whole, ids_of("abcabca")))


def test_the_answer_has_the_figures_of_every_layer_and_head(small):
    recording = wherefrom.record(small, "which byte was read by whom, and how much?!")
    answer = heads(recording)
    assert [(row["layer"], row["head"]) for row in answer] == [(la, h) for la in range(3) for h in range(6)]
    for call in recording.calls:
        expected = lists(figures_of(call, recording.tokens.ids))
        rows = [row for row in answer if row["layer"] == call.layer]
        for name in FIGURES:
            assert [row[NAMES.get(name, name)] for row in rows] == expected[name]
        assert_near(expected, by_loops(call, recording.tokens.ids), call)
    assert heads(recording, layer=1).rows == answer.rows[6:12]
    assert heads(recording, head=4).rows == answer.rows[4::6]
    assert heads(recording, layer=2, head=0).rows == answer.rows[12:13]


TEXT = """\
What does every head read? every head of 1 layer
layer  head  entropy  effective  largest   first    self  previous  duplicate  induction  largest_score  distance
                nats    sources    share   share   share     share      share      share          score    tokens
    0     0   0.0000     1.0000   1.0000  0.5000  0.0000    1.0000          -          -      1000.0000    0.6667
    0     1   0.5973     2.0000   0.6111  0.4167  0.4167    0.4167          -          -         0.0000    0.5000
No head is left out. Where no destination counts for a figure there is none.
exact: recomputed from the recorded q, k and lse, within float32 rounding (about 1e-4)"""


def test_the_answer_as_text():
    recording = recording_of(scored(reading({1: 0, 2: 1}, 3), np.zeros((3, 3))))
    assert str(heads(recording)) == TEXT
    assert heads(recording, layer=0).question == "What does every head read? every head of layer 0"
    assert heads(recording, head=1).question == "What does every head read? head 1 of 1 layer"
    two = recording_of(scored(np.zeros((3, 3))), scored(np.zeros((3, 3)), layer=1), letters="xyx")
    assert heads(two, head=0).question == "What does every head read? head 0 of each of 2 layers"
    meanings = {column.name: column.meaning for column in heads(two).columns}
    assert meanings["induction"].endswith("mean over the 1 of 3 destinations whose token came before")
    assert {column.name: column.unit for column in heads(two).columns}["effective"] == "sources"


def test_the_answer_turns_into_json_and_a_frame():
    answer = heads(recording_of(random_call(MASKS["both"])))
    assert json.loads(json.dumps(answer.to_json(), allow_nan=False)) == answer.to_json()
    assert answer.to_json()["rows"][0]["duplicate"] is None
    frame = answer.to_polars()
    assert frame.columns == ["layer", "head", *(NAMES.get(name, name) for name in FIGURES), "distance"]
    assert frame["induction"].to_list() == [None] * 6
    assert frame["first"].to_list() == [row["first"] for row in answer]
    assert all(type(value) in (int, float, type(None)) for row in answer.rows for value in row)


def chosen(answer):
    return [row[:2] for row in answer.rows]


def test_heads_by_a_figure_and_by_conditions():
    recording = recording_of(scored(reading({1: 0, 2: 1}, 3), np.zeros((3, 3))), scored(np.zeros((3, 3)), layer=1))
    assert chosen(heads(recording, sort="previous")) == [(0, 0), (0, 1), (1, 0)]
    assert chosen(heads(recording, sort="-previous")) == [(0, 1), (1, 0), (0, 0)]
    assert chosen(heads(recording, sort="-previous", top=1)) == [(0, 1)]
    assert chosen(heads(recording, where=["self>0.4"])) == [(0, 1), (1, 0)]
    assert chosen(heads(recording, where=("self > 0.4", "layer<=0"))) == [(0, 1)]
    assert chosen(heads(recording, where=["duplicate>=0"])) == []  # which nobody has there
    assert heads(recording, where=["self>0.4"], top=1).left_out.startswith(
        "Not listed: 1 more head. 2 of 3 heads meet self>0.4. Where no destination counts for a figure there is none."
    )
    told = []
    heads(recording, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"sort": "sink"}, "a column of the heads: expected one of layer, head, entropy, effective, largest, first"),
        ({"where": "self>0.4"}, 'the conditions: expected texts such as "induction>0.3"'),
        (
            {"where": ["self"]},
            'a condition: expected a column, one of > >= < <=, and a number, such as "induction>0.3"',
        ),
        ({"where": ["self>a"]}, "a condition: expected"),
        ({"where": ["share>0.1"]}, "a column of the heads: expected one of"),
        ({"where": [3]}, "a condition: expected"),
        ({"top": 0}, "top: expected a whole number from 1 up, got 0"),
    ],
)
def test_a_choice_of_heads_that_is_none(how, sentence):
    with pytest.raises(InputError) as caught:
        heads(recording_of(random_call(MASKS["causal"])), **how)
    assert str(caught.value).startswith(sentence)


def test_what_is_left_out_is_said():
    recording = recording_of(random_call(MASKS["another map a head"]), letters="abcabca")
    assert heads(recording).left_out == (
        "No head is left out. In no mean: 7 rows of destinations that may read nothing."
    )
    assert heads(recording, head=2).left_out.endswith("In no mean: 2 rows of destinations that may read nothing.")
    assert heads(recording, head=0).left_out.endswith("In no mean: 1 row of a destination that may read nothing.")
    assert heads(recording_of(random_call(Mask()), letters="abcabca")).left_out == "No head is left out."


def test_calls_in_which_the_text_does_not_read_itself_are_left_out():
    own = random_call(Mask())
    cross = replace(random_call(Mask.bidirectional(), layer=1), kind="cross")
    wide = replace(random_call(Mask.bidirectional(), layer=2), q=own.q[:, :4], lse=own.lse[:, :4])
    later = replace(random_call(Mask(), layer=3), mask=Mask(offset=2))
    short = random_call(Mask(), length=5, layer=4)
    answer = heads(recording_of(own, cross, wide, later, short))
    assert {row["layer"] for row in answer} == {0}
    assert answer.left_out.startswith("Left out: 4 calls in which not all of the text reads itself.")
    assert heads(recording_of(own, cross)).left_out.startswith("Left out: 1 call in which")
    assert heads(recording_of(own, cross), layer=0).left_out.startswith("No head is left out.")
    for call in (cross, wide, later):
        with pytest.raises(InputError, match="the call: expected self-attention with as many destinations as sources"):
            figures_of(call, ids_of("abcabca"))


def none_of_it(recording, **others):
    return heads(replace(recording, calls=tuple(replace(call, **others) for call in recording.calls)))


WRONG = [
    (lambda r: heads(r, layer=2), "the layer: expected a whole number from 0 to 1, got 2. Layers are numbered"),
    (lambda r: heads(r, layer=True), "the layer: expected a whole number from 0 to 1, got True."),
    (lambda r: heads(r, head=6), "the head: expected a whole number from 0 to 5, got 6. Heads are numbered"),
    (lambda r: heads(r, head=-1), "the head: expected a whole number from 0 to 5, got -1."),
    (lambda r: heads(r.calls), "the recording: expected a Recording, got a value of type tuple."),
    (
        lambda r: none_of_it(r, mask=Mask(offset=2)),
        "the recording: expected a call of self-attention in which all of the text reads itself, got 2 calls",
    ),
    (
        lambda r: none_of_it(r, kind="cross"),
        "the kind of attention: expected one that was recorded (cross of the decoder), got self of the decoder.",
    ),
    (lambda r: figures_of(r, ids_of("abcabca")), "the call: expected a Call, got a value of type Recording."),
    (lambda r: figures_of(r.calls[0], [1, 2]), "the token ids: expected whole numbers, one a position, 7, got int64"),
    (
        lambda r: figures_of(r.calls[0], np.zeros(7)),
        "the token ids: expected whole numbers, one a position, 7, got flo",
    ),
    (lambda r: figures_of(r.calls[0], [True] * 7), "the token ids: expected whole numbers, one a position, 7, got boo"),
    (
        lambda r: figures_of(r.calls[0], [[1], [1, 2]]),
        "the token ids: expected whole numbers, one a position, 7, got no",
    ),
    (lambda r: figures_of(r.calls[0], range(7), strip=0), "the strip: expected a whole number from 1 up, got 0."),
    (
        lambda r: figures_of(replace(r.calls[0], mask=Mask(offset=3)), range(7)),
        "the call: expected self-attention with as many destinations as sources, got self-attention of 7 destinations "
        "over 7 sources from position 3.",
    ),
]


@pytest.mark.parametrize(("question", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_question_that_cannot_be_asked(question, sentence):
    recording = recording_of(random_call(Mask()), random_call(Mask(), layer=1))
    with pytest.raises(InputError, match=re.escape(sentence)):
        question(recording)


def test_heads_that_were_not_kept_are_said():
    whole = recording_of(random_call(MASKS["causal"]), random_call(MASKS["causal"], layer=1))
    part = replace(whole, calls=(keeping(whole.calls[1], [1, 4], range(7)),))
    assert heads(part).question == "What does every head read? the 2 heads that the recording keeps"
    assert heads(part).left_out.startswith(
        "Left out: 4 heads and all heads of 1 layer that the recording does not keep."
    )
    assert heads(part, layer=1).question == "What does every head read? the 2 heads of layer 1 that the recording keeps"
