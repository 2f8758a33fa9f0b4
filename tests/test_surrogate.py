"""The linear fit of ablations: against the normal equations, runs really left out, and cases with a known answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wherefrom import InputError
from wherefrom.evidence.choices import subsets
from wherefrom.evidence.surrogate import BROAD, GRID, USUAL, _mean_above_0, fit

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 40), st.integers(0, 10_000))


def made(n, passages, seed, noise=0.1):
    """Choices, true weights and values of n runs."""
    generator = np.random.default_rng(seed)
    kept = generator.random((n, passages)) < 0.5
    weights = generator.standard_normal(passages) * (generator.random(passages) < 0.4) * 3
    return kept, weights, 1.5 + kept @ weights + noise * generator.standard_normal(n)


def normal_equations(kept, values, prior, alpha):
    """The same by one dense system for b, c and d together: [1, X p, X], where d alone is held."""
    x = np.asarray(kept, dtype=float)
    free = [np.ones(len(x))] + ([] if prior is None else [x @ prior])
    design = np.column_stack([*free, x])
    held = np.diag([0.0] * len(free) + [alpha] * x.shape[1])
    solved = np.linalg.lstsq(design.T @ design + held, design.T @ values, rcond=None)[0]
    d = solved[len(free) :]
    scale = 0.0 if prior is None else solved[1]
    return solved[0], scale, d + (0 if prior is None else scale * prior)


def unit(kept):
    centred = kept - kept.mean(axis=0)
    return max((centred**2).sum() / len(kept), 1e-9)


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize(("n", "passages"), [(8, 15), (32, 15), (16, 40), (12, 3), (5, 100)])
@pytest.mark.parametrize("alpha", [0.01, 1.0, 30.0])
def test_it_is_what_the_normal_equations_say(n, passages, alpha, with_prior):
    kept, weights, values = made(n, passages, 3)
    prior = weights + 0.3 if with_prior else None
    found = fit(kept, values, prior=prior, alpha=alpha)
    intercept, scale, expected = normal_equations(kept, values, prior, alpha * unit(kept))
    assert scale >= 0
    assert np.abs(found.weights - expected).max() <= 1e-8
    assert found.intercept == pytest.approx(intercept, abs=1e-8)
    assert found.scale == pytest.approx(scale, abs=1e-8)
    assert np.abs(found.predict(kept) - (intercept + kept @ expected)).max() <= 1e-8


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize(("n", "passages"), [(8, 15), (24, 6), (6, 30)])
def test_the_error_is_that_of_runs_left_out(n, passages, with_prior):
    kept, weights, values = made(n, passages, 4)
    prior = weights + 0.3 if with_prior else None
    found = fit(kept, values, prior=prior, alpha=0.5)
    missed = []
    for run in range(n):
        rest = np.arange(n) != run
        intercept, _, own = normal_equations(kept[rest], values[rest], prior, 0.5 * unit(kept))
        missed.append(values[run] - intercept - kept[run] @ own)
    assert found.error == pytest.approx(np.sqrt(np.mean(np.square(missed))), rel=1e-6)


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize(("n", "passages"), [(8, 15), (24, 6), (5, 30)])
def test_strengths_count_by_their_likelihood(n, passages, with_prior):
    """The density of what is left of the runs when b and c are taken out, by an orthogonal basis of the rest."""
    kept, weights, values = made(n, passages, 8)
    prior = weights + 0.3 if with_prior else None
    free = np.column_stack([np.ones(n), *([kept @ prior] if with_prior else [])])
    rest = np.linalg.svd(free.T)[2][free.shape[1] :]  # n - q directions
    left, logs = rest @ values, []
    for strength in GRID:
        covariance = rest @ kept @ kept.T @ rest.T / (strength * unit(kept)) + np.eye(len(rest))
        spread = left @ np.linalg.solve(covariance, left) / len(rest)  # the variance that makes them likeliest
        logs.append(stats.multivariate_normal(cov=spread * covariance).logpdf(left))
    likely = np.array(logs) - (0.5 * (np.log(GRID / USUAL) / BROAD) ** 2 if with_prior else 0.0)
    expected = np.exp(likely - likely.max())
    found = fit(kept, values, prior=prior)
    np.testing.assert_allclose(found.shares, expected / expected.sum(), atol=1e-9)
    fits = []
    for strength in GRID:  # each at the mean of its factor's distribution, which is cut off below 0
        alpha = strength * unit(kept)
        if prior is None:
            fits.append(normal_equations(kept, values, None, alpha)[2])
            continue
        covariance = kept.astype(float) @ kept.T / alpha + np.eye(n)
        precision = free.T @ np.linalg.solve(covariance, free)
        centre = np.linalg.solve(precision, free.T @ np.linalg.solve(covariance, values))
        off = values - free @ centre
        error = np.sqrt(off @ np.linalg.solve(covariance, off) / (n - 2) * np.linalg.inv(precision)[1, 1])
        scale = stats.truncnorm.mean(-centre[1] / error, np.inf, loc=centre[1], scale=error)
        fits.append(scale * prior + normal_equations(kept, values - scale * kept @ prior, None, alpha)[2])
    np.testing.assert_allclose(found.weights, found.shares @ np.array(fits), atol=1e-7)


def test_a_few_noisy_runs_do_not_undo_a_good_prior():
    """Over many made goals, as good with six runs as without any, and better with twenty-four."""
    off = {0: [], 6: [], 24: []}
    for seed in range(60):
        kept, weights, values = made(24, 12, seed, noise=1.5)
        prior = weights + 0.6 * np.random.default_rng(seed).standard_normal(12)
        for n, own in off.items():
            found = fit(kept[:n], values[:n], prior=prior).weights if n else prior
            own.append(1 - np.corrcoef(found, weights)[0, 1])
    none, few, many = (np.mean(own) for own in off.values())
    assert few < 1.02 * none
    assert many < 0.8 * none


def test_weights_of_a_linear_goal_are_found():
    kept, weights, _ = made(40, 15, 5)
    found = fit(kept, 2.0 + kept @ weights)
    assert np.abs(found.weights - weights).max() < 0.01
    assert found.intercept == pytest.approx(2.0, abs=0.01)


def test_leave_one_out_and_the_whole_give_the_effects_shrunk_alike():
    effects = np.array([3.0, -1.0, 0.5, 0.0, 2.0])
    kept = np.vstack([~np.eye(5, dtype=bool), np.ones(5, dtype=bool)])
    found = fit(kept, np.append(-effects, 0.0), alpha=1e-6)
    assert np.abs(found.weights - effects).max() < 1e-3
    assert np.argsort(fit(kept, np.append(-effects, 0.0)).weights).tolist() == np.argsort(effects).tolist()


@pytest.mark.parametrize("factor", [1e-6, 0.3, 1.0, 50.0, 1e6])
def test_a_right_prior_of_any_size_is_taken(factor):
    kept, weights, values = made(6, 15, 6, noise=0.01)
    found = fit(kept, values, prior=weights * factor)
    assert np.corrcoef(found.weights, weights)[0, 1] > 0.999
    assert found.scale * factor == pytest.approx(1.0, abs=0.05)
    assert np.abs(found.weights - fit(kept, values, prior=weights).weights).max() < 1e-6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-200, 1e-160, 1e160, 1e308])
def test_a_prior_of_any_size_is_right_up_to_a_factor(size):
    kept = made(12, 5, 3)[0]
    prior = np.array([0.2, -1.0, 0.7, 0.0, 0.4])
    values = kept @ prior + np.random.default_rng(0).normal(0, 0.1, 12)
    found, usual = fit(kept, values, prior=prior * size), fit(kept, values, prior=prior)
    assert found.weights == pytest.approx(usual.weights, rel=1e-9)
    assert found.scale == pytest.approx(usual.scale / size, rel=1e-9)
    assert fit(kept[:0], [], prior=prior * size).weights == pytest.approx(prior * size)


@pytest.mark.filterwarnings("error")
def test_a_prior_as_small_as_its_factor_is_large():
    found = fit(np.eye(3), [1, 2, 3], prior=[1e-200, 2e-200, 0])
    usual = fit(np.eye(3), [1, 2, 3], prior=[1, 2, 0])
    assert found.weights == pytest.approx(usual.weights, rel=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [1e99, 1e101, 1e200, 1e308])
@pytest.mark.parametrize("prior", [None, [1.0, 2.0, 0.0]])
def test_a_strength_of_any_size_leaves_the_scaled_prior_alone(alpha, prior):
    kept, values = np.tile(np.vstack([np.eye(3), np.ones(3)]), 50), [1.0, 2.0, 0.5, 3.0]
    prior = None if prior is None else prior * 50
    found, alone = (fit(kept, values, prior=prior, alpha=one) for one in (alpha, np.inf))
    assert found.weights == pytest.approx(alone.weights, rel=1e-6, abs=1e-9)
    assert found.strength == alpha


def test_a_prior_helps_and_a_wrong_one_is_outweighed():
    """Over many made goals: a fair prior beats none with few runs, and with many runs even noise does no harm."""
    far = {"few": [], "few with": [], "many": [], "many with noise": []}
    for seed in range(40):
        kept, weights, values = made(48, 15, seed, noise=0.3)
        generator = np.random.default_rng(seed)
        fair = weights + generator.standard_normal(15)

        def off(found, weights=weights):
            return np.linalg.norm(found.weights - weights)

        far["few"].append(off(fit(kept[:6], values[:6])))
        far["few with"].append(off(fit(kept[:6], values[:6], prior=fair)))
        far["many"].append(off(fit(kept, values)))
        far["many with noise"].append(off(fit(kept, values, prior=generator.standard_normal(15))))
    few, few_with, many, with_noise = (np.mean(one) for one in far.values())
    assert few_with < 0.85 * few
    assert with_noise < 1.1 * many < 0.5 * few


def test_a_prior_of_the_wrong_sign_is_not_turned_round():
    kept, weights, values = made(30, 8, 7)
    found = fit(kept, values, prior=-weights, alpha=0.1)
    assert found.scale == 0
    assert np.abs(found.weights - fit(kept, values, alpha=0.1).weights).max() < 1e-9
    assert 0 < fit(kept, values, prior=-weights).scale < 0.05


@pytest.mark.parametrize("z", [-40.0, -9.99, -10.01, -3.0, 0.0, 1.5, 30.0])
def test_the_mean_above_0_is_that_of_a_truncated_normal(z):
    expected = stats.truncnorm.mean(-z, np.inf, loc=2 * z, scale=2.0)
    assert _mean_above_0(2 * z, 2.0) == pytest.approx(expected, rel=0.02)


def test_a_mean_without_any_error_is_itself():
    assert [_mean_above_0(mean, 0.0) for mean in (-2.0, 0.0, 3.0)] == [0.0, 0.0, 3.0]


def test_very_large_numbers_can_be_fitted():
    kept = made(12, 5, 3)[0]
    prior = np.arange(1.0, 6.0)
    found = fit(kept, kept @ prior * 1e30, prior=prior * 1e30)
    assert found.weights == pytest.approx(prior * 1e30, rel=1e-6)


def test_no_runs_give_the_prior():
    prior = np.array([3.0, -1.0])
    found = fit(np.zeros((0, 2), dtype=bool), [], prior=prior)
    assert found.weights.tolist() == [3.0, -1.0]
    assert (found.scale, found.strength) == (1.0, np.inf)
    assert np.isnan(found.error)
    assert fit([], [], prior=prior).weights.tolist() == [3.0, -1.0]
    assert fit(np.zeros((0, 2), dtype=bool), []).weights.tolist() == [0, 0]


def test_one_run_gives_the_prior_and_an_intercept():
    found = fit([[True, False]], [5.0], prior=[3.0, -1.0])
    assert found.weights.tolist() == [3.0, -1.0]
    assert found.predict([[True, False]]) == pytest.approx([5.0])


def test_two_runs_give_the_priors_factor():
    found = fit([[True, False], [True, True]], [5.0, 3.0], prior=[3.0, -1.0])
    assert found.scale == pytest.approx(2.0)
    assert found.weights == pytest.approx([6.0, -2.0])


@pytest.mark.parametrize("prior", [None, np.zeros(6), np.ones(6), np.full(6, -2.0), np.arange(6.0)])
@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_nothing_that_is_constant_breaks(n, prior):
    kept = subsets(6, n)
    found = fit(kept, np.full(n, 4.0), prior=prior)
    assert np.isfinite(found.weights).all()
    assert found.predict(kept) == pytest.approx(np.full(n, 4.0), abs=1e-6)
    if n > 2:
        assert np.abs(found.weights).max() < 1e-6
    same = fit(np.ones((n, 6), dtype=bool), np.arange(float(n)), prior=prior)
    assert np.isfinite(same.weights).all()
    assert np.abs(same.weights - (0 if prior is None else prior)).max() < 1e-6  # such runs tell nothing


@settings(max_examples=80)
@given(sizes=SIZES, with_prior=st.booleans())
def test_any_shape_gives_finite_weights(sizes, with_prior):
    n, passages, seed = sizes
    kept, _, values = made(n, passages, seed)
    prior = np.random.default_rng(seed + 1).standard_normal(passages) if with_prior else None
    found = fit(kept, values, prior=prior)
    assert found.weights.shape == (passages,)
    assert np.isfinite(found.weights).all()
    assert np.isfinite(found.intercept)
    assert found.scale >= 0
    assert found.strength == np.inf or found.strength == pytest.approx(np.exp(found.shares @ np.log(GRID)))
    again = fit(kept, values, prior=prior)
    assert (again.weights == found.weights).all()


@settings(max_examples=40)
@given(sizes=SIZES, factor=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_units_do_not_matter(sizes, factor, shift):
    n, passages, seed = sizes
    kept, weights, values = made(n, passages, seed)
    found, other = (fit(kept, one, alpha=0.7, prior=weights) for one in (values, factor * values + shift))
    if n > 2 and found.scale > 0 and np.ptp(kept @ weights) > 1e-6:  # else the prior is taken as it is
        assert np.abs(other.weights - factor * found.weights).max() <= 1e-6 * (1 + factor * np.abs(found.weights).max())


@settings(max_examples=40)
@given(sizes=SIZES)
def test_the_order_of_runs_and_passages_does_not_matter(sizes):
    n, passages, seed = sizes
    kept, weights, values = made(n, passages, seed)
    generator = np.random.default_rng(seed)
    runs, places = generator.permutation(n), generator.permutation(passages)
    found = fit(kept, values, prior=weights, alpha=0.3)
    other = fit(kept[runs][:, places], values[runs], prior=weights[places], alpha=0.3)
    assert np.abs(other.weights - found.weights[places]).max() <= 1e-6 * (1 + np.abs(found.weights).max())


@settings(max_examples=40)
@given(sizes=SIZES)
def test_a_run_that_is_as_foreseen_changes_nothing(sizes):
    n, passages, seed = sizes
    kept, weights, values = made(n, passages, seed)
    strength = 0.3 * unit(kept)
    found = fit(kept, values, prior=weights, alpha=0.3)
    more = np.vstack([kept, np.random.default_rng(seed).random(passages) < 0.5])
    foreseen = np.append(values, found.predict(more[-1:]))
    again = fit(more, foreseen, prior=weights, alpha=strength / unit(more))
    if found.scale > 0 and n > 2:
        assert np.abs(again.weights - found.weights).max() <= 1e-5 * (1 + np.abs(found.weights).max())


@pytest.mark.parametrize(
    ("kept", "values", "more", "says"),
    [
        (np.ones((3, 2)), np.ones(2), {}, r"kept \(3, 2\), values \(2,\)"),
        (np.ones((3, 2)), np.ones(3), {"prior": np.ones(3)}, r"prior \(3,\)"),
        (np.ones(3), np.ones(3), {}, r"kept \(3,\)"),
        (np.ones((2, 2)), [1.0, np.nan], {}, "got NaN or an infinity"),
        (np.ones((2, 2)), [1.0, 2.0], {"prior": [1.0, np.inf]}, "got NaN or an infinity"),
        (np.ones((2, 2)), [1.0, 2.0], {"alpha": -1.0}, "the strength"),
        (np.ones((2, 2)), [1.0, 2.0], {"alpha": np.nan}, "the strength"),
        (np.ones((2, 2)), [1.0, 2.0], {"alpha": "x"}, "the strength: expected a number from 0 up, got 'x'"),
        ("x", [1.0], {}, "the runs of a fit: expected numbers in rows of equal length, got others as kept"),
        (np.ones((2, 2)), [1.0, [2.0]], {}, "got others as values"),
        (np.ones((0, 0)), [], {}, "the runs of a fit"),
        (np.eye(3), [1e200, -1e200, 0], {}, r"values of a fit: expected numbers up to 1e\+100 .*, got 1e\+200"),
        (
            np.ones((2, 2)),
            [1, 2],
            {"prior": [1e308, 1e308]},
            r"whose factor the runs cannot tell.* got 1e\+308",
        ),
        (np.eye(2), [1, 2], {"prior": [1e-201, 0]}, "a fit: expected zero, .* at least 1e-200, got 1e-201"),
        (np.full((2, 2), 1e200), [1, 2], {}, r"the choices of a fit: expected True or False, .* got 1e\+200"),
        ([[0.5, 1], [1, 1]], [1, 2], {}, "the choices of a fit: expected True or False, .* got 0.5"),
    ],
)
def test_what_cannot_be_fitted(kept, values, more, says):
    with pytest.raises(InputError, match=says):
        fit(kept, values, **more)


def test_its_name():
    assert repr(fit(np.eye(2), [1.0, 2.0])).startswith("Surrogate(2 passages, strength")
