"""Questions: every weight against the double-precision page, every answer as text, every question that is none."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherefrom
from by_hand import MASKS, call_of, random_call, recording_of
from wherefrom import InputError, Mask, Scope, attend, readers, sources, weights
from wherefrom.questions import column_of_weights, row_of_weights, window_of_weights
from wherefrom.questions.asked import exactness_of, mean_row
from wherefrom.questions.maps import HeadMap

TEXT = "which byte was read by whom, and how much?!"  # 43 bytes, a token each


@pytest.fixture(scope="module")
def recording(small):
    return wherefrom.record(small, TEXT)


@pytest.fixture(scope="module")
def paper():
    """Keys of log 1, log 2 and log 6: with a query of 1 the weights are shares of 1, 2 and 6; with 0 they are even."""
    keys = np.log([[[1], [2], [6]]])
    one, even = np.ones((3, 1)), np.zeros((3, 1))
    return recording_of(call_of([one, even], keys), call_of([even, even], keys, layer=1), letters="xyz")


def page(call):
    """The same call on the double-precision page, fed with what was recorded."""
    return attend(call.q, call.k, call.v, call.mask, scale=call.scale)


def whole(call, head):
    return window_of_weights(call, head, range(call.q.shape[1]), range(call.k.shape[1]))


def off(values, expected):
    """The largest distance; the masks must be the same."""
    assert np.array_equal(np.ma.getmaskarray(values), np.ma.getmaskarray(expected))
    return float(np.abs(values - expected).filled(0).max())


def test_every_weight_of_every_layer_and_head_is_the_one_of_the_page(small, recording):
    assert len(recording.calls) == small.config.layers == 3
    for call in recording.calls:
        attended = page(call)
        expected = attended.weights  # H T S
        # An error of the lse is the relative error of its weights: one step of float32 at the largest score.
        near = np.finfo(np.float32).eps * np.abs(attended.scores).max()
        assert near < 2e-6
        assert expected.shape == (6, 43, 43)
        for head in range(6):
            assert off(whole(call, head), expected[head]) <= near
            assert off(weights(recording, layer=call.layer, head=head).values, expected[head]) <= near
        for position in range(43):
            assert off(row_of_weights(call, position), expected[:, position]) <= near
            assert off(column_of_weights(call, position), expected[:, :, position]) <= near


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_under_any_mask_with_grouped_heads(name, kv_heads):
    call = random_call(MASKS[name], kv_heads=kv_heads)
    expected = page(call).weights
    for head in range(6):
        assert off(whole(call, head), expected[head]) <= 1e-6
    for position in range(7):
        assert off(row_of_weights(call, position), expected[:, position]) <= 1e-6
        assert off(column_of_weights(call, position), expected[:, :, position]) <= 1e-6


@pytest.mark.parametrize("name", MASKS)
def test_what_is_not_permitted_is_exactly_zero(name):
    call = random_call(MASKS[name])
    permitted = page(call).permitted  # H T S
    rows = np.ma.stack([whole(call, head) for head in range(6)])
    alive = permitted.any(axis=-1)
    assert np.all(rows.data[alive][~permitted[alive]] == 0)
    assert np.all(rows.data[alive][permitted[alive]] > 0)
    assert np.allclose(rows.data[alive].sum(axis=-1), 1, rtol=0, atol=1e-6)


def test_a_destination_that_may_read_nothing_is_masked_not_filled():
    recording = recording_of(random_call(MASKS["another map a head"]))
    call = recording.calls[0]
    for head in range(6):
        window = weights(recording, layer=0, head=head)
        empty = [4, 5] if head == 2 else [4]
        for row in range(7):
            assert np.ma.getmaskarray(window.values)[row].tolist() == [row in empty] * 7
        assert np.ma.getmaskarray(window.left_out).tolist() == [row in empty for row in range(7)]
        assert window.to_json()["values"][4] == [None] * 7
        assert window.to_json()["left_out"][4] is None
        assert np.isnan(np.asarray(window)[4]).all()
        assert np.isfinite(np.asarray(window)[3]).all()
    assert np.ma.getmaskarray(row_of_weights(call, 4)).all()
    assert np.ma.getmaskarray(column_of_weights(call, 1))[:, 4].all()
    assert np.ma.getmaskarray(column_of_weights(call, 1)).sum() == 7  # six heads, and the one row of head 2
    assert sources(recording, 4).rows == ()
    assert all(row["destination"] != 4 for row in readers(recording, 1, top=99))


def test_a_column_is_the_transposed_rows(recording):
    for call in recording.calls:
        rows = np.stack([row_of_weights(call, i).filled(np.nan) for i in range(43)], axis=1)  # H T S
        columns = np.stack([column_of_weights(call, j).filled(np.nan) for j in range(43)], axis=2)
        assert np.allclose(rows, columns, rtol=1e-12, atol=0)


SPANS = st.tuples(st.integers(0, 42), st.integers(1, 43)).map(lambda at: range(at[0], min(43, at[0] + at[1])))


@given(layer=st.integers(0, 2), head=st.integers(0, 5), rows=SPANS, columns=SPANS)
def test_any_window_is_that_piece_of_the_whole(recording, layer, head, rows, columns):
    piece = weights(recording, layer=layer, head=head, destinations=rows, sources=columns)
    all_of_it = whole(recording.call(layer), head)[rows.start : rows.stop]
    assert piece.values.shape == (len(rows), len(columns))
    assert (piece.destinations, piece.sources, piece.layer, piece.head) == (rows, columns, layer, head)
    inside = all_of_it[:, columns.start : columns.stop]
    assert np.allclose(piece.values, inside, rtol=1e-12, atol=0)
    for row, rest, shown in zip(rows, piece.left_out, inside.sum(axis=1), strict=True):
        beside = columns.start > 0 or columns.stop <= row
        assert abs(rest - (max(0.0, 1 - shown) if beside else 0.0)) < (1e-12 if beside else 1e-300)


def test_values_that_one_can_do_on_paper(paper):
    window = weights(paper, layer=0, head=0)
    expected = [[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 9, 2 / 9, 6 / 9]]
    assert np.allclose(window.values, expected, rtol=0, atol=2e-7)  # keys and lse are float32
    assert np.allclose(mean_row(paper, 2, Scope((0,), None)), [4 / 18, 5 / 18, 9 / 18], rtol=0, atol=2e-7)
    assert np.allclose(mean_row(paper, 2, Scope()), [10 / 36, 11 / 36, 15 / 36], rtol=0, atol=2e-7)


SOURCES = """\
Which sources does position 2 ("z") read? mean over 4 heads (2 layers x 2)
source  token          weight         largest  layer  head
               share of a row  share of a row
     2      z          0.4167          0.6667      0     0
     1      y          0.3056          0.3333      0     1
Not listed: 1 more source with 0.2778 of the weight.
exact: recomputed from the recorded q, k and lse, within float32 rounding (about 1e-5)"""

READERS = """\
Who reads position 1 ("y")? layer 0, head 0
destination  token          weight         largest  layer  head
                    share of a row  share of a row
          1      y          0.6667          0.6667      0     0
Not listed: 1 more destination with 0.2222 rows in all.
exact: recomputed from the recorded q, k and lse, within float32 rounding (about 1e-5)"""


def test_answers_as_text(paper):
    assert str(sources(paper, top=2)) == SOURCES
    assert str(readers(paper, 1, layer=0, head=0, top=1)) == READERS


WINDOW = """\
How does head 0 of layer 0 weight sources 0 to 2 for destinations 1 to 2?
rows: destinations 1 to 2; columns: sources 0 to 2; share of the destination's row
[[0.3333 0.6667 0.0000]
 [0.1111 0.2222 0.6667]]
exact: recomputed from the recorded q, k and lse, within float32 rounding (about 1e-5)"""


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_how_exact_it_is_follows_the_size_of_the_scores(size):
    call = random_call(Mask(), length=60, head_size=16, seed=5)
    call = replace(call, q=size * call.q, k=size * call.k)
    exact = page(call)
    call = replace(call, lse=exact.lse.filled(-np.inf).astype(np.float32))
    said = exactness_of([call])
    bound = float(re.search(r"\(about ([^)]+)\)", said)[1])
    largest = float(np.abs(call.lse).max())
    assert (bound > 1e-5) == (largest > 100)
    off_by = max(
        float(np.nanmax(np.abs(HeadMap(call, head).tile(0, 0, 0).largest - exact.weights[head].filled(0))))
        for head in range(6)
    )
    assert off_by <= 2 * bound, (largest, off_by, bound)


def test_a_window_as_text(paper, recording):
    assert str(weights(paper, layer=0, head=0, destinations=range(1, 3))) == WINDOW
    dead = str(weights(recording_of(random_call(MASKS["another map a head"])), layer=0, head=2))
    assert " [     -      -      -      -      -      -      -]\n" in dead
    large = str(weights(recording, layer=1, head=2))
    assert "..." in large
    assert len(large.splitlines()) == 3 + 7


def test_a_window_says_what_it_is(paper):
    window = weights(paper, layer=0, head=1, destinations=range(1, 3), sources=range(1))
    assert window.question == "How does head 1 of layer 0 weight sources 0 to 0 for destinations 1 to 2?"
    assert window.unit == "share of the destination's row"
    assert window.exactness.startswith("exact: recomputed from the recorded q, k and lse")


@pytest.mark.parametrize("scope", [{}, {"layer": 1}, {"head": 4}, {"layer": 2, "head": 0}], ids=str)
@pytest.mark.parametrize("destination", [0, 17, 42])
def test_sources_are_the_mean_row_strongest_first(recording, scope, destination):
    chosen = [call for call in recording.calls if scope.get("layer", call.layer) == call.layer]
    heads = [scope["head"]] if "head" in scope else list(range(6))
    each = np.stack([page(call).weights[heads, destination].filled(np.nan) for call in chosen])  # L H S
    mean, largest = each.mean(axis=(0, 1)), each.max(axis=(0, 1))
    answer = sources(recording, destination, top=7, **scope)
    shares = [row["weight"] for row in answer]
    assert len(answer) == min(7, destination + 1)
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) + answer.remainder == pytest.approx(1, abs=1e-6)
    assert np.allclose(sorted(mean, reverse=True)[: len(shares)], shares, rtol=0, atol=1e-6)
    for row in answer:
        assert row["token"] == recording.tokens[row["source"]].label
        assert row["weight"] == pytest.approx(mean[row["source"]], abs=1e-6)
        assert row["largest"] == pytest.approx(largest[row["source"]], abs=1e-6)
        place = [call.layer for call in chosen].index(row["layer"]), heads.index(row["head"])
        assert each[place][row["source"]] == pytest.approx(row["largest"], abs=1e-6)


def test_the_last_position_is_asked_about_unless_one_is_named(recording):
    assert sources(recording) == sources(recording, 42)
    assert sources(recording) != sources(recording, 41)


@pytest.mark.parametrize("scope", [{}, {"layer": 1}, {"head": 4}, {"layer": 2, "head": 0}], ids=str)
def test_readers_are_the_mean_column_and_come_after_the_source(recording, scope):
    chosen = [call for call in recording.calls if scope.get("layer", call.layer) == call.layer]
    heads = [scope["head"]] if "head" in scope else list(range(6))
    mean = np.mean([page(call).weights[heads, :, 30].filled(np.nan) for call in chosen], axis=(0, 1))  # T
    assert np.all(mean[:30] == 0)
    answer = readers(recording, 30, top=99, **scope)
    given_away = [row["weight"] for row in answer]
    assert sorted(row["destination"] for row in answer) == list(range(30, 43))
    assert given_away == sorted(given_away, reverse=True)
    assert np.allclose(given_away, [mean[row["destination"]] for row in answer], rtol=0, atol=1e-6)
    assert answer.remainder == pytest.approx(0, abs=1e-12)
    few = readers(recording, 30, top=4, **scope)
    assert few.rows == answer.rows[:4]
    assert few.remainder == pytest.approx(sum(given_away[4:]), abs=1e-12)


def test_ties_stand_in_the_order_of_the_text():
    recording = recording_of(call_of(np.zeros((2, 7, 1)), np.zeros((1, 7, 1))))
    assert [row["source"] for row in sources(recording, top=5)] == [0, 1, 2, 3, 4]
    assert [row["destination"] for row in readers(recording, 0, top=3)] == [0, 1, 2]
    bidirectional = recording_of(call_of(np.zeros((2, 7, 1)), np.zeros((1, 7, 1)), mask=Mask.bidirectional()))
    assert [row["destination"] for row in readers(bidirectional, 3, top=99)] == list(range(7))


def test_top_may_be_more_than_there_is(recording):
    answer = sources(recording, 10, top=1000)
    assert sorted(row["source"] for row in answer) == list(range(11))
    assert answer.remainder == pytest.approx(0, abs=1e-12)
    assert answer.left_out == "Nothing is left out."


def test_only_what_can_be_read_is_counted_as_left_out(recording):
    assert sources(recording, 10, top=4).left_out.startswith("Not listed: 7 more sources with ")
    assert readers(recording, 40, top=2).left_out.startswith("Not listed: 1 more destination with ")


def test_a_source_after_its_destination_is_seen_where_it_may_be_read():
    call = random_call(Mask.bidirectional())
    expected = page(call).weights[:, 2].mean(axis=0)
    answer = sources(recording_of(call), 2, top=7)
    assert {row["source"] for row in answer} == set(range(7))
    assert all(row["weight"] == pytest.approx(expected[row["source"]], abs=1e-6) for row in answer)
    assert answer.remainder == pytest.approx(0, abs=1e-6)


def test_answers_are_values(paper):
    assert sources(paper, top=2) == sources(paper, 2, top=2)
    assert sources(paper, top=2) != sources(paper, top=3)
    assert weights(paper, layer=0, head=0) == weights(paper, layer=0, head=0)
    assert hash(weights(paper, layer=0, head=0)) == hash(weights(paper, layer=0, head=0))
    assert weights(paper, layer=0, head=0) != weights(paper, layer=0, head=1)
    assert weights(paper, layer=0, head=0) != "a window"
    dead = recording_of(random_call(MASKS["both"]))
    assert weights(dead, layer=0, head=1) == weights(dead, layer=0, head=1)  # though NaN is no equal of NaN


def test_answers_turn_into_json_and_back(paper):
    for answer in (sources(paper, top=2), readers(paper, 1), weights(paper, layer=0, head=0)):
        written = json.dumps(answer.to_json(), allow_nan=False)
        assert json.loads(written) == answer.to_json()
    dead = weights(recording_of(random_call(MASKS["both"])), layer=0, head=2)
    assert json.loads(json.dumps(dead.to_json(), allow_nan=False)) == dead.to_json()
    told = sources(paper, top=2).to_json()
    assert [row["source"] for row in told["rows"]] == [2, 1]
    assert {c["name"]: c["unit"] for c in told["columns"]}["weight"] == "share of a row"


def test_answers_turn_into_frames(paper):
    frame = sources(paper, top=2).to_polars()
    assert frame.columns == ["source", "token", "weight", "largest", "layer", "head"]
    assert frame["source"].to_list() == [2, 1]
    assert frame["token"].to_list() == ["z", "y"]
    assert frame["weight"].to_list() == [row["weight"] for row in sources(paper, top=2)]
    dead = recording_of(random_call(MASKS["both"]))
    assert sources(dead, 4).to_polars().columns == frame.columns


WRONG = [
    (lambda r: sources(r, 43), "the position: expected a whole number from 0 to 42, got 43. Positions are numbered"),
    (lambda r: sources(r, -1), "the position: expected a whole number from 0 to 42, got -1."),
    (lambda r: sources(r, True), "the position: expected a whole number from 0 to 42, got True."),
    (lambda r: sources(r, 1.0), "the position: expected a whole number from 0 to 42, got 1.0."),
    (lambda r: sources(r, "1"), "the position: expected a whole number from 0 to 42, got '1'."),
    (lambda r: sources(r, layer=3), "the layer: expected a whole number from 0 to 2, got 3. Layers are numbered"),
    (lambda r: sources(r, layer=-1), "the layer: expected a whole number from 0 to 2, got -1."),
    (lambda r: sources(r, head=6), "the head: expected a whole number from 0 to 5, got 6. Heads are numbered"),
    (lambda r: sources(r, head=-1), "the head: expected a whole number from 0 to 5, got -1."),
    (lambda r: sources(r, head=False), "the head: expected a whole number from 0 to 5, got False."),
    (lambda r: sources(r, top=0), "top: expected a whole number from 1 up, got 0."),
    (lambda r: sources(r, top=True), "top: expected a whole number from 1 up, got True."),
    (lambda r: sources(r, top=2.0), "top: expected a whole number from 1 up, got 2.0."),
    (lambda r: readers(r, 43), "the position: expected a whole number from 0 to 42, got 43."),
    (lambda r: readers(r, -1), "the position: expected a whole number from 0 to 42, got -1."),
    (lambda r: readers(r, 1, layer=3), "the layer: expected a whole number from 0 to 2, got 3."),
    (lambda r: readers(r, 1, head=6), "the head: expected a whole number from 0 to 5, got 6."),
    (lambda r: readers(r, 1, top=-3), "top: expected a whole number from 1 up, got -3."),
    (lambda r: weights(r, layer=3, head=0), "the layer: expected a whole number from 0 to 2, got 3."),
    (lambda r: weights(r, layer=True, head=0), "the layer: expected a whole number from 0 to 2, got True."),
    (lambda r: weights(r, layer=0, head=6), "the head: expected a whole number from 0 to 5, got 6."),
    (
        lambda r: weights(r, layer=0, head=0, destinations=range(4, 4)),
        "the range of destinations: expected a range of step 1 within 0 to 43, got range(4, 4).",
    ),
    (
        lambda r: weights(r, layer=0, head=0, destinations=range(5, 2)),
        "the range of destinations: expected a range of step 1 within 0 to 43, got range(5, 2).",
    ),
    (
        lambda r: weights(r, layer=0, head=0, sources=range(5, 2, -1)),
        "the range of sources: expected a range of step 1 within 0 to 43, got range(5, 2, -1).",
    ),
    (
        lambda r: weights(r, layer=0, head=0, sources=range(0, 43, 2)),
        "the range of sources: expected a range of step 1 within 0 to 43, got range(0, 43, 2).",
    ),
    (
        lambda r: weights(r, layer=0, head=0, sources=range(44)),
        "the range of sources: expected a range of step 1 within 0 to 43, got range(0, 44).",
    ),
    (
        lambda r: weights(r, layer=0, head=0, destinations=[0, 1]),
        "the range of destinations: expected a range of step 1 within 0 to 43, got [0, 1]. Give a range; its end is",
    ),
    (
        lambda r: weights(r, layer=0, head=0, sources=3),
        "the range of sources: expected a range of step 1 within 0 to 43, got 3. Give a range; its end is not part",
    ),
    (
        lambda r: weights(r, layer=0, head=0, sources=range(-1, 3)),
        "the range of sources: expected a range of step 1 within 0 to 43, got range(-1, 3).",
    ),
    (lambda r: Scope((3,)).checked(r), "the layer: expected a whole number from 0 to 2, got 3."),
    (lambda r: Scope((0, -1)).checked(r), "the layer: expected a whole number from 0 to 2, got -1."),
    (lambda r: Scope(None, (1, 6)).checked(r), "the head: expected a whole number from 0 to 5, got 6."),
    (lambda r: Scope(()).checked(r), "the layers: expected at least one, got none."),
    (lambda r: Scope(None, ()).checked(r), "the heads: expected at least one, got none."),
    (lambda r: r.call(3), "the layer: expected one of 0 to 2, got 3."),
    (lambda r: r.prediction(3), "the position of a prediction: expected one whose prediction was kept (42), got 3."),
]


@pytest.mark.parametrize(("question", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_question_that_cannot_be_asked(recording, question, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        question(recording)


def test_a_window_of_too_many_cells_is_refused():
    flat = np.zeros((1, 4099, 1), np.float32)
    call = call_of(flat[:, :1], flat[:, :1])
    long = recording_of(type(call)(**{**vars(call), "q": flat, "k": flat, "lse": flat[:, :, 0]}), letters="a")
    with pytest.raises(InputError, match="expected at most 16,777,216 cells, got 4,099 destinations x 4,099 sources"):
        weights(long, layer=0, head=0)
    part = weights(long, layer=0, head=0, destinations=range(4097, 4099))
    assert part.values.shape == (2, 4099)


def test_a_scope_is_sorted_and_without_repeats(recording):
    assert Scope((2, 0, 2), (5, 1)).checked(recording) == Scope((0, 2), (1, 5))
    assert Scope().checked(recording) == Scope()
    kept = [(call.layer, heads) for call, heads in Scope((0, 2), (1, 5)).calls(recording)]
    assert kept == [(0, (1, 5)), (2, (1, 5))]
    assert [heads for _, heads in Scope((1,)).calls(recording)] == [(0, 1, 2, 3, 4, 5)]
    assert math.isclose(mean_row(recording, 9, Scope((0, 2), (1, 5))).sum(), 1, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(), "mean over 18 heads (3 layers x 6)"),
        (Scope((1,), (4,)), "layer 1, head 4"),
        (Scope((1,)), "mean over the 6 heads of layer 1"),
        (Scope((0, 2)), "mean over the 12 heads of layers 0 and 2"),
        (Scope(None, (4,)), "mean over head 4 of each of the 3 layers"),
        (Scope(None, (0, 1, 4)), "mean over heads 0, 1 and 4 of each of the 3 layers"),
        (Scope((2,), (0, 1)), "mean over heads 0 and 1 of layer 2"),
        (Scope((0, 2), (3,)), "mean over head 3 of layers 0 and 2"),
    ],
)
def test_a_scope_in_words(recording, scope, words):
    assert scope.describe(recording) == words


def test_heads_without_a_row_are_not_in_the_mean_and_are_counted():
    recording = recording_of(random_call(MASKS["another map a head"]))
    answer = sources(recording, 5, top=7)
    rows = row_of_weights(recording.calls[0], 5)
    assert np.ma.getmaskarray(rows)[:, 0].tolist() == [False, False, True, False, False, False]
    assert sum(row["weight"] for row in answer) + answer.remainder == pytest.approx(1, abs=1e-6)
    assert "in up to 1 of 6 heads, which are not in the mean" in answer.left_out
    nothing = sources(recording, 4)
    assert len(nothing) == 0
    assert "in up to 6 of 6 heads" in nothing.left_out
    assert "no row" not in sources(recording, 3).left_out
