"""A Gaussian process with a Matern-5/2 kernel and one length scale per column.

Notation: n results, m points, d columns.

    x (m, d)    coordinates of the points, every column about 1 wide
    y (n,)      targets at some rows of x, of mean 0
    l (d,)      length scales;  s  noise variance in units of the amplitude;  a  amplitude
    theta (d+1) ln(l), then ln(s)
    K(p, q)     (1 + r + r^2/3) exp(-r),  r = sqrt(5) |(p - q) / l|     correlation
    C           K(x_rows, x_rows) + s I = L L^T     (n, n), L lower triangular
    alpha       C^-1 y

    mean(p)     K(p, x_rows) alpha
    variance(p) a (1 - |L^-1 K(x_rows, p)|^2)
    a           y^T alpha / n, which maximises the likelihood for given l and s

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5.
The hyperparameters maximise the marginal likelihood times log-normal priors.

Why not scikit-learn, which the golden tests compare with: a search predicts at every point of the
space after each suggestion. `PosteriorVariance` then adds one row to the factor in O(n m), where a
library factorises and solves anew, and scikit-learn has neither priors nor a profiled amplitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROOT5 = math.sqrt(5.0)
#: Mean and standard deviation of the prior of ln(length scale).
_LENGTH_PRIOR = (0.0, 0.7)
#: Of the prior of ln(noise). Timings repeat within fractions of a percent, so this variance mostly
#: covers roughness that no smooth function follows.
_NOISE_PRIOR = (-6.0, 1.0)
#: Bounds of ln(length scale), and of ln(noise).
_BOUNDS = ((-3.0, 4.0), (-10.0, 0.0))


@dataclass(slots=True)
class Matern52:
    """The correlation function with its noise."""

    #: How many columns points have: d.
    columns: int
    #: ln of the length scales and, last, of the noise variance: shape (d + 1,).
    theta: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.theta = np.array([_LENGTH_PRIOR[0]] * self.columns + [_NOISE_PRIOR[0]])

    @property
    def noise(self) -> float:
        """Variance that is no function of the columns, in units of the amplitude."""
        return math.exp(self.theta[-1])

    def correlation(self, a: Floats, b: Floats) -> Floats:
        """K of every row of `a` with every row of `b`, without noise: shape (len(a), len(b))."""
        lengths = np.exp(self.theta[:-1])
        a, b = a / lengths, b / lengths
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T)
        r = _ROOT5 * np.sqrt(np.maximum(squares, 0.0))
        return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))

    def log_marginal_likelihood(self, x: Floats, y: Floats) -> float:
        """ln p(y | x, theta) with the amplitude that maximises it; -inf where C is singular."""
        found = _misfit(self.theta, _squared_gaps(x), y)
        constant = 0.5 * len(y) * (1.0 + math.log(2.0 * math.pi))
        return -math.inf if found is None else -found[0] - constant

    def fit(self, x: Floats, y: Floats, steps: int = 25) -> None:
        """Fit `theta` to targets `y` (n,) of mean 0 at `x` (n, d), from its present value."""
        from scipy.optimize import minimize

        gaps = _squared_gaps(x)
        found = minimize(  # type: ignore[call-overload]  # scipy-stubs want an array of shape (n,)
            lambda theta: loss(theta, gaps, y),
            self.theta,
            jac=True,
            method="L-BFGS-B",
            bounds=[_BOUNDS[0]] * self.columns + [_BOUNDS[1]],
            options={"maxiter": steps},
        )
        if np.all(np.isfinite(found.x)):
            self.theta = found.x


def _squared_gaps(x: Floats) -> list[Floats]:
    """Per column the squared differences of all pairs of rows: d arrays of shape (n, n)."""
    return [(x[:, [j]] - x[:, j]) ** 2 for j in range(x.shape[1])]


def loss(theta: Floats, gaps: list[Floats], y: Floats) -> tuple[float, Floats]:
    """Minus the log posterior of the hyperparameters, up to a constant, and its gradient.

    theta: (d + 1,). gaps: d arrays (n, n) of squared differences. y: (n,), of mean 0.
    """
    found = _misfit(theta, gaps, y)
    if found is None:
        return 1e10, np.zeros_like(theta)
    value, gradient = found
    away = np.append((theta[:-1] - _LENGTH_PRIOR[0]), theta[-1] - _NOISE_PRIOR[0])
    spread = np.append(np.full(len(gaps), _LENGTH_PRIOR[1]), _NOISE_PRIOR[1])
    return value + 0.5 * float(((away / spread) ** 2).sum()), gradient + away / spread**2


def _misfit(theta: Floats, gaps: list[Floats], y: Floats) -> tuple[float, Floats] | None:
    """Minus the log marginal likelihood with its best amplitude, up to a constant, and its gradient
    in theta; None where C is singular."""
    from scipy.linalg import cho_solve, cholesky

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
        return None
    alpha = cho_solve((root, True), y)
    amplitude = max(float(y @ alpha) / n, 1e-12)
    value = 0.5 * n * math.log(amplitude) + float(np.log(np.diag(root)).sum())
    # Twice the derivative of `value` with respect to each entry of C.
    sensitivity = cho_solve((root, True), np.eye(n)) - np.outer(alpha, alpha) / amplitude
    slope = sensitivity * ((5.0 / 3.0) * (1.0 + r) * decay)
    gradient = np.empty_like(theta)
    for j, (gap, weight) in enumerate(zip(gaps, weights, strict=True)):
        gradient[j] = 0.5 * weight * float((slope * gap).sum())
    gradient[-1] = 0.5 * noise * float(np.trace(sensitivity))
    return value, gradient


class PosteriorVariance:
    """The variance of the process at all m points, given which rows of them were asked.

    The variance depends on where targets are, not on their values, so pending rows count as well.
    One more row costs one product of shape (n,) by (n, m).
    """

    def __init__(self, kernel: Matern52, points: Floats, rows: list[int]) -> None:
        self.kernel = kernel
        #: Coordinates of all points: (m, d).
        self.points = points
        #: In units of the amplitude, without noise: (m,).
        self.variance: Floats = np.ones(len(points))
        self._at: dict[int, int] = {}
        capacity = 2 * len(rows) + 64
        # Per asked row its correlations K(x_row, x), and its row of L^-1 K(x_rows, x).
        self._k = np.empty((capacity, len(points)))
        self._v = np.empty((capacity, len(points)))
        for row in rows:
            self.append(row)

    def __contains__(self, row: int) -> bool:
        return row in self._at

    def append(self, row: int) -> None:
        """Ask at one more row: one step of an incomplete Cholesky factorisation."""
        if row in self._at:
            return
        at = self._at[row] = len(self._at)
        if at == len(self._k):
            self._k = np.vstack([self._k, np.empty_like(self._k)])
            self._v = np.vstack([self._v, np.empty_like(self._v)])
        self._k[at] = self.kernel.correlation(self.points[[row]], self.points)[0]
        v = self._k[at] - self._v[:at, row] @ self._v[:at]
        pivot = math.sqrt(max(v[row] + self.kernel.noise, 1e-10))
        self._v[at] = v / pivot
        self.variance = np.maximum(self.variance - self._v[at] ** 2, 1e-12)

    def mean_given(self, rows: list[int], y: Floats) -> PosteriorMean:
        """The mean at all points, given targets `y` (n,) of mean 0 at rows that were appended."""
        from scipy.linalg import cho_solve, cholesky

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
        return PosteriorMean(k, root, alpha @ k, amplitude)


@dataclass(frozen=True, slots=True)
class PosteriorMean:
    """The mean of the process given n targets, and the factor it was computed with."""

    #: K of the rows with targets, in their order, with all points: (n, m).
    correlations: Floats
    #: L, the lower Cholesky factor of C: (n, n).
    root: Floats
    #: At all points: (m,).
    mean: Floats
    #: a, the variance of the process before any target.
    amplitude: float
