"""The Gaussian process against scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from tuner.strategies.gaussian_process import Matern52, PosteriorVariance, loss
from tuner.strategies.surrogate import log_h

LENGTHS, NOISE = np.array([0.4, 1.3, 2.2]), 0.01
ROWS = list(range(12))


@pytest.fixture
def kernel():
    made = Matern52(3)
    made.theta = np.log([*LENGTHS, NOISE])
    return made


@pytest.fixture
def points():
    return np.random.default_rng(0).random((40, 3))


@pytest.fixture
def y(points):
    targets = np.sin(5 * points[ROWS, 0]) + points[ROWS, 1] ** 2
    return targets - targets.mean()


def golden(kernel, points, y, amplitude):
    """scikit-learn's regressor with the same kernel and no fit of its own."""
    theirs = ConstantKernel(amplitude) * Matern(np.exp(kernel.theta[:-1]), nu=2.5)
    process = GaussianProcessRegressor(
        theirs + WhiteKernel(amplitude * kernel.noise), optimizer=None
    )
    return process.fit(points[ROWS], y)


def test_the_kernel_matrix_is_scikit_learns(kernel, points):
    expected = Matern(LENGTHS, nu=2.5)(points[:7], points)
    np.testing.assert_allclose(kernel.correlation(points[:7], points), expected, rtol=1e-10)


@pytest.mark.parametrize("first", [0, 5, 12])
def test_mean_and_variance_are_scikit_learns(kernel, points, y, first):
    """Rows given at once and rows appended one by one make the same posterior."""
    factor = PosteriorVariance(kernel, points, ROWS[:first])
    for row in ROWS[first:]:
        factor.append(row)
    found = factor.mean_given(ROWS, y)
    process = golden(kernel, points, y, found.amplitude)
    mean, deviation = process.predict(points, return_std=True)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-7, atol=1e-9)
    # Theirs includes the noise of a further measurement.
    theirs = deviation**2 - found.amplitude * kernel.noise
    np.testing.assert_allclose(found.amplitude * factor.variance, theirs, rtol=1e-6, atol=1e-9)


def test_pending_rows_lower_the_variance_and_leave_the_mean(kernel, points, y):
    alone, more = (PosteriorVariance(kernel, points, ROWS) for _ in range(2))
    more.append(30)
    np.testing.assert_array_equal(more.mean_given(ROWS, y).mean, alone.mean_given(ROWS, y).mean)
    assert np.all(more.variance <= alone.variance)
    assert more.variance[30] < 0.02 < alone.variance[30]


def test_the_marginal_likelihood_is_scikit_learns_at_its_best_amplitude(kernel, points, y):
    amplitude = PosteriorVariance(kernel, points, ROWS).mean_given(ROWS, y).amplitude
    found = kernel.log_marginal_likelihood(points[ROWS], y)
    assert found == pytest.approx(golden(kernel, points, y, amplitude).log_marginal_likelihood())
    for other in (0.8 * amplitude, 1.25 * amplitude):
        assert found > golden(kernel, points, y, other).log_marginal_likelihood()


def test_the_gradient_of_the_loss_is_that_of_finite_differences(kernel, points, y):
    x = points[ROWS]
    gaps = [(x[:, [j]] - x[:, j]) ** 2 for j in range(3)]
    expected = approx_fprime(kernel.theta, lambda theta: loss(theta, gaps, y)[0], 1e-6)
    np.testing.assert_allclose(loss(kernel.theta, gaps, y)[1], expected, rtol=1e-4, atol=1e-4)


def test_a_fit_makes_the_targets_more_likely(points, y):
    fitted = Matern52(3)
    before = fitted.log_marginal_likelihood(points[ROWS], y)
    fitted.fit(points[ROWS], y)
    assert fitted.log_marginal_likelihood(points[ROWS], y) > before + 1


def test_the_improvement_is_scipys_and_finite_far_below():
    z = np.linspace(-4, 4, 33)
    np.testing.assert_allclose(log_h(z), np.log(z * norm.cdf(z) + norm.pdf(z)), rtol=1e-8)
    far = np.array([-30.0, -20.0, -10.0])
    # h(z) = phi(z) / z^2 (1 - 3 / z^2 + 15 / z^4 - ...) for z far below 0.
    series = norm.logpdf(far) - 2 * np.log(-far) + np.log(1 - 3 / far**2 + 15 / far**4)
    np.testing.assert_allclose(log_h(far), series, rtol=1e-4)
    assert math.isfinite(log_h(np.array([-1000.0]))[0])
