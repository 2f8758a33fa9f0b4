"""A linear fit of measured ablations (floor 5): what each passage adds to a goal, from runs with many of them gone.

The value of a run is taken as an intercept plus the weights of the passages that it kept. Each run tells of all
passages at once, so that fewer runs are needed than passages; estimates that cost nothing more, such as gate gradients,
go in as a prior, to which the weights are held as far as the runs do not say otherwise.

With X [n, P] the choices (1 kept, 0 taken away), y the values and p the prior, the weights are w = c p + d, with an
intercept b and a factor c >= 0, so as to minimise

    |y - b - X w|^2 + alpha |d|^2,

which is ridge regression (Hoerl and Kennard 1970) toward a prior of unknown scale. b and c are not held. With
K = X X^T, M = (K + alpha I)^-1, U the q columns that are not held, 1 and X p, and
P = M - M U (U^T M U)^-1 U^T M, the residuals are alpha P y, those of runs left out (P y)_i / P_ii (Allen 1974, PRESS),
and d = X^T P y. It is all n x n, so P may be larger than n.

How large alpha should be a few runs cannot say: the one whose leave-one-out error is least often believes their noise.
So the weights are a mean over strengths on a logarithmic grid. Each counts by how likely it makes the runs, whatever b
and c are (restricted likelihood, Patterson and Thompson 1971),

    -1/2 (log |K + alpha I| + log |U^T M U| + (n - q) log y^T P y),

and, beside a prior, by how near it is to what is usual: log alpha normal around log `USUAL`; c is then its mean over
what the runs allow above 0, so that a few noisy ones do not throw a prior away.

The design is that of ContextCite (Cohen-Wang et al. 2024), which fits a lasso to as many random ablations; the prior is
new here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.checks import check_number
from wherefrom.errors import InputError

Numbers: TypeAlias = NDArray[np.float64]

GRID = np.logspace(-4, 4, 33)
"""Strengths, in units of the runs' own spread, so that they mean the same for any number of runs and passages."""
USUAL = 3.0
"""The strength that is expected beside a prior, in the same unit: a gate's estimate is worth some runs."""
BROAD = 1.0
"""How far from it the true one may be: the standard deviation of its logarithm."""
TINY = 1e-9
"""Below this share of its size a number is rounding."""
LARGEST, SMALLEST = 1e100, 1e-200
"""Of values, whose squares are summed; and of a prior's largest number, by which its factor is divided."""


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A linear fit of a goal's values.

    Attributes:
        weights: [P], what each passage adds when it is kept, in the unit of the values.
        intercept: the value with nothing kept, as the fit has it.
        scale: the factor c of the prior; 0 without one.
        strength: alpha, in units of the runs' own spread: the mean eigenvalue of X X^T, centred; the geometric mean
            where several are counted; infinite where the weights are the scaled prior alone.
        shares: [33], how much each strength of `GRID` counts; empty where there was none to choose.
        error: root mean square of the residuals of runs left out; NaN where there are too few runs to leave one out.
    """

    weights: Numbers
    intercept: float
    scale: float
    strength: float
    error: float
    shares: Numbers = field(default_factory=lambda: np.zeros(0), repr=False)

    def predict(self, kept: ArrayLike) -> Numbers:
        """Return the values that the fit gives to choices, [n], of bool [n, P]."""
        return self.intercept + np.asarray(kept, dtype=np.float64) @ self.weights

    def __repr__(self) -> str:
        return f"Surrogate({len(self.weights)} passages, strength {self.strength:.2g}, error {self.error:.2g})"


def fit(kept: ArrayLike, values: ArrayLike, *, prior: ArrayLike | None = None, alpha: float | None = None) -> Surrogate:
    """Return the ridge fit of values to choices of passages, held to a prior of any scale.

    Args:
        kept: bool [n, P], the passages that each run kept. The whole text is a run too: a row of True.
        values: [n], the goal's value in each.
        prior: [P], an estimate of what each passage adds, right up to a factor; None: zero.
        alpha: the strength, in units of the runs' own spread; a mean over strengths unless given.

    Returns:
        The fit. Where the runs cannot tell the factor of the prior (none, one, or all of the same prediction) it is 1;
        where they tell a negative one it is 0.

    Raises:
        InputError: arrays of shapes that do not belong together, numbers that are not finite, choices that are not True
            or False, values beyond 1e100, a strength below 0; a prior, not zero, all below 1e-200, or beyond 1e100
            where the runs cannot tell its factor.
    """
    x, y, p = _checked(kept, values, prior)
    if alpha is not None and not (isinstance(alpha, float) and alpha == np.inf):  # which leaves the scaled prior alone
        alpha = check_number("the strength", alpha, least=0, expected="a number from 0 up", way_out="Leave it out.")
    if not len(y):
        weights = np.zeros(x.shape[1]) if p is None else p.copy()
        return Surrogate(weights, 0.0, 0.0 if p is None else 1.0, np.inf, np.nan)
    if p is None:
        return _fit(x, y, None, alpha)
    size = _size_of(p)
    shape = p / size
    if np.ptp(x @ shape) > TINY:
        found = _fit(x, y, shape, alpha)
        return replace(found, scale=found.scale / size)
    _require_small("a prior whose factor the runs cannot tell", p)
    found = _fit(x, y - x @ p, None, alpha)  # so it is taken as it is
    return replace(found, weights=found.weights + p, scale=1.0)


def _fit(x: Numbers, y: Numbers, p: Numbers | None, alpha: float | None) -> Surrogate:
    """Return the fit of a strength, or of all that are likely."""
    smoother = _Smoother(x, y, p)
    if alpha is not None:
        return smoother.at(alpha).surrogate(alpha)
    if smoother.all_free:
        return smoother.at(np.inf).surrogate(np.inf)
    fits = [smoother.expected(strength) for strength in GRID]
    likely = np.array([one.likelihood for one in fits])
    if p is not None:
        likely -= (np.log(GRID / USUAL) / BROAD) ** 2 / 2
    shares = np.exp(likely - likely.max())
    shares /= shares.sum()
    mean = _Fit(*(np.tensordot(shares, np.array(own), axes=1) for own in zip(*fits, strict=True)))
    return replace(mean.surrogate(float(np.exp(shares @ np.log(GRID)))), shares=shares)


class _Fit(NamedTuple):
    """One fit, or a mean of some.

    Attributes:
        weights: [P].
        intercept: b.
        scale: c.
        doubt: the standard error of c.
        missed: residuals of runs left out, [n].
        likelihood: the logarithm of the strength's.
    """

    weights: Any
    intercept: Any
    scale: Any
    doubt: Any
    missed: Any
    likelihood: Any

    def surrogate(self, strength: float) -> Surrogate:
        error = float(np.sqrt(np.mean(np.square(self.missed))))
        return Surrogate(self.weights, float(self.intercept), float(self.scale), float(strength), error)


class _Smoother:
    """The fits of some runs for every strength, from one decomposition of their n x n products.

    Attributes:
        unit: the runs' spread.
        all_free: whether there are no more runs than numbers that are not held.
    """

    def __init__(self, x: Numbers, y: Numbers, p: Numbers | None) -> None:
        self._x, self._y, self._p = x, y, p
        self._mean = x.mean(axis=0)
        centred = x - self._mean
        size, vectors = np.linalg.eigh(centred @ centred.T)
        self._sizes, self._vectors = np.maximum(size, 0.0), vectors
        self.unit = max(float(self._sizes.mean()), TINY)
        self._centred = centred
        self._predicted = None if p is None else x @ p
        self.all_free = len(y) <= (1 if p is None else 2)

    def at(self, strength: float) -> _Fit:
        """Return the fit of a strength, in units of the runs' spread: the least of the sum that is minimised."""
        found = self._of(strength, self._predicted, self._y)
        return found if found.scale >= 0 else self._of(strength, None, self._y)  # the best c >= 0 is then 0

    def expected(self, strength: float) -> _Fit:
        """Return the mean of what the runs allow at a strength, the factor of the prior above 0.

        Noise can make the best c negative. Its distribution is normal; cut off below 0, it has the mean
        c + e f(c / e) / F(c / e), e the standard error, f and F the normal density and distribution.
        """
        found = self._of(strength, self._predicted, self._y)
        if self._predicted is None or self._p is None:
            return found
        scale = _mean_above_0(found.scale, found.doubt)
        rest = self._of(strength, None, self._y - scale * self._predicted)
        return found._replace(weights=scale * self._p + rest.weights, intercept=rest.intercept, scale=scale)

    def _of(self, strength: float, predicted: Numbers | None, y: Numbers) -> _Fit:
        n = len(y)
        free = np.ones((n, 1)) if predicted is None else np.column_stack([np.ones(n), predicted - predicted.mean()])
        alpha = max(strength * self.unit, TINY * self.unit)
        held = strength > LARGEST  # then M is I / alpha, and all that is wanted is free of the factor
        inverse = np.eye(n) if held else (self._vectors / (self._sizes + alpha)) @ self._vectors.T
        if n <= free.shape[1]:  # as many numbers that are not held as runs: they take all
            solved, left = np.linalg.lstsq(free, y, rcond=None)[0], np.zeros(n)
            doubt, missed, likelihood = np.nan, np.full(n, np.nan), 0.0
        else:
            solved, left, doubt, missed, likelihood = _solve(inverse, free, y)
            likelihood -= float(np.log(self._sizes + alpha).sum()) / 2
        d = np.zeros(self._x.shape[1]) if held else self._centred.T @ left
        scale = 0.0 if predicted is None else float(solved[1])
        weights = d if predicted is None or self._p is None else scale * self._p + d
        fitted = 0.0 if predicted is None else scale * float(predicted.mean())
        intercept = float(solved[0]) - fitted - float(self._mean @ d)
        return _Fit(weights, intercept, scale, doubt, missed, likelihood)


def _solve(inverse: Numbers, free: Numbers, y: Numbers) -> tuple[Numbers, Numbers, float, Numbers, float]:
    """Return what a `_Fit` is made of.

    It is the coefficients that are not held, P y, the standard error of the last of them, the residuals of runs left
    out, and the log-likelihood but for |K + alpha I|.
    """
    weighted = inverse @ free  # n q
    normal = free.T @ weighted
    solved: Numbers = np.linalg.solve(normal, weighted.T @ y).astype(np.float64)
    projected: Numbers = inverse - weighted @ np.linalg.solve(normal, weighted.T)  # P
    diagonal, left = np.diag(projected), inverse @ (y - free @ solved)
    alone = diagonal <= TINY * np.diag(inverse)  # a run that the rest says nothing of
    missed = np.where(alone, np.nan, left / np.where(alone, 1.0, diagonal))
    spread, more = max(float(y @ left), np.finfo(np.float64).tiny), len(y) - free.shape[1]  # y^T P y, n - q
    likelihood = -(np.linalg.slogdet(normal)[1] + more * np.log(spread)) / 2
    doubt = np.sqrt(spread / more * np.linalg.inv(normal)[-1, -1])
    return solved, left, float(doubt), missed, float(likelihood)


def _mean_above_0(mean: float, error: float) -> float:
    """Return the mean of a normal distribution that is cut off below 0; without any error it is its mean, or 0."""
    if not error:
        return max(mean, 0.0)
    z = mean / error
    if z < -10:  # f / F is then -z to a hundredth: what is left is error / -z
        return error / -z
    density, below = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erfc(-z / math.sqrt(2)) / 2
    return mean + error * density / below


def _numbers(name: str, given: ArrayLike) -> Numbers:
    try:
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            "the runs of a fit",
            expected="numbers in rows of equal length",
            given=f"others as {name}",
            way_out="Give what `ablate` returned: fit(found.kept, found.values).",
        ) from error


def _checked(kept: ArrayLike, values: ArrayLike, prior: ArrayLike | None) -> tuple[Numbers, Numbers, Numbers | None]:
    """Return choices, values and prior as float64, if they belong together."""
    x, y = _numbers("kept", kept), _numbers("values", values)
    p = None if prior is None else _numbers("prior", prior)
    if x.size == 0 and x.ndim == 1 and p is not None and p.ndim == 1:
        x = x.reshape(0, len(p))
    shapes: dict[str, Any] = {"kept": x.shape, "values": y.shape, "prior": None if p is None else p.shape}
    fits = x.ndim == 2 and x.shape[1] > 0 and y.shape == x.shape[:1] and (p is None or p.shape == x.shape[1:])
    finite = fits and all(array is None or bool(np.isfinite(array).all()) for array in (x, y, p))
    if not finite:
        raise InputError(
            "the runs of a fit",
            expected="finite numbers: kept [n, P], values [n], and a prior [P] if there is one",
            given="NaN or an infinity"
            if fits
            else ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape is not None),
            way_out="Give what `ablate` returned: fit(found.kept, found.values).",
        )
    _require_choices(x)
    _require_small("the values of a fit", y)
    return x, y, p


def _require_small(what: str, numbers: Numbers) -> None:
    """Refuse numbers whose squares could overflow."""
    most = float(np.abs(numbers).max(initial=0.0))
    if most > LARGEST:
        expected, way_out = f"numbers up to {LARGEST:g} in size", "Give them in a larger unit."
        raise InputError(what, expected=expected, given=f"{most:g}", way_out=way_out)


def _require_choices(x: Numbers) -> None:
    """Refuse choices of anything but 1 and 0."""
    odd = x[(x != 0) & (x != 1)]
    if odd.size:
        way_out = "A choice keeps a passage or takes it away: `subsets(passages, n)` draws some."
        expected, given = "True or False, 1 or 0, of each passage", f"{odd[0]:g}"
        raise InputError("the choices of a fit", expected=expected, given=given, way_out=way_out)


def _size_of(p: Numbers) -> float:
    """Return a prior's largest number, 1 of zeros, or refuse one so small that its factor could overflow."""
    size = float(np.abs(p).max())
    if 0 < size < SMALLEST:
        way_out = "It is right up to a factor: multiply it by one."
        expected = f"zero, or a largest number of at least {SMALLEST:g}"
        raise InputError("the prior of a fit", expected=expected, given=f"{size:g}", way_out=way_out)
    return size or 1.0
