"""How far off a model's own predictions were: the factor by which its deviations are widened.

Notation: a prediction made while a config was pending has mean m and variance v, in units of the
target of that moment. Its result gives the target t and the squared error e = (t - m)^2 / v. The
calibration error is sqrt((sum min(e, 16) + 8) / (k + 8)) over the latest k <= 30 results, and at
least 1. The constant 8 stands for as many predictions with an error of exactly one deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

#: The latest predictions that count, and the greatest squared error of one of them.
_RECENT, _WORST_ERROR = 30, 16.0
#: How many predictions with an error of one deviation are assumed before any is known.
_PRIOR = 8


@dataclass(frozen=True, slots=True)
class TargetScale:
    """The mapping from scores to the targets of a model: ln(1 + excess) above the best score.

    What is far slower than the best need not be resolved, so excess over the best is compressed.
    """

    #: The best score: the lowest.
    low: float
    #: The excess over the best score at which compression begins, in units of the score.
    scale: float
    #: The target of the best score.
    best: float
    #: The deviation by which compressed excesses were divided.
    unit: float

    def target(self, score: float) -> float:
        """The target of a later score, which may be below `low`; not compressed there."""
        excess = (score - self.low) / self.scale
        return self.best + (math.log1p(excess) if excess > 0 else excess) / self.unit


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted target."""

    mean: float
    variance: float
    #: The scale of targets when the prediction was made.
    scale: TargetScale

    def squared_error(self, score: float) -> float:
        return (self.scale.target(score) - self.mean) ** 2 / self.variance


class DeviationScale:
    """Predictions of pending points, and the errors of those whose result is known."""

    def __init__(self) -> None:
        self._pending: dict[int, Prediction] = {}
        self._errors: list[float] = []

    def predict(self, number: int, prediction: Prediction) -> None:
        self._pending[number] = prediction

    def drop(self, number: int) -> None:
        """The point gets no result, or a failure."""
        self._pending.pop(number, None)

    def observe(self, number: int, score: float) -> None:
        """Compare a result with its prediction, if there is one."""
        prediction = self._pending.pop(number, None)
        if prediction is not None:
            self._errors.append(prediction.squared_error(score))

    def error(self) -> float:
        """Root mean square error of the latest predictions, in their own deviations; at least 1."""
        recent = np.array(self._errors[-_RECENT:])
        total = float(np.minimum(recent, _WORST_ERROR).sum())
        return max(1.0, math.sqrt((total + _PRIOR) / (len(recent) + _PRIOR)))
