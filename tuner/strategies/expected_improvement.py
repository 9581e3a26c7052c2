"""The logarithm of the expected improvement of a normal variable over a threshold.

Notation: z (any shape) is (best - mean) / deviation, Phi and phi are the standard normal
distribution function and density. The expected improvement below `best` is
deviation * h(z), with h(z) = z Phi(z) + phi(z).
"""

from __future__ import annotations

import math

import numpy as np

from tuner.strategies.gaussian_process import Floats


def log_h(z: Floats) -> Floats:
    """ln h(z), also far below 0, where both terms of h are smaller than their rounding errors.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, NeurIPS 2023.
    """
    from scipy.special import erfcx, ndtr

    density = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * math.sqrt(0.5 * math.pi) * erfcx(-low / math.sqrt(2.0))
    near = np.maximum(z, -1.0)
    plain = near * ndtr(near) + np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi)
    return np.where(z < -1.0, density + np.log(np.maximum(tail, 1e-17)), np.log(plain))
