"""Steps in series of log times: found where planted, and hardly ever where nothing changed."""

from __future__ import annotations

import numpy as np
import pytest

from results_db.step_detection import Point, between_runs, detect_steps

NOISE = between_runs("cuda")
#: Half of a confirmation's interval is 0.4 % at most; its standard error is half of that.
ERROR = 0.002


def simulate(generator, nights: int, noise: float, tails: str = "normal") -> np.ndarray:
    """Log times of equal runs; with outliers, every twentieth is four times as far off."""
    values = generator.normal(0, np.hypot(noise, ERROR), nights)
    return values * np.where(generator.random(nights) < 0.05, 4, 1) if tails != "normal" else values


def detect(values):
    return detect_steps([Point(float(value), ERROR) for value in values], NOISE)


@pytest.mark.parametrize(
    ("tails", "factor"),
    [("normal", 0.5), ("normal", 1.0), ("normal", 2.0), ("outliers", 0.5), ("outliers", 1.0)],
)
def test_no_more_than_one_false_alarm_in_500_task_nights(tails, factor):
    generator = np.random.default_rng(1)
    series = [simulate(generator, 40, factor * NOISE, tails) for _ in range(50)]
    assert sum(len(detect(values)) for values in series) <= 50 * 40 / 500


def test_equal_runs_resampled_a_thousand_times_have_a_step_in_one_percent():
    generator = np.random.default_rng(2)
    recorded = simulate(generator, 8, NOISE)
    resampled = [generator.choice(recorded, 6) for _ in range(1000)]
    assert sum(bool(detect(values)) for values in resampled) <= 10


@pytest.mark.parametrize("direction", [1, -1])
def test_a_step_of_three_percent_is_found_within_two_runs(direction):
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(300):
        at = int(generator.integers(4, 25))
        values = simulate(generator, at + 2, NOISE)
        values[at:] += direction * 0.03
        steps = detect(values)
        found += bool(steps) and steps[-1].found_at >= at
        assert all(step.change.value * direction > 0 for step in steps)
    assert found >= 0.95 * 300


@pytest.mark.parametrize("size", [-0.2, 0.2])
def test_where_and_how_large_a_clear_step_is(size):
    generator = np.random.default_rng(4)
    values = simulate(generator, 30, NOISE)
    values[17:] += size
    (step,) = detect(values)
    assert (step.at, step.found_at) == (17, 18)
    assert step.change.low <= size <= step.change.high


def test_two_steps_are_two():
    values = simulate(np.random.default_rng(5), 40, NOISE)
    values[12:] += 0.1
    values[25:] -= 0.1
    assert [(step.at, step.change.value > 0) for step in detect(values)] == [
        (12, True),
        (25, False),
    ]


def test_one_outlier_is_no_step():
    values = simulate(np.random.default_rng(6), 30, NOISE)
    values[20] += 0.5
    assert detect(values) == []


def test_a_small_step_among_outliers_is_found_by_the_third_point():
    before = [0.01, -0.01, 0.0]
    assert detect([*before, 0.03, 0.012]) == []
    (step,) = detect([*before, 0.03, 0.012, 0.031])
    assert (step.at, step.found_at) == (3, 5)
    assert detect([*before, 0.03, 0.002, 0.004]) == []


def test_a_step_is_measured_by_the_precision_of_its_points():
    """The same values of an imprecise measurement prove nothing."""
    values = [0.0, 0.001, -0.001, 0.0, 0.03, 0.03]
    assert len(detect_steps([Point(value) for value in values], NOISE)) == 1
    assert detect_steps([Point(value, 0.05) for value in values], NOISE) == []


@pytest.mark.parametrize("length", range(4))
def test_a_short_series_has_no_step(length):
    assert detect([0.0, 0.5, 0.5][:length]) == []
