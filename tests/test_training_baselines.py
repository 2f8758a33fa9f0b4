"""The baselines of training: add-one and Witten-Bell by hand, rows that sum to one, the tokens of the loss."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_small import CORPUS
from wherefrom.errors import InputError
from wherefrom.training.baselines import Bigram, baselines, unigram_probabilities
from wherefrom.training.text import Corpus

A, B, C, D = range(4)
TRAIN = np.array([A, B, A, C, A, B, B], np.uint16)


def test_add_one_by_hand() -> None:
    # a 3, b 3, c 1, d 0 of 7 tokens; one more of each of 4
    assert unigram_probabilities(TRAIN, 4).tolist() == pytest.approx([4 / 11, 4 / 11, 2 / 11, 1 / 11], abs=1e-15)


def test_witten_bell_by_hand() -> None:
    bigram = Bigram.counted(TRAIN, 4)
    # pairs: ab ac ab | ba bb | ca; two kinds follow a (3 pairs) and b (2), one follows c (1), none d
    expected = {
        (A, B): (2 + 2 * 4 / 11) / 5,
        (A, C): (1 + 2 * 2 / 11) / 5,
        (A, A): (0 + 2 * 4 / 11) / 5,
        (A, D): (0 + 2 * 1 / 11) / 5,
        (B, A): (1 + 2 * 4 / 11) / 4,
        (B, D): (0 + 2 * 1 / 11) / 4,
        (C, A): (1 + 1 * 4 / 11) / 2,
        (C, B): (0 + 1 * 4 / 11) / 2,
        (D, A): 4 / 11,
        (D, D): 1 / 11,
    }
    previous, following = np.array(list(expected), np.uint16).T
    assert bigram.probabilities(previous, following).tolist() == pytest.approx(list(expected.values()), abs=1e-15)


def test_cross_entropies_by_hand() -> None:
    validation = np.array([A, B, D, D, C, B], np.uint16)
    found = baselines(Corpus(TRAIN, validation, 4), context=2)  # ab bd | dd dc: the last b is a rest
    assert found.tokens == 4
    assert found.uniform == math.log(4)
    assert found.unigram == pytest.approx(-math.log(4 / 11 * 1 / 11 * 1 / 11 * 2 / 11) / 4, abs=1e-15)
    pairs = (2 + 2 * 4 / 11) / 5 * (2 * 1 / 11) / 4 * 1 / 11 * 2 / 11
    assert found.bigram == pytest.approx(-math.log(pairs) / 4, abs=1e-15)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40))
def test_rows_sum_to_one_and_agree_with_fractions(train: list[int]) -> None:
    size = 7
    bigram = Bigram.counted(np.array(train, np.uint16), size)
    pairs = Counter(pairwise(train))
    for v in range(size):
        row = bigram.probabilities(np.full(size, v, np.uint16), np.arange(size, dtype=np.uint16))
        assert row.sum() == pytest.approx(1.0, abs=1e-12)
        begun = sum(count for (first, _), count in pairs.items() if first == v)
        kinds = sum(first == v for first, _ in pairs)
        for w in range(size):
            alone = Fraction(train.count(w) + 1, len(train) + size)
            exact = (pairs[v, w] + kinds * alone) / (begun + kinds) if begun else alone
            assert row[w] == pytest.approx(float(exact), abs=1e-12)


def test_ids_are_multiplied_without_overflow() -> None:
    train = np.array([69_999, 69_998, 69_999, 69_998, 5], np.uint32)
    found = Bigram.counted(train, 70_000)
    assert len(found.pairs) == 3
    seen, unseen = found.probabilities(train[:1].repeat(2), np.array([69_998, 5], np.uint32))
    assert seen == pytest.approx((2 + 3 / 70_005) / 3, abs=1e-12)
    assert unseen == pytest.approx(2 / 70_005 / 3, abs=1e-12)


def test_each_baseline_knows_more_than_the_one_before() -> None:
    found = baselines(CORPUS, 16)
    assert found.bigram < 0.7 * found.unigram < 0.4 * found.uniform
    assert found.tokens == CORPUS.windows(16)[:, 1:].size
    assert baselines(CORPUS, 16, windows=2).tokens == 32


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ((CORPUS, "x"), "the context: expected a whole number from 1 up, got 'x'"),
        ((CORPUS, 0), "the context: expected a whole number from 1 up, got 0"),
        ((CORPUS, 16, 0), "the windows: expected a whole number from 1 up, got 0. None is all of them"),
        ((CORPUS, 16, 1.5), "the windows: expected a whole number from 1 up, got 1.5"),
        (("text", 16), "the text: expected a Corpus, got 'text'"),
    ],
    ids=str,
)
def test_what_cannot_be_counted(asked: Any, sentence: str) -> None:
    corpus, context, *windows = asked
    with pytest.raises(InputError, match=sentence):
        baselines(corpus, context, windows=windows[0] if windows else None)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(InputError, match="the training text: expected at least 8 tokens"):
        baselines(Corpus(TRAIN, np.arange(20) % 4, 4), 7)
