"""The compiled exp of windows: as exact as double precision is, at every size a score can have."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray

from wherefrom.scans.exponential import exp_over


def exps(*exponents: float) -> NDArray[np.float64]:
    out = np.array(exponents)
    exp_over(out)
    return out


@pytest.mark.parametrize("edge", [1e-9, 0.34, 1.0, 30.0, 708.0])
def test_it_is_exp_to_a_few_roundings(edge: float) -> None:
    exponents = np.random.default_rng(0).uniform(-edge, edge, 500)
    found = exps(*exponents)
    with localcontext() as context:
        context.prec = 30
        for exponent, value in zip(exponents, found, strict=True):
            exact = Decimal(float(exponent)).exp()
            assert abs(Decimal(float(value)) / exact - 1) < Decimal("5e-16")


def test_zero_gives_one_exactly() -> None:
    assert exps(0.0, -0.0).tolist() == [1.0, 1.0]


def test_the_ends() -> None:
    found = exps(-np.inf, -1e300, -708.5, -708.0, 709.0, 709.5, 1e300, np.inf)
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3:5] == pytest.approx([3.307553003638408e-308, 8.218407461554972e307], rel=1e-13)
    assert found[5:].tolist() == [np.inf] * 3


def test_nan_stays_nan_and_leaves_its_neighbours_alone() -> None:
    found = exps(*[1.0, np.nan] * 9)
    assert np.isnan(found[1::2]).all()
    assert found[::2] == pytest.approx(np.e, rel=5e-16)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 17])
def test_any_number_of_them(size: int) -> None:
    assert exps(*[-1.5] * size) == pytest.approx([0.22313016014842982] * size, rel=5e-16)
