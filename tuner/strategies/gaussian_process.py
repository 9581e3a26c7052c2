"""A Gaussian process with a Matern-5/2 kernel and one length scale per column, in plain numpy.

Hyperparameters maximise the marginal likelihood times log-normal priors; the amplitude is profiled
out. Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2
and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.optimize import minimize

from tuner.strategies.candidate_points import Floats

_ROOT5 = math.sqrt(5.0)
#: Of ln(length scale), where a column is 1 wide: mean and standard deviation.
_LENGTH_PRIOR = (0.0, 0.7)
#: Of ln(noise variance / amplitude). Timings repeat within fractions of a percent; what this stands
#: for is mostly roughness that no smooth function follows.
_NOISE_PRIOR = (-6.0, 1.0)
_BOUNDS = ((-3.0, 4.0), (-10.0, 0.0))


@dataclass(slots=True)
class Matern:
    """The correlation function and its noise; `theta` holds ln of lengths and, last, of noise."""

    columns: int
    theta: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.theta = np.array([_LENGTH_PRIOR[0]] * self.columns + [_NOISE_PRIOR[0]])

    @property
    def noise(self) -> float:
        """Variance of what is no function of the columns, in units of the amplitude."""
        return math.exp(self.theta[-1])

    def correlation(self, a: Floats, b: Floats) -> Floats:
        """Of every row of `a` with every row of `b`."""
        lengths = np.exp(self.theta[:-1])
        a, b = a / lengths, b / lengths
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T)
        r = _ROOT5 * np.sqrt(np.maximum(squares, 0.0))
        return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))

    def fit(self, x: Floats, y: Floats, steps: int = 25) -> None:
        """Fit to targets `y` of mean 0, starting from the present hyperparameters."""
        gaps = [(x[:, [j]] - x[:, j]) ** 2 for j in range(self.columns)]
        found = minimize(  # type: ignore[call-overload]  # scipy-stubs want an array of shape (n,)
            lambda theta: _loss(theta, gaps, y),
            self.theta,
            jac=True,
            method="L-BFGS-B",
            bounds=[_BOUNDS[0]] * self.columns + [_BOUNDS[1]],
            options={"maxiter": steps},
        )
        if np.all(np.isfinite(found.x)):
            self.theta = found.x


def _loss(theta: Floats, gaps: list[Floats], y: Floats) -> tuple[float, Floats]:
    """Minus the log posterior of the hyperparameters, up to a constant, and its gradient."""
    n = len(y)
    weights = np.exp(-2.0 * theta[:-1])
    noise = math.exp(theta[-1])
    r = np.zeros((n, n))
    for gap, weight in zip(gaps, weights, strict=True):
        r += gap * weight
    r = _ROOT5 * np.sqrt(r)
    decay = np.exp(-r)
    correlation = (1.0 + r + r * r / 3.0) * decay
    try:
        root = cholesky(correlation + noise * np.eye(n), lower=True)
    except LinAlgError:
        return 1e10, np.zeros_like(theta)
    alpha = cho_solve((root, True), y)
    amplitude = max(float(y @ alpha) / n, 1e-12)
    loss = 0.5 * n * math.log(amplitude) + float(np.log(np.diag(root)).sum())
    sensitivity = cho_solve((root, True), np.eye(n)) - np.outer(alpha, alpha) / amplitude
    slope = sensitivity * ((5.0 / 3.0) * (1.0 + r) * decay)
    gradient = np.empty_like(theta)
    for j, (gap, weight) in enumerate(zip(gaps, weights, strict=True)):
        gradient[j] = 0.5 * weight * float((slope * gap).sum())
    gradient[-1] = 0.5 * noise * float(np.trace(sensitivity))
    away = np.append((theta[:-1] - _LENGTH_PRIOR[0]), theta[-1] - _NOISE_PRIOR[0])
    spread = np.append(np.full(len(gaps), _LENGTH_PRIOR[1]), _NOISE_PRIOR[1])
    loss += 0.5 * float(((away / spread) ** 2).sum())
    return loss, gradient + away / spread**2


class Posterior:
    """What targets at some rows say of all `points` rows: mean, and variance as more is asked.

    Variance depends on where was asked alone, so rows without a target yet count for it, and one
    more row costs one product. Means use the rows that have a target.
    """

    def __init__(self, kernel: Matern, points: Floats, rows: list[int]) -> None:
        self.kernel = kernel
        self.points = points
        self._at: dict[int, int] = {}
        self._used = 0
        capacity = 2 * len(rows) + 64
        self._k = np.empty((capacity, len(points)))
        self._v = np.empty((capacity, len(points)))
        self.variance: Floats = np.ones(len(points))
        for row in rows:
            self.append(row)

    def __contains__(self, row: int) -> bool:
        return row in self._at

    def append(self, row: int) -> None:
        """Ask at one more row: one step of an incomplete Cholesky factorisation."""
        if row in self._at:
            return
        if self._used == len(self._k):
            self._k = np.vstack([self._k, np.empty_like(self._k)])
            self._v = np.vstack([self._v, np.empty_like(self._v)])
        at = self._at[row] = self._used
        self._used += 1
        self._k[at] = self.kernel.correlation(self.points[[row]], self.points)[0]
        v = self._k[at] - self._v[:at, row] @ self._v[:at]
        pivot = math.sqrt(max(v[row] + self.kernel.noise, 1e-10))
        self._v[at] = v / pivot
        self.variance = np.maximum(self.variance - self._v[at] ** 2, 1e-12)

    def condition(self, rows: list[int], y: Floats) -> Conditioned:
        """The process given targets `y` of mean 0 at rows that were appended."""
        k = self._k[[self._at[row] for row in rows]]
        noise = self.kernel.noise
        while True:
            try:
                root = cholesky(k[:, rows] + noise * np.eye(len(rows)), lower=True)
                break
            except LinAlgError:
                noise *= 10.0
        alpha = cho_solve((root, True), y)
        amplitude = max(float(y @ alpha) / len(y), 1e-12)
        return Conditioned(k, root, alpha @ k, amplitude)


@dataclass(frozen=True, slots=True)
class Conditioned:
    """correlations: of targets' rows (in order) with all points; root: Cholesky, lower."""

    correlations: Floats
    root: Floats
    mean: Floats
    amplitude: float
