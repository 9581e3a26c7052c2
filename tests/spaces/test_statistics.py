"""The statistics: laws, coverage, and error rates on simulated noise."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tuner.base.log_ratio import LogRatio
from tuner.base.statistics import (
    compare_pairs,
    geometric_mean,
    median_interval,
    relative_iqr,
    tie_set,
    trimmed_mean,
)

times = st.floats(0.5, 1e6)
pairs = st.lists(st.tuples(times, times), min_size=2, max_size=60)
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "undecided": "undecided"}


@given(pairs)
def test_swapping_the_sides_swaps_the_result(samples):
    a, b = zip(*samples, strict=True)
    there, back = compare_pairs(a, b), compare_pairs(b, a)
    assert there.value == pytest.approx(-back.value, abs=1e-9)
    assert there.low == pytest.approx(-back.high, abs=1e-9)
    assert there.low <= there.value <= there.high
    said = there.verdict()
    assert said == OPPOSITE[(-there).verdict()]


@given(pairs, st.lists(st.floats(0.1, 10), min_size=60, max_size=60))
def test_drift_shared_by_a_pair_cancels(samples, drift):
    a, b = zip(*samples, strict=True)
    still = compare_pairs(a, b)
    drifting = compare_pairs(
        [x * d for x, d in zip(a, drift, strict=False)],
        [x * d for x, d in zip(b, drift, strict=False)],
    )
    assert drifting.value == pytest.approx(still.value, abs=1e-9)
    assert drifting.high == pytest.approx(still.high, abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80))
def test_trimmed_mean_is_scipys(values):
    assert trimmed_mean(values) == pytest.approx(stats.trim_mean(values, 0.1), abs=1e-6)


@pytest.mark.parametrize("n", [3, 9, 40, 60])
def test_the_interval_has_its_nominal_coverage(n):
    rng = np.random.default_rng(n)
    truth, trials, covered = 0.013, 8000, 0
    noise = rng.normal(0, 0.01, (trials, 2, n))
    for a, b in noise:
        interval = compare_pairs(100 * np.exp(a + truth), 100 * np.exp(b))
        covered += interval.low <= truth <= interval.high
    assert 0.935 <= covered / trials <= 0.965


def _drift(rng, n, step_s, sd, tau_s):
    """A stationary Ornstein-Uhlenbeck process, a model of a clock under power and heat."""
    keep = math.exp(-step_s / tau_s)
    values = [rng.normal(0, sd)]
    for _ in range(n - 1):
        values.append(values[-1] * keep + rng.normal(0, sd * math.sqrt(1 - keep**2)))
    return np.array(values)


@pytest.mark.parametrize("tau_s", [2.0, 0.2])
def test_identical_variants_get_no_verdict_under_drift(tau_s):
    """Sequential measurements would; the last assertion shows it."""
    rng = np.random.default_rng(5)
    trials, declared, sequential = 300, 0, 0
    for _ in range(trials):
        drift_factor = np.exp(_drift(rng, 400, 0.005, 0.015, tau_s)) * 50
        sample = drift_factor * np.exp(rng.normal(0, 0.01, 400))
        one, other = sample[0:80:2], sample[1:80:2]
        ratio = compare_pairs(one, other)
        declared += ratio.verdict() in ("faster", "slower")
        sequential += stats.mannwhitneyu(sample[:200], sample[200:]).pvalue < 0.05
    assert declared / trials <= 0.01
    assert sequential / trials > 0.25


def test_planted_effects_are_found_with_the_right_sign():
    rng = np.random.default_rng(11)
    for effect, at_least in ((0.02, 0.95), (0.05, 1.0), (-0.03, 0.99)):
        found = wrong = 0
        for _ in range(400):
            drift = _drift(rng, 40, 0.001, 0.015, 0.5)
            a = np.exp(drift + effect + rng.normal(0, 0.01, 40))
            b = np.exp(drift + rng.normal(0, 0.01, 40))
            outlier = rng.random(40) < 0.02
            a[outlier] *= 1.1
            ratio = compare_pairs(a, b)
            said = ratio.verdict()
            found += said == ("slower" if effect > 0 else "faster")
            wrong += said == ("faster" if effect > 0 else "slower")
        assert wrong == 0
        assert found / 400 >= at_least


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.0, -0.005, 0.005), "same"),
        ((0.006, 0.003, 0.009), "same"),
        ((-0.05, -0.06, -0.04), "faster"),
        ((0.05, 0.04, 0.06), "slower"),
        ((0.05, -0.01, 0.11), "undecided"),
        ((0.008, 0.004, 0.012), "undecided"),
        ((0.0, -math.inf, math.inf), "undecided"),
    ],
)
def test_verdicts(interval, said):
    assert LogRatio(*interval).verdict() == said


def test_equal_readings_have_an_interval_of_the_quantum():
    without_quantum = compare_pairs([2.016] * 3, [2.048] * 3)
    with_quantum = compare_pairs([2.016] * 3, [2.048] * 3, quantum_us=0.032)
    assert without_quantum.high < 0
    assert with_quantum.low < 0 < with_quantum.high


def test_one_pair_has_an_infinite_interval_and_bad_pairs_are_refused():
    assert compare_pairs([2.0], [1.0]).high == math.inf
    for a, b in (([1.0], []), ([], []), ([0.0], [1.0]), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match=r"pairs|positive"):
            compare_pairs(a, b)


def test_the_tie_set_contains_indistinguishable_candidates():
    rng = np.random.default_rng(3)
    drift = np.exp(_drift(rng, 60, 0.01, 0.03, 0.3))
    speeds = {"twin": 1.002, "best": 1.0, "near": 1.008, "far": 1.05}
    field = {
        name: list(100 * speed * drift * np.exp(rng.normal(0, 0.003, 60)))
        for name, speed in speeds.items()
    }
    ties = tie_set(field)
    assert ties.winner == ties.members[0] == "best"
    assert set(ties.members) == {"best", "twin", "near"}
    assert ties.ratios["far"].low > math.log(1.01)
    assert tie_set({"only": [1.0, 2.0]}).members == ("only",)


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_tie_set_does_not_depend_on_the_order_of_candidates(order):
    rng = np.random.default_rng(1)
    samples = {name: list(np.exp(rng.normal(i * 0.02, 0.01, 20))) for i, name in enumerate("abcd")}
    assert tie_set({name: samples[name] for name in order}).members == tie_set(samples).members


def test_noise_widens_the_tie_set():
    rng = np.random.default_rng(2)
    samples = {str(i): list(np.exp(rng.normal(i * 0.03, 0.3, 10))) for i in range(4)}
    assert len(tie_set(samples).members) == 4


def test_tie_set_refuses_what_is_no_race():
    for field in ({}, {"a": [1.0], "b": []}):
        with pytest.raises(ValueError, match="at least one"):
            tie_set(field)


def test_who_left_early_is_compared_over_the_rounds_it_took_and_cannot_win():
    rng = np.random.default_rng(4)
    drift = np.exp(_drift(rng, 60, 0.01, 0.05, 0.1))
    noise = np.exp(rng.normal(0, 0.002, (3, 60)))
    best, near = list(100 * drift * noise[0]), list(100.6 * drift * noise[1])
    left = list(103 * drift[:12] * noise[2][:12])
    ties = tie_set({"left": left, "near": near, "best": best})
    assert ties.winner == "best"
    assert ties.members == ("best", "near")
    assert ties.equals == ("best",)
    assert ties.ratios["left"].value == pytest.approx(math.log(1.03), abs=0.004)
    assert tie_set({"short": [1.0, 1.0], "long": [2.0] * 4}).winner == "long"
    # Few and noisy samples do not make configs equal that were distinguished before.
    ties = tie_set({"left": [102.0, 130.0, 99.0], "best": [100.0, 101.0, 99.5, 100.0]}, looks=24)
    assert ties.members == ties.equals == ("best",)


def test_the_statistics_need_no_torch():
    modules = "tuner.base.statistics, workers.measure.race.samples, workers.backend_kinds"
    script = f"import {modules}, sys; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# -- summaries of one sample
# ------------------------------------------------------------------------
@given(st.lists(st.floats(1e-3, 1e6), min_size=6, max_size=400, unique=True))
def test_the_interval_of_the_median_covers_95_percent(samples):
    low, high = median_interval(samples)
    ordered = sorted(samples)
    dropped, n = ordered.index(low), len(samples)
    assert ordered.index(high) == n - 1 - dropped
    assert 1 - 2 * stats.binom.cdf(dropped, n, 0.5) >= 0.95 - 1e-12
    assert 1 - 2 * stats.binom.cdf(dropped + 1, n, 0.5) < 0.95


def test_few_samples_have_no_interval():
    assert median_interval([1.0] * 5) is None
    assert median_interval([1.0] * 5 + [math.nan] * 9) is None


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.floats(1e-3, 1e3))
def test_the_geometric_mean_scales_and_is_between_the_extremes(values, scale):
    mean = geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean([scale * value for value in values]) == pytest.approx(
        scale * mean, rel=1e-9
    )


def test_the_relative_iqr_is_that_of_numpy():
    assert relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.3]
    low, middle, high = np.percentile(values, [25, 50, 75])
    assert relative_iqr(values) == pytest.approx((high - low) / middle)
    assert relative_iqr([1.0] * 3) is None
    assert relative_iqr([0.0] * 4) is None
