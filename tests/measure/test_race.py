"""Screening and racing on simulated time, with known truths under known noise."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_spaces import SCENARIOS

from search_spaces.recorded.entries import Noise
from tuner.base.statistics import compare_pairs, tie_set
from workers.backends.simulated.backend import SampleSource, SimulatedTimer
from workers.job_records import MeasurementProtocol, Mode
from workers.measure.race.confirmation import confirm
from workers.measure.race.elimination import race, race_looks
from workers.measure.race.modes import compare
from workers.measure.race.screening import screen, was_dropped
from workers.measure.timers.timer import Candidate

PROTOCOL = MeasurementProtocol(warm_ms=0.0)


def simulated(times_us, noise, seed="0", baselines=0):
    """A simulated timer, and candidates with these true times under this noise.

    baselines: how many of them, the last ones, are baselines.
    """
    timer = SimulatedTimer(noise, seed, "pass")
    sources = [SampleSource(us, (), timer, f"{i}") for i, us in enumerate(times_us)]
    variants = len(sources) - baselines
    return timer, [
        Candidate(f"{i}", source.sample, baseline=i >= variants) for i, source in enumerate(sources)
    ]


def test_a_slow_candidate_costs_few_samples():
    timer, candidates = simulated([500.0, 70.0, 58.0, 51.0, 50.0], Noise(sigma=0.002))
    entries = screen(timer, candidates[:-1], candidates[-1], PROTOCOL)
    assert [len(entry.samples_us) for entry in entries[:3]] == [1, 3, 3]
    assert len(entries[3].samples_us) == len(entries[4].samples_us) >= 9


def test_long_kernels_are_screened_with_fewer_samples():
    for us, most in ((2000.0, 12), (900.0, 24)):
        timer, candidates = simulated([us, 1.01 * us, 1.3 * us], Noise(sigma=0.002))
        entries = screen(timer, candidates[:-1], candidates[-1], PROTOCOL)
        assert [len(entry.samples_us) for entry in entries] == [most, most, most]
    for times, counts in (
        ([2000.0, 2020.0, 2240.0, 2500.0], [12, 12, 3, 1]),
        ([200.0, 202.0, 224.0, 250.0], [24, 24, 9, 3]),
    ):
        timer, candidates = simulated(times[::-1], Noise(sigma=0.002))
        entries = screen(timer, candidates[:-1], candidates[-1], PROTOCOL)
        assert [len(entry.samples_us) for entry in entries[::-1]] == counts
    timer, candidates = simulated([20_000.0, 20_200.0], Noise(sigma=0.002))
    entries = screen(timer, candidates, None, PROTOCOL)
    assert [len(entry.samples_us) for entry in entries] == [6, 6]
    timer, candidates = simulated([2000.0, 1990.0], Noise(sigma=0.002))
    few = MeasurementProtocol(warm_ms=0.0, pairs=(3, 6))
    assert [len(e.samples_us) for e in screen(timer, candidates, None, few)] == [6, 6]


class RecordingTimer(SimulatedTimer):
    """Knows how many passes there were."""

    passes = 0

    def collect(self, candidates, orders):
        self.passes += len(orders)
        return super().collect(candidates, orders)


@settings(max_examples=200)
@given(
    times=st.lists(st.sampled_from([800.0, 990.0, 1010.0, 1400.0, 11_000.0]), min_size=1),
    incumbent=st.booleans(),
    sigma=st.sampled_from([0.002, 0.1, 0.5]),
    pairs=st.sampled_from([(1, 3, 9, 24), (3, 6), (2, 30)]),
    seed=st.integers(0, 9),
)
def test_samples_tell_whether_a_screening_dropped_their_candidate(
    times, incumbent, sigma, pairs, seed
):
    """A burst of noise may make a short kernel's screening one of a long kernel: on a busy machine
    the best config of a search, with 12 samples, was taken for one that was dropped."""
    timer = RecordingTimer(Noise(sigma=sigma), f"{seed}", "pass")
    candidates = [
        Candidate(f"{i}", SampleSource(us, (), timer, f"{i}").sample) for i, us in enumerate(times)
    ]
    last = candidates.pop() if incumbent and len(candidates) > 1 else None
    protocol = MeasurementProtocol(warm_ms=0.0, pairs=pairs)
    entries = screen(timer, candidates, last, protocol)
    beside = entries[-1].samples_us if last else ()
    for entry in entries[: len(candidates)]:
        taken = len(entry.samples_us)
        dropped = was_dropped(protocol, entry.samples_us, beside[:taken])
        assert dropped == (taken < timer.passes or not entry.active)


def test_a_slow_incumbent_does_not_keep_slow_candidates():
    timer, candidates = simulated([50.0, 90.0, 500.0], Noise(sigma=0.002))
    entries = screen(timer, candidates[:-1], candidates[-1], PROTOCOL)
    assert len(entries[0].samples_us) == 24
    assert len(entries[1].samples_us) == 1
    assert entries[-1].candidate is candidates[-1]
    assert len(entries[-1].samples_us) == 24


@settings(max_examples=40)
@given(
    count=st.integers(0, 20),
    incumbent=st.booleans(),
    pairs=st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 9),
)
def test_samples_of_equal_positions_are_of_one_pass(count, incumbent, pairs, seed):
    """If the only noise is a common drift, every paired ratio is the true one."""
    times = [50.0 * 1.05**i for i in range(count + incumbent)]
    timer, candidates = simulated(times, Noise(drift_sd=0.05, drift_tau_s=5.0), f"{seed}")
    head = candidates[:-1] if incumbent else candidates
    last = candidates[-1] if incumbent else None
    entries = screen(
        timer, head, last, MeasurementProtocol(warm_ms=0.0, pairs=tuple(sorted(pairs)))
    )
    if not head:
        assert entries == []
        return
    assert [entry.candidate for entry in entries] == candidates
    longest = max(len(entry.samples_us) for entry in entries)
    assert longest in pairs
    for entry, us in zip(entries, times, strict=True):
        reference = entries[-1].samples_us if incumbent else entries[0].samples_us
        for mine, theirs in zip(entry.samples_us, reference, strict=False):
            expected = math.log(us / (times[-1] if incumbent else times[0]))
            # One pass of twenty takes about 2 ms, in which the drift changes by about 0.1 %.
            assert math.log(mine / theirs) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("scenario", ["W1", "W3", "W5", "W6"])
def test_the_race_finds_the_best_and_drops_the_rest(scenario):
    missed = 0
    for seed in range(20):
        timer, candidates = simulated(
            [51.5, 50.0, 50.6, 53.0, 60.0], SCENARIOS[scenario].noise, f"{seed}"
        )
        entries = race(timer, candidates, PROTOCOL)
        ties = tie_set({entry.candidate.name: entry.samples_us for entry in entries})
        missed += ties.winner != "1"
        assert len(entries[4].samples_us) < len(entries[1].samples_us) or not entries[4].active
    assert missed <= 1


def test_identical_candidates_end_the_race_early_and_are_equals():
    both_equal = 0
    for seed in range(40):
        timer, candidates = simulated([50.0, 50.0], SCENARIOS["W1"].noise, f"{seed}")
        entries = race(timer, candidates, PROTOCOL)
        samples = {entry.candidate.name: entry.samples_us for entry in entries}
        ties = tie_set(samples, looks=len(race_looks(PROTOCOL)))
        both_equal += len(ties.equals) == 2
        for ratio in ties.ratios.values():
            assert ratio.verdict() not in ("faster", "slower")
        assert len(samples["0"]) < PROTOCOL.rounds * PROTOCOL.round_pairs
    assert both_equal >= 38


def test_a_race_drops_the_slowest_within_its_first_round():
    noise = Noise(sigma=0.003)
    timer, candidates = simulated([2000.0, 2010.0, 2100.0, 2600.0], noise)
    first, second, third, last = race(timer, candidates, PROTOCOL)
    assert len(last.samples_us) == 4
    assert len(third.samples_us) == 8
    assert len(second.samples_us) >= PROTOCOL.round_pairs
    assert len(first.samples_us) >= PROTOCOL.round_pairs


def test_one_candidate_takes_one_round_and_none_takes_nothing():
    timer, candidates = simulated([50.0], Noise(sigma=0.01))
    (entry,) = race(timer, candidates, PROTOCOL)
    assert len(entry.samples_us) == PROTOCOL.round_pairs
    assert race(timer, [], PROTOCOL) == []


class _Throttling(SimulatedTimer):
    """A timer for which candidate 0 is faster at first and slower once the device throttles."""

    window_s = 0.0

    def warm(self, candidate, warm_ms, *, steady=False):
        return self.window_s

    now_s = 0.0

    def collect(self, candidates, orders):
        self.now_s += 0.02
        rows = super().collect(candidates, orders)
        for row, candidate in zip(rows, candidates, strict=True):
            if candidate.name == "0":
                row[:] = [us * (0.998 if self.device_s < 0.01 else 1.02) for us in row]
        return rows


@pytest.mark.parametrize("compare", [race, confirm])
def test_a_comparison_covers_the_throttling_window(compare, monkeypatch):
    def fastest(window_s):
        timer = _Throttling(Noise(sigma=0.0005), "0", "pass")
        timer.window_s = window_s
        clock = SimpleNamespace(monotonic=lambda: timer.now_s)
        monkeypatch.setattr(sys.modules[compare.__module__], "time", clock)
        sources = [SampleSource(50.0, (), timer, name) for name in "01"]
        candidates = [Candidate(f"{i}", source.sample) for i, source in enumerate(sources)]
        one, other = compare(timer, candidates, MeasurementProtocol(warm_ms=0.0, final_pairs=32))
        both = min(len(one.samples_us), len(other.samples_us))
        ratio = compare_pairs(one.samples_us[:both], other.samples_us[:both])
        return "0" if ratio.value < 0 else "1"

    assert fastest(0.0) == "0"
    assert fastest(0.3) == "1"


def test_a_confirmation_samples_until_close_ratios_are_precise():
    protocol = MeasurementProtocol(warm_ms=0.0, final_pairs=16)
    times = [50.0, 50.2, 80.0, 80.0]
    timer, candidates = simulated(times, Noise(sigma=0.01), baselines=1)
    winner, close, far, baseline = confirm(timer, candidates, protocol)
    assert len(far.samples_us) == 16
    assert len(baseline.samples_us) < 16
    assert 16 < len(close.samples_us) == len(winner.samples_us) <= 8 * 16
    timer, candidates = simulated([50.0, 50.2], Noise(sigma=0.0005))
    assert [len(entry.samples_us) for entry in confirm(timer, candidates, protocol)] == [16, 16]
    assert confirm(timer, [], protocol) == []


@settings(max_examples=60)
@given(
    logs=st.lists(st.floats(-1.0, 4.0), max_size=6),
    sigma=st.floats(0.0005, 0.03),
    seed=st.integers(0, 99),
)
def test_a_confirmation_finishes_only_clearly_different_candidates_early(logs, sigma, seed):
    noise = Noise(sigma=sigma, outlier_share=0.02, outlier_mean=0.05)
    times = [50.0, *(50.0 * math.exp(log) for log in logs)]
    timer, candidates = simulated(times, noise, f"{seed}", baselines=len(logs))
    winner, *others = confirm(timer, candidates, PROTOCOL)
    assert len(winner.samples_us) >= 64
    for entry, log in zip(others, logs, strict=True):
        n = len(entry.samples_us)
        assert n in (3, 8, 16, 32) or (n % 64 == 0 and n <= 8 * 64)
        if n < 64:
            ratio = compare_pairs(entry.samples_us, winner.samples_us[:n])
            assert abs(ratio.value - log) < abs(log) / 2
            assert ratio.high - ratio.low < abs(ratio.value)
            assert abs(log) > 0.025


@settings(max_examples=60)
@given(log=st.floats(-1.0, 4.0), sigma=st.floats(0.0005, 0.03), seed=st.integers(0, 99))
def test_a_variant_is_finished_early_only_if_its_ratio_is_precise(log, sigma, seed):
    noise = Noise(sigma=sigma, outlier_share=0.02, outlier_mean=0.05)
    timer, candidates = simulated([50.0, 50.0 * math.exp(log)], noise, f"{seed}")
    winner, other = confirm(timer, candidates, PROTOCOL)
    n = len(other.samples_us)
    if n < 64:
        ratio = compare_pairs(other.samples_us, winner.samples_us[:n])
        assert ratio.half_width <= PROTOCOL.precision
        assert abs(ratio.value) >= 0.05


@pytest.mark.parametrize("baselines", [0, 1])
def test_a_very_slow_candidate_costs_a_few_passes(baselines):
    times = [2100.0, 2105.0, 210_000.0]
    timer, candidates = simulated(times, Noise(sigma=0.01), baselines=baselines)
    winner, close, slow = confirm(timer, candidates, PROTOCOL)
    assert len(slow.samples_us) == 3
    assert len(close.samples_us) == len(winner.samples_us) >= 64


def test_a_slow_baseline_costs_three_passes():
    times = [2100.0, 2105.0, 110_000.0]
    timer, candidates = simulated(times, Noise(sigma=0.01), baselines=1)
    winner, close, slow = confirm(timer, candidates, PROTOCOL)
    assert len(slow.samples_us) == 3
    assert len(close.samples_us) == len(winner.samples_us) >= 64
    ratio = compare_pairs(slow.samples_us, winner.samples_us[:3])
    assert ratio.verdict() == "slower"


@pytest.mark.parametrize("gap", [0.02, 0.06, 0.3])
def test_planted_slow_downs_are_found(gap):
    found = 0
    for seed in range(30):
        noise = Noise(sigma=0.01, outlier_share=0.02, outlier_mean=0.1)
        timer, candidates = simulated([50.0, 50.0 * (1 + gap)], noise, f"{seed}")
        one, other = confirm(timer, candidates, PROTOCOL)
        ratio = compare_pairs(other.samples_us, one.samples_us[: len(other.samples_us)])
        found += ratio.verdict() == "slower"
    assert found >= 29


@pytest.mark.parametrize("sigma", [0.005, 0.03])
def test_stopping_on_width_gives_identical_candidates_no_verdict(sigma):
    declared = 0
    for seed in range(60):
        noise = Noise(sigma=sigma, outlier_share=0.05, outlier_mean=0.1)
        timer, candidates = simulated([4.0, 4.0], noise, f"{seed}")
        one, other = confirm(timer, candidates, PROTOCOL)
        ratio = compare_pairs(other.samples_us, one.samples_us)
        declared += ratio.verdict() in ("faster", "slower")
    assert declared == 0


# -- slow kernels under a power limit --------------------------------------------------------------
#: Clocks that change by percents from one launch of 50 ms to the next, and while the card heats up.
POWER_LIMIT = Noise(
    sigma=0.01, outlier_share=0.02, outlier_mean=0.05, drift_sd=0.04, drift_tau_s=0.2, ramp=0.05
)


def confirmed(times_us, seed, baselines=0):
    """The ratios of a confirmation under the power limit, its samples and its seconds."""
    timer, candidates = simulated(times_us, POWER_LIMIT, f"{seed}", baselines)
    taken = [entry.samples_us for entry in confirm(timer, candidates, PROTOCOL)]
    ratios = [compare(Mode.CONFIRM, row, taken[0], PROTOCOL, 0.0) for row in taken[1:]]
    return ratios, taken, timer.device_s


@settings(max_examples=40)
@given(
    times_ms=st.lists(st.floats(10.0, 120.0), min_size=2, max_size=6),
    baselines=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_comparison_of_slow_kernels_keeps_its_time_budget(times_ms, baselines, seed):
    times_us = [1000 * ms for ms in times_ms]
    _, taken, took_s = confirmed(times_us, seed, min(baselines, len(times_us) - 1))
    least_s = 8 * sum(times_ms) / 1000
    assert took_s < 1.5 * max(6.0, least_s)
    assert max(map(len, taken)) == len(taken[0]) >= 8
    timer, candidates = simulated(times_us, POWER_LIMIT, f"{seed}")
    race(timer, candidates, PROTOCOL)
    assert timer.device_s < 1.5 * max(6.0, least_s)


def test_a_slow_baseline_leaves_the_other_candidates_half_of_the_budget():
    times_us = [50_000.0, 50_500.0, 5_000_000.0]
    _, (winner, close, slow), _ = confirmed(times_us, 3, baselines=1)
    assert len(slow) == 3
    assert len(winner) == len(close) >= 24


def test_identical_slow_candidates_get_no_verdict_and_intervals_hold_the_truth():
    declared, covered, count = 0, 0, 0
    gaps = [0.0, 0.02, 0.03, 0.1]
    for seed in range(200):
        ratios, _, _ = confirmed([50e3 * (1 + gap) for gap in [0.0, *gaps]], seed)
        first = ratios[0]
        declared += first.verdict() in ("faster", "slower")
        for ratio, gap in zip(ratios, gaps, strict=True):
            covered += ratio.low <= math.log1p(gap) <= ratio.high
            count += 1
    assert declared <= 1
    assert covered >= 0.95 * count


def test_planted_slow_downs_of_slow_kernels_are_found():
    found = {gap: 0 for gap in (0.05, 0.1)}
    for seed in range(30):
        ratios, _, _ = confirmed([50e3 * (1 + gap) for gap in (0.0, *found)], seed)
        for gap, ratio in zip(found, ratios, strict=True):
            found[gap] += ratio.verdict() == "slower"
    assert found[0.05] >= 25
    assert found[0.1] == 30


def test_an_imprecise_ratio_has_a_wider_interval_and_a_precise_one_does_not():
    for sigma, wider in ((0.0005, False), (0.03, True)):
        timer, candidates = simulated([50e3, 50.1e3], Noise(sigma=sigma), "1")
        one, other = (entry.samples_us for entry in confirm(timer, candidates, PROTOCOL))
        plain = compare_pairs(other, one)
        reported = compare(Mode.CONFIRM, other, one, PROTOCOL, 0.0)
        assert reported.value == plain.value
        assert (reported.high > plain.high, reported.low < plain.low) == (wider, wider)
        assert compare(Mode.RACE, other, one, PROTOCOL, 0.0) == plain
