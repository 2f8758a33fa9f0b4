"""Why the scores are divided by sqrt(d_k): the table's numbers against theory and against differences taken by hand."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from wherefrom import InputError
from wherefrom.views.scaling import SIZES, query_gradient, scaling, scaling_json, scaling_table, score_gradient


@pytest.fixture(scope="module")
def lesson():
    return scaling()


def softmax(s):
    e = np.exp(s - s.max())
    return e / e.sum()


def jacobian(function, at, step=1e-5):
    """The derivative by central differences: an error of step^2 and of the rounding 1e-16 / step, both near 1e-10."""
    columns = [(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(at.size)]
    return np.stack(columns, axis=1)


def by_size(rows, divided):
    return {row.size: row for row in rows if row.divided is divided}


def test_two_rows_a_size_in_the_order_given(lesson):
    assert SIZES == (1, 4, 16, 64, 256, 1024)
    assert [(row.size, row.divided) for row in lesson] == [(d, way) for d in SIZES for way in (False, True)]
    assert [row.size for row in scaling([9, 2], rows=3)] == [9, 9, 2, 2]
    assert {(row.sources, row.rows, row.seed) for row in lesson} == {(64, 256, 0)}


def test_the_spread_is_the_one_of_theory(lesson):
    """Five standard errors of the mean square of the scores.

    For one pair Var(s^2) = 3 E|q|^4 - d^2 = 2 d^2 + 6 d; two pairs of one query have Cov = Var|q|^2 = 2 d; pairs of
    different rows have none. So the mean of s^2 / d over R rows of S has the variance (2 + 6/d + 2 (S - 1)/d) / (R S).
    The standard deviation takes the square of the mean away, 1 / (R S) in expectation.
    """
    for row in lesson:
        pairs = row.rows * row.sources
        error = math.sqrt((2 + 6 / row.size + 2 * (row.sources - 1) / row.size) / pairs)
        assert row.theory == (1 if row.divided else math.sqrt(row.size))
        assert abs((row.spread / row.theory) ** 2 - 1) <= 5 * error + 25 / pairs
        assert error < (0.1 if row.size == 1 else 0.05)  # what is asserted above is no empty promise


def test_both_are_of_the_same_random_numbers(lesson):
    divided = by_size(lesson, True)
    for size, row in by_size(lesson, False).items():
        assert row.spread == pytest.approx(math.sqrt(size) * divided[size].spread, rel=1e-12)
    same = {name: value for name, value in vars(divided[1]).items() if name != "divided"}
    assert same == {name: value for name, value in vars(by_size(lesson, False)[1]).items() if name != "divided"}


def test_without_the_division_softmax_saturates_and_with_it_it_does_not(lesson):
    raw, divided = by_size(lesson, False), by_size(lesson, True)
    assert [raw[d].largest for d in SIZES] == sorted(raw[d].largest for d in SIZES)
    assert [raw[d].entropy for d in SIZES] == sorted((raw[d].entropy for d in SIZES), reverse=True)
    assert raw[1024].largest > 0.9
    assert raw[1024].score_gradient_median < raw[1].score_gradient_median / 100
    assert raw[16].score_gradient_median > raw[1].score_gradient_median  # it grows first, as the text says
    assert raw[1024].query_gradient > raw[1].query_gradient  # and this mean does not fall at all
    assert raw[1024].query_gradient_median < raw[1].query_gradient_median / 3
    for size in SIZES:
        assert 0.09 < divided[size].largest < 0.12
        assert 3.6 < divided[size].entropy < 3.8
        assert 0.14 < divided[size].score_gradient_median < 0.2
        assert 0.14 < divided[size].query_gradient_median < 0.2


@pytest.mark.parametrize("sources", [2, 3, 17])
def test_figures_of_rows_lie_within_their_bounds(sources):
    for row in scaling((1, 7, 300), sources=sources, rows=31, seed=4):
        assert row.even_entropy == math.log(sources)
        assert 0 <= row.entropy <= row.even_entropy
        assert 1 / sources <= row.largest <= 1
        assert 0 <= row.score_gradient_median <= 0.5
        assert 0 <= row.score_gradient <= 0.5


@pytest.mark.parametrize("size", [5, 40])  # the larger one has weights near 1e-5
def test_one_row_is_what_one_can_compute_from_the_same_draws(size):
    draw = np.random.default_rng((3, size))
    q, k = draw.standard_normal((1, size)), draw.standard_normal((4, size))
    for row, scale in zip(scaling([size], sources=4, rows=1, seed=3), (1, 1 / math.sqrt(size)), strict=True):
        s = scale * (k @ q[0])
        a = softmax(s)
        assert row.spread == pytest.approx(np.std(s))
        assert row.largest == pytest.approx(a.max())
        assert row.entropy == pytest.approx(-(a * np.log(a)).sum())
        assert row.score_gradient == pytest.approx(np.linalg.norm(np.diag(a) - np.outer(a, a)))
        assert row.query_gradient == pytest.approx(scale * np.linalg.norm((np.diag(a) - np.outer(a, a)) @ k))
        assert row.score_gradient_median == row.score_gradient  # of one row
        assert row.query_gradient_median == row.query_gradient


def test_a_mean_and_a_median_are_over_the_rows():
    def each(row):
        draw = np.random.default_rng((0, 2))
        pairs = [(draw.standard_normal((1, 2)), draw.standard_normal((5, 2))) for _ in range(4)]
        shares = [softmax((k @ q[0]) * (1 / math.sqrt(2) if row.divided else 1)) for q, k in pairs]
        return [np.linalg.norm(np.diag(a) - np.outer(a, a)) for a in shares]

    for row in scaling([2], sources=5, rows=4):
        assert row.score_gradient == pytest.approx(np.mean(each(row)))
        assert row.score_gradient_median == pytest.approx(np.median(each(row)))
        assert row.score_gradient != pytest.approx(row.score_gradient_median, rel=1e-3)


@pytest.mark.parametrize("spread", [0.3, 1, 4])
def test_the_gradient_by_scores_is_the_one_of_differences(spread):
    s = spread * np.random.default_rng(8).standard_normal(13)
    assert score_gradient(softmax(s)) == pytest.approx(np.linalg.norm(jacobian(softmax, s)), abs=1e-9)


@pytest.mark.parametrize("scale", [1, 0.4])
def test_the_gradient_by_the_query_is_the_one_of_differences(scale):
    draw = np.random.default_rng(9)
    q, k = draw.standard_normal(7), draw.standard_normal((11, 7))
    expected = np.linalg.norm(jacobian(lambda q: softmax(scale * (k @ q)), q))
    assert query_gradient(softmax(scale * (k @ q)), k, scale) == pytest.approx(expected, abs=1e-9)


def test_gradients_that_one_can_do_on_paper():
    assert score_gradient(np.array([0.5, 0.5])) == 0.5  # J = [[1, -1], [-1, 1]] / 4
    assert score_gradient(np.full(4, 0.25)) == pytest.approx(math.sqrt(3) / 4)  # sqrt(n - 1) / n
    assert score_gradient(np.array([0.0, 1.0, 0.0])) == 0
    keys = np.array([[3.0, 4.0], [0.0, 0.0]])  # J K = [[3, 4], [-3, -4]] / 4
    assert query_gradient(np.array([0.5, 0.5]), keys, 2.0) == pytest.approx(2 * math.sqrt(50) / 4)


def test_a_row_that_is_nearly_one_source_keeps_its_small_gradient():
    """To first order J = e [[1, -1], [-1, 1]] for weights 1 - e and e; 1 - (1 - e) would lose it below 1e-16."""
    for e in (1e-6, 1e-12, 1e-30, 1e-100):
        row = np.array([1 - e, e, 0])
        assert score_gradient(row) == pytest.approx(2 * e, rel=1e-5, abs=0)
        keys = np.array([[1.0, 2.0], [4.0, 6.0], [9.0, 9.0]])  # J K = e [[-3, -4], [3, 4]], of norm 5 sqrt(2) e
        assert query_gradient(row, keys, 1.0) == pytest.approx(5 * math.sqrt(2) * e, rel=1e-5, abs=0)


@given(st.lists(st.floats(-40, 40), min_size=2, max_size=9))
def test_a_gradient_is_at_most_that_of_two_even_sources(scores):
    a = softmax(np.array(scores))
    assert 0 <= score_gradient(a) <= 0.5 + 1e-15
    assert score_gradient(a) == pytest.approx(np.linalg.norm(np.diag(a) - np.outer(a, a)), abs=1e-7)


def test_the_same_seed_gives_the_same_numbers_whatever_else_is_asked():
    few = scaling((3, 8), rows=5, seed=2)
    assert few == scaling((3, 8), rows=5, seed=2)
    assert scaling(np.array([8, 3]), rows=5, seed=2) == few[2:] + few[:2]
    assert scaling(iter([8]), rows=5, seed=2) == few[2:]
    assert scaling((3, 8), rows=5, seed=1)[0].spread != few[0].spread


TABLE = """\
Why scores are divided by √d_k

5 random queries for each d_k, each compared with 4 random keys of its own; all
coordinates independent, of mean 0 and variance 1. Softmax over the 4 sources
gives each query its row of weights.

Not divided: s = q · k
"""


def test_the_table_as_text(lesson):
    text = scaling_table(scaling((1, 900), sources=4, rows=5))
    assert text.startswith(TABLE)
    raw, divided = (part.splitlines() for part in re.split(r"Divided: s = q · k / √d_k\n", text))
    header = "d_k   spread   theory  largest  entropy     mean   median     mean   median"
    assert raw[7:9] == divided[:2] == [" " * 41 + "--- |da/ds| ----  --- |da/dq| ----", header]
    for row, line in zip(scaling((1, 900), sources=4, rows=5), [raw[9], divided[2], raw[10], divided[3]], strict=True):
        d, *numbers = line.split()
        assert int(d) == row.size
        gradients = (row.score_gradient, row.score_gradient_median, row.query_gradient, row.query_gradient_median)
        exact = (row.spread, row.theory, row.largest, row.entropy, *gradients)
        assert [float(n) for n in numbers] == pytest.approx(exact, rel=0.06, abs=0.0006)
    assert "1.386 (log 4) if all are even" in text
    assert "0.250 if all are even" in text
    told = by_size(lesson, False)[1024].score_gradient_median
    assert f"the median |da/ds| goes from 0.149 to {told:.4f} without the" in flat(scaling_table(lesson))


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("sizes", [SIZES, [1], [65536, 1], [7, 7], [1000, 10, 100]], ids=str)
@pytest.mark.parametrize("sources", [2, 500])
def test_no_line_is_wider_than_a_terminal(sizes, sources):
    text = scaling_table(scaling(sizes, sources=sources, rows=1))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "nan" not in text
    assert text.endswith(".\n")


def test_one_size_has_no_from_and_to():
    text = flat(scaling_table(scaling([7], rows=9)))
    assert re.search(
        r"Here, at d_k = 7, the median \|da/ds\| is 0\.\d{3} without the division, 0\.\d{3} with it\.$", text
    )


def test_half_a_table_has_one_part(lesson):
    text = scaling_table([row for row in lesson if row.divided])
    assert "Not divided: s" not in text
    assert "Divided: s = q · k / √d_k" in text
    assert "with it" in text
    assert "without the division" not in text
    uneven = scaling_table([row for row in lesson if row.divided or row.size == 4])
    assert "without the division" not in uneven  # its part has no size 1024 to speak of


def test_numbers_too_small_for_three_decimals_are_shown_as_what_they_are(lesson):
    tiny = replace(lesson[0], largest=1.0, entropy=0.0, score_gradient=9.96e-3, score_gradient_median=1.04e-3)
    (line,) = scaling_table([replace(tiny, query_gradient=3.14e-9, query_gradient_median=1e-200)]).splitlines()[9:10]
    assert line.split() == ["1", "0.995", "1.000", "1.000", "0", "0.0100", "0.0010", "3.1e-09", "<1e-99"]


def test_the_json_is_whole_finite_and_unrounded(lesson):
    told = scaling_json(lesson)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert (told["sources"], told["rows"], told["seed"]) == (64, 256, 0)
    assert len(told["table"]) == len(lesson)
    for line, row in zip(told["table"], lesson, strict=True):
        assert set(line) - {"size", "divided"} == set(told["units"])
        assert all(getattr(row, name) == value for name, value in line.items())
        assert all(math.isfinite(value) for value in line.values())


WRONG = [
    (lambda: scaling(()), "the sizes: expected at least one, got none."),
    (lambda: scaling(4), "the sizes: expected whole numbers from 1 to 65,536, got 4. Give values of d_k"),
    (lambda: scaling("64"), "the sizes: expected whole numbers from 1 to 65,536, got '64'."),
    (lambda: scaling([4, 0]), "a size: expected a whole number from 1 up, got 0."),
    (lambda: scaling([4.0]), "a size: expected a whole number from 1 up, got 4.0."),
    (lambda: scaling([True]), "a size: expected a whole number from 1 up, got True."),
    (lambda: scaling([65537]), "a size: expected whole numbers from 1 to 65,536, got 65,537."),
    (lambda: scaling([1], sources=1), "the number of sources: expected a whole number from 2 up, got 1."),
    (lambda: scaling([1], sources=2.5), "the number of sources: expected a whole number from 2 up, got 2.5."),
    (lambda: scaling([1], rows=0), "the number of rows: expected a whole number from 1 up, got 0."),
    (lambda: scaling([1], seed=-1), "the seed: expected a whole number from 0 up, got -1."),
    (
        lambda: scaling([1, 65536]),
        "the sizes: expected at most 16,384 rows and 67,108,864 random numbers (size x sources x rows) for one, "
        "got 65,536 x 64 x 256. Each row is one random query",
    ),
    (lambda: scaling([1], sources=2, rows=16385), "(size x sources x rows) for one, got 1 x 2 x 16,385."),
    (lambda: scaling_table(()), "the table: expected rows of one call of `scaling`, got none."),
    (lambda: scaling_json(()), "the table: expected rows of one call of `scaling`, got none."),
    (lambda: scaling_table(3), "the table: expected rows of `scaling`, got 3."),
    (lambda: scaling_table([3]), "a row of the table: expected a ScalingRow, got 3."),
    (
        lambda: scaling_table(scaling([1], rows=1) + scaling([1], rows=2)),
        "the table: expected rows of one call of `scaling`, got rows of 2 kinds.",
    ),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_cannot_be_asked(asked, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        asked()
