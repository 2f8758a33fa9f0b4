"""The reference of the scans against all weights formed densely and added up pair by pair, and on paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from scans_made import UNIT, Made, anything, made
from wherefrom.attention import Mask
from wherefrom.scans import NAMES, Attention, Scan, distance_bins, finest_block, means, scan

THRESHOLD, TOP = 0.07, 3


def plain(case: Made) -> dict[str, np.ndarray]:
    """Every statistic of rows, heads and sources, from the dense weights, one pair at a time."""
    at, (heads, rows, columns) = case.attention, case.a.shape
    found = {name: np.full((heads, rows), np.nan) for name in at.names if name in NAMES[:10]}
    bins = np.zeros((heads, len(distance_bins(at.farthest))))
    for h in range(heads):
        for r in range(rows):
            a, i = case.a[h, r], at.mask.offset + r
            if not case.permitted[h, r].any():
                continue
            row = {
                "entropy": -math.fsum(x * math.log(x) for x in a if x > 0),
                "largest": max(a),
                "first": a[0],
                "itself": a[i] if i < columns else 0.0,
                "previous": a[i - 1] if 0 < i <= columns else 0.0,
                "distance": math.fsum(a[j] * abs(i - j) for j in range(columns)) / math.fsum(a),
                "largest_score": max(case.s[h, r, j] for j in range(columns) if case.permitted[h, r, j]),
            }
            if at.codes is not None:
                earlier = [j for j in range(r) if at.codes[j] == at.codes[r]]
                row |= {"duplicate": sum(a[earlier]), "induction": sum(a[[j + 1 for j in earlier]])}
            if case.share is not None:
                row["sink"] = case.share[h, r]
            for name, value in row.items():
                found[name][h, r] = value
            for j in range(columns):
                bins[h, 0 if i == j else 1 + int(math.log2(abs(i - j)))] += a[j]
    counted = case.permitted.any(axis=2).sum(axis=1)[:, None]
    bins = np.where(counted > 0, bins / np.maximum(counted, 1), np.nan)
    return found | {"distances": bins, "received": case.a.sum(axis=1)}


@settings(max_examples=80)
@given(anything())
def test_the_reference_agrees_with_dense_weights_pair_by_pair(case):
    at = case.attention
    found = scan(at, at.names, threshold=THRESHOLD, top=TOP, engine="reference", strip=7)
    expected = plain(case)
    lse = 1 + np.abs(np.where(at.empty, 0.0, at.lse)).max()  # a float32 number, the only one that was rounded
    assert set(expected) | {"readers", "last_reader", "top", "zoom"} == set(found.names)
    for name, values in expected.items():
        got = found[name]
        assert np.isnan(values).tolist() == np.ma.getmaskarray(got).tolist(), name
        size = 1 + np.nan_to_num(np.abs(values))
        close = np.abs(got.filled(0.0) - np.nan_to_num(values)) <= 8 * UNIT * lse * size
        assert close.all(), name


@settings(max_examples=40)
@given(anything())
def test_readers_strongest_and_blocks_of_the_reference_are_those_of_dense_weights(case):
    at, near = case.attention, 1e-5
    found = scan(
        at, ("readers", "last_reader", "top", "zoom"), threshold=THRESHOLD, top=TOP, engine="reference", strip=5
    )
    check_readers(found, case.a, near)
    check_strongest(found, case, near)
    check_zoom(found, case, near)
    for block in (1, 4):
        finer = scan(at, ("zoom",), strip=5, engine="reference", block=block)
        check_zoom(finer, case, near, block)


def check_readers(found: Scan, a: np.ndarray, near: float) -> None:
    """Readers lie between those surely and those perhaps above the threshold, and so does the last."""
    surely, perhaps = (a >= found.threshold + slack for slack in (near, -near))
    readers = found["readers"]
    assert (surely.sum(axis=1) <= readers).all()
    assert (readers <= perhaps.sum(axis=1)).all()
    rows = np.arange(a.shape[1])[:, None]
    least, most = (np.where(hits, rows, -1).max(axis=1) for hits in (surely, perhaps))
    last = found["last_reader"].filled(-1)
    assert (least <= last).all()
    assert (last <= most).all()


def check_strongest(found: Scan, case: Made, near: float) -> None:
    """The sources differ, have the weights that are stated, and those are the largest of the row."""
    top, a, permitted = found.top, case.a, case.permitted
    ids, kept = found.strongest.ids, found.strongest.weights
    number = np.minimum(permitted.sum(axis=2), top)  # H T
    assert (np.ma.count(ids, axis=2) == number).all()
    assert (np.ma.getmaskarray(ids) == np.ma.getmaskarray(kept)).all()
    for h, r in np.ndindex(number.shape):
        chosen = ids[h, r].compressed()
        assert len(set(chosen.tolist())) == number[h, r]
        assert permitted[h, r, chosen].all()
        ranked = -np.sort(-np.where(permitted[h, r], a[h, r], -1.0))[: number[h, r]]
        assert np.abs(kept[h, r].compressed() - ranked).max(initial=0) <= near
        assert np.abs(kept[h, r].compressed() - a[h, r, chosen]).max(initial=0) <= near
    rest = found.strongest.remainder
    assert (np.ma.getmaskarray(rest) == found.empty).all()
    held = np.where(found.empty, 0.0, a.sum(axis=2)) - kept.filled(0.0).sum(axis=2)
    assert np.abs(rest.filled(0.0) - held).max() <= near
    assert rest.min() is np.ma.masked or rest.min() >= 0


def check_zoom(found: Scan, case: Made, near: float, block: int | None = None) -> None:
    """Every level has the largest, the mean and the number of the permitted pairs of its blocks, from a size on."""
    heads, rows, columns = case.a.shape
    blocks = [level.block for level in found.zoom]
    assert blocks[0] == (block or finest_block(rows, columns))
    assert blocks == [blocks[0] << n for n in range(len(blocks))]
    for level in found.zoom:
        b = level.block
        pairs = np.broadcast_to(level.pairs, level.mean.shape)
        assert pairs.shape == (heads, -(-rows // b), -(-columns // b))
        for h, r, c in np.ndindex(pairs.shape):
            at = (h, slice(r * b, r * b + b), slice(c * b, c * b + b))
            held = case.a[at][case.permitted[at]]
            assert pairs[h, r, c] == held.size
            assert (
                np.ma.getmaskarray(level.mean)[h, r, c] == np.ma.getmaskarray(level.largest)[h, r, c] == (not held.size)
            )
            if held.size:
                assert abs(level.mean[h, r, c] - held.mean()) <= near
                assert abs(level.largest[h, r, c] - held.max()) <= near
    assert found.zoom[-1].mean.shape == (heads, 1, 1)


def two_keys(**rest) -> Attention:
    """Scores 0 and 1 for the second of two destinations: weights 1 / (1 + e) and e / (1 + e)."""
    q, k = np.array([[[1.0], [1.0]]]), np.array([[[0.0], [1.0]]])
    return Attention(q, k, np.log([[1.0, 1.0 + math.e]]), Mask(), 1.0, **rest)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_two_keys_on_paper(engine):
    large, small = math.e / (1 + math.e), 1 / (1 + math.e)
    at = two_keys(codes=np.array([5, 5]))
    found = scan(at, at.names, engine=engine, threshold=0.5, top=3)
    on_paper = {
        "entropy": [0.0, -large * math.log(large) - small * math.log(small)],
        "largest": [1.0, large],
        "first": [1.0, small],
        "itself": [1.0, large],
        "previous": [0.0, small],
        "duplicate": [0.0, small],
        "induction": [0.0, large],
        "distance": [0.0, small],
        "largest_score": [0.0, 1.0],
        "distances": [(1 + large) / 2, small / 2],
        "received": [1 + small, large],
    }
    for name, values in on_paper.items():
        assert found[name][0].tolist() == pytest.approx(values, abs=1e-6), name
    assert found["readers"].tolist() == [[1, 1]]
    assert found["last_reader"].tolist() == [[0, 1]]
    assert found.strongest.ids[0].tolist() == [[0, None, None], [1, 0, None]]
    assert found.strongest.weights[0, 1].tolist() == pytest.approx([large, small, None], abs=1e-6)
    assert [level.block for level in found.zoom] == [1, 2]
    assert found.zoom[0].mean[0].tolist() == [[1.0, None], pytest.approx([small, large], abs=1e-6)]
    assert found.zoom[1].mean.item() == pytest.approx(2 / 3)
    assert found.zoom[1].pairs.tolist() == [[3]]


def test_a_sink_takes_a_share_and_the_row_keeps_the_rest():
    q, k = np.zeros((1, 2, 1)), np.zeros((1, 2, 1))
    at = Attention(q, k, np.log([[2.0, 3.0]]), Mask(), 1.0, sinks=np.array([0.0]))
    found = scan(at, ("entropy", "sink", "distances", "distance", "largest"))
    assert found["sink"][0].tolist() == pytest.approx([1 / 2, 1 / 3])
    assert found["entropy"][0].tolist() == pytest.approx([math.log(2) / 2, 2 / 3 * math.log(3)])
    assert found["distances"][0].tolist() == pytest.approx([(1 / 2 + 1 / 3) / 2, (1 / 3) / 2])
    assert found["distance"][0].tolist() == pytest.approx([0.0, 0.5])


def test_where_the_sink_takes_everything_there_is_no_distance():
    at = Attention(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.array([[900.0]]), Mask(), 1.0, sinks=np.array([900.0]))
    for engine in ("reference", "cpu"):
        found = scan(at, ("distance", "entropy", "sink"), engine=engine)
        assert found["distance"].tolist() == [[None]]
        assert found["entropy"].tolist() == [[0.0]]
        assert found["sink"].tolist() == [[1.0]]


def test_means_count_the_destinations_that_they_say():
    case = made(Mask(padding=np.arange(9) >= 2), rows=9, tokens=3, seed=4)
    at = case.attention
    found = scan(at, at.names)
    mean, row = means(found), np.arange(9)
    read, again = row >= 2, np.array([at.codes[r] in at.codes[:r] for r in row])
    assert 0 < (read & again).sum() < read.sum()
    for name, values in mean.items():
        of = np.exp(found["entropy"]) if name == "effective" else found[name]
        counts = {"duplicate": again, "induction": again}.get(name, row >= 0) & read
        expected = of[:, counts].max(axis=1) if name == "largest_score" else of[:, counts].mean(axis=1)
        assert values.tolist() == pytest.approx(expected.tolist()), name
    later = scan(made(rows=4, seed=2).attention, ("first", "entropy"))
    assert means(later)["first"].tolist() == pytest.approx(later["first"][:, 1:].mean(axis=1).tolist())
    assert means(later)["entropy"].tolist() == pytest.approx(later["entropy"].mean(axis=1).tolist())


def test_means_of_no_destination_are_masked():
    at = made(rows=1).attention
    mean = means(scan(at, ("first", "duplicate", "entropy")))
    assert mean["first"].tolist() == mean["duplicate"].tolist() == [None, None]
    assert mean["entropy"].tolist() == pytest.approx([0.0, 0.0], abs=1e-7)


def test_a_scan_goes_through_plain_arrays_unchanged():
    at = made(Mask(padding=np.arange(9) >= 2), rows=9, sinks=True).attention
    found = scan(at, at.names, threshold=0.2, top=4)
    arrays = found.to_arrays()
    assert all(type(array) is np.ndarray and array.dtype != object for array in arrays.values())
    again = Scan.from_arrays({name: array.copy() for name, array in arrays.items()}, threshold=0.2, top=4)
    assert again.names == found.names == tuple(name for name in NAMES if name in at.names)
    assert again["entropy"].tolist() == found["entropy"].tolist()
    assert again.strongest.ids.tolist() == found.strongest.ids.tolist()
    assert [level.pairs.tolist() for level in again.zoom] == [level.pairs.tolist() for level in found.zoom]
    assert {n: m.tolist() for n, m in means(again).items()} == {n: m.tolist() for n, m in means(found).items()}
    assert (again.threshold, again.top, again.sources, again.offset) == (0.2, 4, 9, 0)


def test_bins_of_distance_and_finest_blocks_on_paper():
    assert distance_bins(0) == (range(1),)
    assert distance_bins(5) == (range(1), range(1, 2), range(2, 4), range(4, 8))
    assert [finest_block(n, n) for n in (1, 8, 9, 32, 33, 4096, 16384, 32768)] == [1, 1, 2, 2, 4, 32, 64, 64]
    assert finest_block(1, 10**6) == 1
