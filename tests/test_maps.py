"""The map of one head in tiles: every block against the weights of the double-precision page, every mark against the
mask."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from by_hand import MASKS, keeping, random_call
from wherefrom import InputError, attend
from wherefrom.attention import Mask
from wherefrom.questions import maps
from wherefrom.questions.maps import EMPTY, NOT_PERMITTED, NOT_RECORDED, WEIGHTS, HeadMap
from wherefrom.recording import Call
from wherefrom.scans.result import finest_block

NEAR = 2e-5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 by 4 blocks, so that a small map has many and of several levels; strips of a block or two."""
    monkeypatch.setattr(maps, "TILE", 4)
    monkeypatch.setattr(maps, "AT_ONCE", 64)
    monkeypatch.setattr(maps, "FEW", 32)


def twin(call: Call, head: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every block's largest and mean weight, and its mark, pair by pair from the page."""
    how = {"scale": call.scale, "softcap": call.softcap, "bias": call.bias, "sinks": call.sinks}
    weights = attend(call.q, call.k, call.v, call.mask, **how).weights[head]
    permitted = np.broadcast_to(call.mask.dense(call.destinations, call.sources), (call.heads, *weights.shape))
    permitted = permitted[head].copy()
    if call.bias is not None:
        permitted &= ~np.isneginf(call.bias[head if len(call.bias) > 1 else 0])
    shape = tuple(math.ceil(size / block) for size in weights.shape)
    largest, mean = np.full(shape, np.nan), np.full(shape, np.nan)
    marks = np.zeros(shape, np.uint8)
    for row, column in np.ndindex(shape):
        own = slice(row * block, (row + 1) * block), slice(column * block, (column + 1) * block)
        inside = np.asarray(weights[own])[permitted[own]]
        still = not permitted[own[0]].any()
        marks[row, column] = WEIGHTS if inside.size else EMPTY if still else NOT_PERMITTED
        if inside.size:
            largest[row, column], mean[row, column] = inside.max(), inside.mean()
    return largest, mean, marks


def put_together(map_: HeadMap, level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All tiles of a level side by side."""
    rows, columns = (math.ceil(size / (maps.TILE * 2**level)) for size in map_.shape)
    tiles = [[map_.tile(level, row, column) for column in range(columns)] for row in range(rows)]
    for row in tiles:
        for tile in row:
            shape = math.ceil(len(tile.destinations) / tile.block), math.ceil(len(tile.sources) / tile.block)
            assert tile.largest.shape == tile.mean.shape == tile.marks.shape == shape
            assert tile.block == 2**level
    return tuple(np.block([[getattr(tile, name) for tile in row] for row in tiles]) for name in NAMES)  # type: ignore[return-value]


NAMES = ("largest", "mean", "marks")


def check(call: Call, head: int, *, as_if: Call | None = None) -> set[bool]:
    """Compare every level with the twin, of another call that is the same, the finest first and the coarsest first;
    return whether a level is one that a scan of the whole has, for each."""
    check_levels(HeadMap(call, head), call, head, as_if or call, coarsest_first=True)
    return check_levels(HeadMap(call, head), call, head, as_if or call, coarsest_first=False)


def check_levels(map_: HeadMap, call: Call, head: int, as_if: Call, *, coarsest_first: bool) -> set[bool]:
    ways = set()
    assert map_.levels == 1 + max(0, math.ceil(math.log2(max(map_.shape) / 4)))
    for level in sorted(range(map_.levels), reverse=coarsest_first):
        for found, expected in zip(put_together(map_, level), twin(as_if, head, 2**level), strict=True):
            assert np.array_equal(np.isnan(found), np.isnan(expected))
            assert np.allclose(found, expected, atol=NEAR, rtol=0, equal_nan=True)
        ways.add(2**level >= finest_block(*map_.shape))
    assert put_together(map_, map_.levels - 1)[0].size <= 16
    return ways


ALSO: dict[str, dict[str, Any]] = {"plain": {}, "softcap": {"softcap": 1.5}, "sinks": {"sinks": np.linspace(-1, 1, 6)}}


@pytest.mark.parametrize("also", ALSO)
@pytest.mark.parametrize("mask", MASKS)
def test_every_level_is_the_page_in_blocks(mask: str, also: str) -> None:
    check(random_call(MASKS[mask], **ALSO[also]), 4)


LONG = {
    "causal": Mask(),
    "window": Mask(window=9),
    "padding on the left": Mask(padding=np.arange(53) >= 21),
    "both ways": Mask.bidirectional(),
}


@pytest.mark.parametrize("mask", LONG)
def test_fine_levels_are_windows_and_coarse_ones_a_scan(mask: str) -> None:
    assert check(random_call(LONG[mask], length=53), 5) == {False, True}


def test_an_explicit_mask_and_a_bias_of_each_head() -> None:
    draw = np.random.default_rng(5)
    explicit = draw.random((6, 40, 40)) < 0.3
    explicit[:, 8:13] = False
    check(random_call(Mask.bidirectional(explicit=explicit), length=40), 3)
    bias = draw.standard_normal((6, 40, 40)).astype(np.float32)
    check(random_call(Mask(), length=40, bias=bias), 5)


def test_a_pair_that_the_bias_forbids_is_not_permitted() -> None:
    explicit = np.ones((1, 40, 40), bool)
    explicit[0, 20:, :8] = False
    explicit[0, 31] = False
    masked = random_call(Mask(explicit=np.broadcast_to(explicit, (6, 40, 40))), length=40)
    biased = replace(masked, mask=Mask(), bias=np.where(explicit, 0.0, -np.inf).astype(np.float32))
    assert check(biased, 2, as_if=masked) == {True, False}


def test_rows_that_were_not_kept_are_marked() -> None:
    whole = random_call(Mask(window=9), length=29)
    kept = [3, 4, 5, 11, 20, 28]
    map_ = HeadMap(keeping(whole, [1, 4], kept), 4)
    largest, mean, marks = put_together(map_, 0)
    full = twin(whole, 4, 1)
    for row in range(29):
        if row in kept:
            assert np.array_equal(marks[row], full[2][row])
            assert np.allclose(largest[row], full[0][row], atol=NEAR, equal_nan=True)
        else:
            assert set(marks[row]) == {NOT_RECORDED}
            assert np.isnan(largest[row]).all()
    largest, mean, marks = put_together(map_, 2)
    assert set(marks[6]) == {NOT_RECORDED}
    permitted = ~np.isnan(full[0])
    inside = full[0][11, 8:12][permitted[11, 8:12]]
    assert marks[2, 2] == WEIGHTS
    assert largest[2, 2] == pytest.approx(inside.max(), abs=NEAR)
    assert mean[2, 2] == pytest.approx(inside.mean(), abs=NEAR)


@settings(max_examples=40)
@given(st.data())
def test_any_map(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    kind = data.draw(st.sampled_from([Mask, Mask.bidirectional]))
    mask = kind(
        window=data.draw(st.none() | st.integers(1, 12)),
        padding=data.draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length).map(np.asarray)),
    )
    check(random_call(mask, length=length, seed=data.draw(st.integers(0, 99))), data.draw(st.integers(0, 5)))


def test_what_is_not_there_is_refused() -> None:
    map_ = HeadMap(random_call(Mask(), length=20), 0)
    assert (map_.shape, map_.levels) == ((20, 20), 4)
    for given_, said in (
        ((4, 0, 0), "the level: expected a whole number from 0 to 3, got 4"),
        ((-1, 0, 0), "the level: expected a whole number from 0 to 3"),
        ((0, 5, 0), "the tile row: expected a whole number from 0 to 4, got 5. Tile rows are numbered"),
        ((3, 0, 1), "the tile column: expected a whole number from 0 to 0"),
    ):
        with pytest.raises(InputError, match=said):
            map_.tile(*given_)
    with pytest.raises(InputError, match="head"):
        HeadMap(random_call(Mask()), 6)
    with pytest.raises(InputError, match="the call"):
        HeadMap(None, 0)  # type: ignore[arg-type]
