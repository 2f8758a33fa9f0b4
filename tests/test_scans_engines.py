"""The fast engines against the reference: every statistic, any shape, any mask, any split, within float32's bound."""

import contextlib
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from scans_made import anything, made
from test_scans_reference import check_readers, check_strongest, check_zoom
from wherefrom.attention import Mask
from wherefrom.scans import cpu, kernels, scan
from wherefrom.scans.device import scan_on_device, scan_tensors
from wherefrom.scans.pairs import count_pairs, reach

THRESHOLD, TOP = 0.07, 3
CUT = ("readers", "last_reader", "top", "zoom")  # compared with the dense weights: a hair decides what they say


@contextlib.contextmanager
def small_pieces(width=512, least=1 << 18):
    """Tiles of so many columns and jobs of so few pairs that small calls have many; fresh memory is full of NaN."""
    empty = np.empty

    def filled(shape, dtype=float, **rest):
        array = empty(shape, dtype, **rest)
        array.fill(np.nan if np.dtype(dtype).kind == "f" else 77)
        return array

    with mock.patch.multiple(cpu, WIDTH=width, LEAST=least), mock.patch.object(np, "empty", filled):
        yield


def on_cpu(case, names, strip, threads=1, **sizes):
    with small_pieces(**sizes):
        return scan(case.attention, names, threshold=THRESHOLD, top=TOP, strip=strip, threads=threads, engine="cpu")


def on_device(case, names, strip):
    return scan_on_device(case.attention, names, device="cpu", threshold=THRESHOLD, top=TOP, strip=strip)


def agree(found, case, names):
    """Every statistic is as far from the reference's as the bound of a float32 computation allows, and no farther."""
    expected = scan(case.attention, names, threshold=THRESHOLD, top=TOP, engine="reference")
    weight, total = case.error(), case.sum_error()
    assert found.names == expected.names
    for name in (name for name in names if name not in CUT):
        got, want = found[name], expected[name]
        assert got.shape == want.shape
        assert (np.ma.getmaskarray(got) == np.ma.getmaskarray(want)).all(), name
        size = np.abs(want.filled(0.0))
        bound = {
            # of -a log a, a is off by a share and log a by the same number; sum_j a <= 1 but for rounding
            "entropy": 1.1 * weight + total * (1 + size),
            "largest_score": weight * (1 + size),
            "distance": 2 * total * size,  # a quotient of two sums
        }.get(name, total * size)
        difference = np.abs(got.filled(0.0) - want.filled(0.0))
        # what float32 cannot hold counts as 0: 2^-126 of each weight, and the largest distance times it
        assert (difference <= bound + 1e-30).all(), (name, float(difference.max()), float(np.max(bound)))
    near = 1.1 * weight + total
    if "readers" in names and "last_reader" in names:
        check_readers(found, case.a, near)
    if "top" in names:
        check_strongest(found, case, near)
    if "zoom" in names:
        check_zoom(found, case, near)


@settings(max_examples=10)
@given(anything(), st.sampled_from([1, 2, 8, 64]))
def test_the_finest_blocks_are_as_fine_as_is_asked(case, block):
    for strip, engine in ((None, "reference"), (None, "cpu"), (7, "cpu")):
        found = scan(case.attention, ("zoom",), block=block, strip=strip, engine=engine)
        check_zoom(found, case, 1e-4, block)


SPLITS = {
    "width": st.sampled_from([16, 64, 512]),
    "strip": st.sampled_from([1, 5, 16, 64]),
    "least": st.sampled_from([1, 9999]),
}
LONG = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


@LONG
@given(case=anything(), **SPLITS)
def test_the_compiled_scan_is_within_float32_of_the_reference(case, width, strip, least):
    agree(on_cpu(case, case.attention.names, strip, width=width, least=least), case, case.attention.names)


@settings(max_examples=60)
@given(anything(), st.sampled_from([1, 4, 64]))
def test_the_scan_in_torch_is_within_float32_of_the_reference(case, strip):
    agree(on_device(case, case.attention.names, strip), case, case.attention.names)


@pytest.mark.parametrize("mask", [Mask(), Mask(window=200), Mask.bidirectional()], ids=Mask.describe)
@pytest.mark.parametrize("tokens", [1, 2, 300])
def test_many_tiles_strips_and_jobs_in_threads(mask, tokens):
    case = made(mask, rows=601, heads=2, kv_heads=1, size=16, tokens=tokens)
    agree(on_cpu(case, case.attention.names, 128, 2, least=1 << 14), case, case.attention.names)


def test_two_of_the_sources_scored_alike_come_in_their_order():
    q = np.zeros((1, 1100, 2))
    case = made(rows=1100, heads=1, size=2, spread=0.0)
    assert (case.attention.q == q).all()
    for found in (on_cpu(case, ("top",), 64), on_device(case, ("top",), 200), scan(case.attention, ("top",), top=TOP)):
        assert found.strongest.ids[0, 2:].tolist() == [[0, 1, 2]] * 1098
        assert found.strongest.ids[0, 0].tolist() == [0, None, None]
    k = case.attention.k.copy()
    k[0, [700, 30, 900]] = 1.0
    again = made(rows=1100, heads=1, size=2, spread=0.0)
    at = type(case.attention)(np.ones_like(again.attention.q), k * 3.0 * (k == 1), again.attention.lse, Mask(), 1.0)
    for found in (scan(at, ("top",), top=4, engine="cpu"), scan_on_device(at, ("top",), device="cpu", top=4)):
        assert found.strongest.ids[0, 1000].tolist() == [30, 700, 900, 0]


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_the_strongest_of_a_row_that_rises_or_falls_all_along(order):
    case = made(Mask.bidirectional(), rows=1300, heads=1, size=1)
    k = (np.arange(1300.0)[::order] / 100)[None, :, None].astype(np.float32)
    at = type(case.attention)(np.ones_like(case.attention.q), k, case.attention.lse, Mask.bidirectional(), 1.0)
    found = scan(at, ("top",), top=9, engine="cpu").strongest.ids[0]
    best = list(range(1299, 1290, -1)) if order == 1 else list(range(9))
    assert found.tolist() == [best] * 1300


def test_the_number_of_threads_changes_no_bit():
    case = made(rows=700, heads=3, size=7)
    first, *others = (
        on_cpu(case, case.attention.names, 33, threads, least=1 << 10).to_arrays() for threads in (1, 2, 3)
    )
    assert len(list(cpu.jobs(cpu.plan_of(case.attention, frozenset(("zoom",)), 0.1, 1, 33, 8)))) >= 3
    for other in others:
        assert all(np.array_equal(first[name], other[name], equal_nan=first[name].dtype.kind == "f") for name in first)


@pytest.mark.parametrize("scanned", [on_cpu, on_device], ids=["cpu", "device"])
def test_what_is_asked_for_alone_is_what_is_found_with_all_else(scanned):
    case = made(Mask(window=50), rows=90, sinks=True, softcap=3.0, seed=8)
    all_of_it = scanned(case, case.attention.names, 32).to_arrays()
    for name in case.attention.names:
        alone = scanned(case, (name,), 32)
        assert alone.names == (name,)
        for key, values in alone.to_arrays().items():
            assert np.allclose(
                values, all_of_it[key], rtol=case.sum_error(), atol=0, equal_nan=values.dtype.kind == "f"
            ), key


def test_a_weight_too_small_for_float32_is_exactly_zero():
    q, k = np.array([[[1.0], [1.0]]]), np.array([[[0.0], [-200.0]]])
    at = made(rows=2, heads=1, size=1).attention
    at = type(at)(q, k, np.zeros((1, 2)), Mask.bidirectional(), 1.0)
    for found in (
        scan(at, ("received", "largest_score"), engine="cpu"),
        scan_on_device(at, ("received",), device="cpu"),
    ):
        assert found["received"].tolist() == [[2.0, 0.0]]


def test_two_to_the_power_is_within_three_roundings():
    x = np.linspace(-125.9, 3.0, 300_001).astype(np.float32)
    power = np.array([kernels.power(number) for number in x[::100]])
    assert np.abs(power / np.exp2(x[::100].astype(float)) - 1).max() <= 1.8e-7
    assert kernels.power(np.float32(0)) == 1.0
    assert kernels.power(kernels.UNDERFLOW) == 0.0


@pytest.mark.parametrize("engine", ["cpu", "device"])
def test_far_positions_and_long_sums_are_right(engine):
    def run(*parts, **rest):
        at = type(made().attention)(*parts, 1.0, **rest)
        return scan(at, at.names, engine="cpu") if engine == "cpu" else scan_on_device(at, at.names, device="cpu")

    zeros, far = np.zeros((1, 70_001, 1), np.float32), 2**25 + 1
    found = run(np.zeros((1, 2, 1), np.float32), zeros, np.log(np.full((1, 2), 70_001)), Mask(False))
    assert found["entropy"].tolist() == [pytest.approx([np.log(70_001)] * 2, rel=1e-6)]
    assert found["distance"].tolist() == [pytest.approx([35_000, 34_999.00003], rel=1e-6)]
    assert found["distances"].sum() == pytest.approx(1, rel=1e-6)
    found = run(zeros, np.zeros((1, 2, 1), np.float32), np.log(np.full((1, 70_001), 2.0)), Mask(False))
    assert found["received"].tolist() == [pytest.approx([35_000.5] * 2, rel=1e-6)]
    assert found["readers"].tolist() == [[70_001] * 2]
    assert found["last_reader"].tolist() == [[70_000] * 2]
    found = run(zeros[:, :1], np.zeros((1, 2, 1), np.float32), np.log([[2.0]]), Mask(offset=far))
    assert found["distance"].tolist() == [[pytest.approx(far - 0.5, rel=1e-6)]]
    assert found["distances"][0, 26] == pytest.approx(1)  # both lie at 2^25 to 2^26 - 1


@LONG
@given(anything(), st.sampled_from([1, 2, 8]))
def test_counts_of_permitted_pairs_are_those_of_the_map(case, block):
    heads, rows, columns = case.permitted.shape
    grown = np.pad(case.permitted, ((0, 0), (0, -rows % block), (0, -columns % block)))
    shape = (heads, grown.shape[1] // block, block, grown.shape[2] // block, block)
    counts = count_pairs(case.attention, block)
    assert np.broadcast_to(counts, (heads, *counts.shape[-2:])).tolist() == grown.reshape(shape).sum((2, 4)).tolist()


@given(st.booleans(), st.sampled_from([None, 1, 3, 50]), st.integers(0, 9), st.integers(1, 9), st.integers(1, 12))
def test_reach_is_that_of_every_row(causal, window, offset, rows, columns):
    mask = Mask(causal, window, offset)
    ranges = [mask.reach(row, columns) for row in range(rows)]
    assert np.stack(reach(mask, rows, columns)).tolist() == [[r.start for r in ranges], [r.stop for r in ranges]]


@pytest.fixture
def threads_of_products():
    """How many threads numpy's products have, asked again by each call; two to begin with."""
    with threadpool_limits(2, "blas"):
        yield lambda: {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_products_have_one_thread_while_a_scan_runs_and_as_many_as_before_after_it(threads_of_products):
    case, within, run = made(rows=20), [], cpu.run

    def watched(*parts):
        within.append(threads_of_products())
        return run(*parts)

    for threads in (1, 2):
        with mock.patch.object(cpu, "run", watched):
            scan(case.attention, ("entropy",), engine="cpu", threads=threads)
        assert threads_of_products() == {2}
    assert within == [{1}] * 4  # two heads, a job each


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_job_ends_the_scan_and_frees_the_threads(threads, threads_of_products):
    case = made(rows=20)
    with mock.patch.object(cpu, "read", side_effect=MemoryError), pytest.raises(MemoryError):
        scan(case.attention, ("entropy",), engine="cpu", threads=threads)
    assert threads_of_products() == {2}


def test_tensors_are_scanned_where_they_are_and_bfloat16_is_what_it_is():
    case = made(rows=9)
    q, k, lse = (torch.from_numpy(array) for array in (case.attention.q, case.attention.k, case.attention.lse))
    rest = {"scale": case.attention.scale, "codes": case.attention.codes}
    found = scan_tensors(q, k, lse, Mask(), case.attention.names, threshold=THRESHOLD, top=TOP, **rest)
    agree(found, case, case.attention.names)
    short = (q.bfloat16(), k.bfloat16(), lse)
    rounded = type(case.attention)(
        *(x.float().numpy() for x in short), Mask(), case.attention.scale, codes=case.attention.codes
    )
    expected = scan(rounded, ("entropy", "received"), engine="reference")
    found = scan_tensors(*short, Mask(), ("entropy", "received"), **rest)
    for name in ("entropy", "received"):
        assert found[name].tolist() == [pytest.approx(row, rel=1e-5) for row in expected[name].tolist()]


def test_one_compilation_serves_every_call():
    for case in (made(rows=3, heads=1), made(Mask.bidirectional(), rows=700, columns=2, heads=3, bias=1, sinks=True)):
        for names in (case.attention.names, ("received",), ("top", "zoom")):
            scan(case.attention, names, engine="cpu")
    assert len(kernels.read.signatures) == 1
