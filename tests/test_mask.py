import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherefrom.attention import Mask as MaskOfAttention
from wherefrom.errors import InputError
from wherefrom.mask import CAUSAL, Mask

EXPLICIT = np.random.default_rng(7).random((3, 5, 7)) < 0.6  # [H, T, S]


BATCH = np.random.default_rng(5).random((2, 7)) < 0.6  # [B, S]


def plain(mask: Mask, row: int, column: int, head: int = 0, text: int = 0) -> bool:
    """The rule as the words say it, one pair at a time."""
    i, j = mask.offset + row, column
    if mask.causal and j > i:
        return False
    if mask.window is not None:
        keys_up_to_and_with_own = abs(i - j) + 1
        if keys_up_to_and_with_own > mask.window:
            return False
    if mask.padding is not None and not mask.padding.reshape(-1, mask.padding.shape[-1])[text, j]:
        return False
    return mask.explicit is None or bool(mask.explicit.reshape(-1, *mask.explicit.shape[-2:])[head, row, j])


@st.composite
def masks(draw, arrays=True):
    window = draw(st.none() | st.integers(1, 9))
    alone = st.lists(st.booleans(), min_size=7, max_size=7)
    padding = draw(st.none() | alone | st.just(BATCH)) if arrays else None
    explicit = draw(st.sampled_from([None, EXPLICIT[0], EXPLICIT])) if arrays else None
    return Mask(draw(st.booleans()), window, draw(st.integers(0, 11)), padding, explicit)


@given(masks())
def test_the_dense_map_is_the_rule_pair_by_pair(mask):
    dense = mask.dense(5, 7)
    texts = 2 if mask.padding is not None and mask.padding.ndim == 2 else 1
    heads = 3 if mask.explicit is not None and mask.explicit.ndim == 3 else 1
    expected = [
        [[[plain(mask, row, column, head, text) for column in range(7)] for row in range(5)] for head in range(heads)]
        for text in range(texts)
    ]
    leading = (2, heads) if texts == 2 else (3,) if heads == 3 else ()
    assert dense.shape == (*leading, 5, 7)
    assert dense.reshape(texts, heads, 5, 7).tolist() == expected


@given(masks(), st.integers(0, 5), st.integers(0, 7))
def test_splitting_the_map_anywhere_gives_the_same_map(mask, row, column):
    pieces = [
        [mask.permitted(rows, columns) for columns in (range(column), range(column, 7))]
        for rows in (range(row), range(row, 5))
    ]
    joined = np.concatenate([np.concatenate(piece, axis=-1) for piece in pieces], axis=-2)
    assert joined.tolist() == mask.dense(5, 7).tolist()


@given(masks(), st.lists(st.integers(0, 4), max_size=6), st.lists(st.integers(0, 6), max_size=6))
def test_any_rows_and_columns_in_any_order_are_a_piece_of_the_map(mask, rows, columns):
    assert mask.permitted(rows, columns).tolist() == mask.dense(5, 7)[..., rows, :][..., columns].tolist()


@given(masks(arrays=False), st.integers(0, 12), st.integers(0, 13))
def test_reach_is_the_smallest_range_around_the_permitted_columns(mask, row, sources):
    permitted = np.flatnonzero(mask.dense(row + 1, sources)[row])
    reach = mask.reach(row, sources)
    assert list(reach) == permitted.tolist()  # causal and window permit one block without holes
    assert 0 <= reach.start <= reach.stop <= sources


def test_reach_ends_with_the_window_on_both_sides():
    assert Mask.bidirectional(window=3).reach(5, 11) == range(3, 8)
    assert Mask(window=3).reach(5, 11) == range(3, 6)


def test_a_batch_has_the_padding_of_each_text():
    batch = Mask.bidirectional(padding=np.array([[True, True, True], [True, False, False]]))
    assert batch.dense(2, 3).tolist() == [[[[True] * 3] * 2], [[[True, False, False]] * 2]]  # B 1 T S
    for text, padding in enumerate(BATCH):
        assert Mask(padding=BATCH).dense(7, 7)[text, 0].tolist() == Mask(padding=padding).dense(7, 7).tolist()


def test_a_batch_with_heads_of_their_own():
    both = Mask(causal=False, padding=BATCH, explicit=EXPLICIT)
    assert both.dense(5, 7).shape == (2, 3, 5, 7)
    assert both.dense(5, 7).tolist() == (EXPLICIT[None] & BATCH[:, None, None, :]).tolist()


def test_all_permitted_means_no_rule_at_all():
    assert Mask.bidirectional().all_permitted
    assert Mask(causal=False, offset=3).all_permitted
    others = [{}, {"window": 9}, {"padding": [True]}, {"padding": [[True]]}, {"explicit": [[True]]}]
    assert not any(Mask(**{"causal": index == 0} | other).all_permitted for index, other in enumerate(others))


def test_padding_and_explicit_only_take_away_within_the_reach():
    padding = np.array([True, False, True, True])
    assert Mask(padding=padding).reach(3, 4) == range(4)


def test_a_window_counts_keys_with_the_destinations_own():
    assert Mask(window=3).dense(1, 9).tolist() == [[True] + [False] * 8]
    row = Mask(window=3, offset=6).dense(1, 9)[0]
    assert np.flatnonzero(row).tolist() == [4, 5, 6]  # distance 2 is in, distance 3 is out
    both = Mask.bidirectional(window=3).dense(7, 9)[5]
    assert np.flatnonzero(both).tolist() == [3, 4, 5, 6, 7]
    assert Mask(window=1).dense(5, 5).tolist() == np.eye(5, dtype=bool).tolist()


def test_an_offset_places_the_first_row_behind_the_cached_keys():
    assert Mask(offset=2).dense(3, 5).tolist() == Mask().dense(5, 5)[2:].tolist()


def test_a_window_longer_than_the_text_changes_nothing():
    assert Mask(window=10**30).dense(7, 7).tolist() == Mask().dense(7, 7).tolist()


def test_the_map_of_no_rows_or_no_columns_is_empty():
    assert Mask().dense(0, 3).shape == (0, 3)
    assert Mask(window=2).permitted([], []).shape == (0, 0)
    assert Mask().reach(0, 0) == range(0)


def test_a_piece_far_down_a_long_text_costs_its_own_size():
    assert Mask(window=2).permitted([10**12], [10**12 - 2, 10**12 - 1, 10**12]).tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Mask(), "causal"),
        (Mask(window=128), "causal, window of 128 keys"),
        (Mask(window=1, offset=4), "causal, window of 1 key, first destination at position 4"),
        (Mask.bidirectional(), "bidirectional"),
        (Mask.bidirectional(padding=np.arange(20) < 17), "bidirectional, 3 of 20 sources are padding"),
        (Mask(padding=np.arange(5) > 0), "causal, 1 of 5 sources is padding"),
        (Mask(padding=np.arange(5) < [[5], [3], [4]]), "causal, 3 of 15 sources are padding"),
        (Mask(explicit=EXPLICIT), "causal, explicit mask of 3 x 5 x 7"),
    ],
)
def test_the_rule_in_words(mask, words):
    assert mask.describe() == words


def test_only_causal_means_no_other_part_of_the_rule():
    assert Mask().only_causal
    assert Mask(offset=3).only_causal
    others = [{"causal": False}, {"window": 9}, {"padding": [True]}, {"padding": [[True]]}, {"explicit": [[True]]}]
    assert not any(Mask(**other).only_causal for other in others)


def test_masks_are_equal_when_their_rules_are():
    one, same = (Mask(window=5, padding=[True, False], explicit=EXPLICIT[0].copy()) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert {one: "found"}[same] == "found"
    for change in (
        {"window": 6},
        {"window": None},
        {"causal": False},
        {"offset": 1},
        {"padding": [True, True]},
        {"padding": [[True, False]]},
    ):
        assert one != dataclasses.replace(one, **change), change
    assert Mask(explicit=np.ones((2, 3), bool)) != Mask(explicit=np.ones((3, 2), bool))
    assert Mask() == CAUSAL
    assert Mask() != "causal"
    assert Mask.bidirectional() == Mask(causal=False)
    assert MaskOfAttention is Mask


def test_a_mask_keeps_its_own_copy_that_nobody_can_change():
    padding = np.array([True, True])
    mask = Mask(padding=padding)
    padding[0] = False
    assert mask.padding is not None
    assert mask.padding.tolist() == [True, True]
    with pytest.raises(ValueError, match="read-only"):
        mask.padding[0] = False
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.window = 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"window": 0}, "the mask's window: expected a whole number from 1 up, got 0. A window counts keys"),
        ({"window": 2.5}, "got 2.5"),
        ({"window": True}, "the mask's window: expected a whole number from 1 up, got True"),
        ({"offset": -1}, "the mask's offset: expected a whole number from 0 up, got -1"),
        (
            {"padding": [1, 0]},
            r"the mask's padding: expected a bool array [S] or [B, S], True where reading is permitted, ",
        ),
        ({"padding": True}, "got bool of shape (). Compare your mask with a number"),
        ({"padding": [[[True]]]}, "got bool of shape (1, 1, 1). Compare your mask with a number"),
        ({"explicit": [True]}, "the explicit mask: expected a bool array [T, S] or [H, T, S]"),
        ({"explicit": np.ones((2, 2))}, "got float64 of shape (2, 2)"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(InputError) as error:
        Mask(**arguments)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda: Mask().permitted([-1], [0]),
            "a destination row: expected whole numbers from 0 up, got -1 to -1",
        ),
        (
            lambda: Mask().permitted([0], [0.5]),
            "a source column: expected whole numbers from 0 up, got float64",
        ),
        (lambda: Mask().permitted([[0]], [0]), "got int64 of shape (1, 1)"),
        (
            lambda: Mask(padding=[True] * 3).permitted([9], [3]),
            "expected whole numbers from 0 to 2, got 3 to 3",
        ),
        (
            lambda: Mask(padding=BATCH).permitted([9], [7]),
            "expected whole numbers from 0 to 6, got 7 to 7",
        ),
        (
            lambda: Mask(padding=BATCH).dense(7, 2),  # so many as there are texts
            "the mask's padding: expected one entry a source, 2, got 7",
        ),
        (
            lambda: Mask(explicit=EXPLICIT).permitted([5], [0]),
            "destination row: expected whole numbers from 0 to 4",
        ),
        (
            lambda: Mask(padding=[True] * 3).dense(2, 4),
            "the mask's padding: expected one entry a source, 4, got 3",
        ),
        (
            lambda: Mask(explicit=EXPLICIT).dense(5, 8),
            "expected 5 destinations by 8 sources, got shape (3, 5, 7)",
        ),
        (lambda: Mask().reach(-1, 4), "the destination row: expected a whole number from 0 up, got -1"),
    ],
)
def test_a_piece_that_the_mask_does_not_have_is_refused(ask, sentence):
    with pytest.raises(InputError) as error:
        ask()
    assert sentence in str(error.value)
