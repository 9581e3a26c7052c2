"""Screening and racing on simulated time, with known truths under known noise."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.recorded.kernel import WORLDS
from search_spaces.recorded.space import Noise
from workers.backends.simulated_clock import SimulatedTimer, Source
from workers.measure.race.interleaving import Contestant
from workers.measure.race.rules import confirm, race, screen
from workers.measure.race.statistics import paired, tie_set, verdict
from workers.records import Protocol

PROTOCOL = Protocol(warm_ms=0.0)


def field(times_us, noise, seed="0"):
    """A clock and contestants of these true times under this noise."""
    timer = SimulatedTimer(noise, seed, "pass")
    sources = [Source(us, (), timer, f"{i}") for i, us in enumerate(times_us)]
    return timer, [Contestant(f"{i}", source.sample) for i, source in enumerate(sources)]


def test_who_cannot_be_the_best_costs_few_samples():
    timer, entrants = field([500.0, 70.0, 58.0, 51.0, 50.0], Noise(sigma=0.002))
    lanes = screen(timer, entrants[:-1], entrants[-1], PROTOCOL)
    assert [len(lane.samples_us) for lane in lanes[:3]] == [1, 3, 3]
    assert len(lanes[3].samples_us) == len(lanes[4].samples_us) >= 9


def test_a_slow_champion_keeps_nobody_alive():
    timer, entrants = field([50.0, 90.0, 500.0], Noise(sigma=0.002))
    lanes = screen(timer, entrants[:-1], entrants[-1], PROTOCOL)
    assert len(lanes[0].samples_us) == 24
    assert len(lanes[1].samples_us) == 1
    assert lanes[-1].contestant is entrants[-1]
    assert len(lanes[-1].samples_us) == 24


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 20),
    champion=st.booleans(),
    pairs=st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 9),
)
def test_samples_of_equal_positions_are_of_one_pass(count, champion, pairs, seed):
    """With no noise but a drift that all share, every paired ratio is the true one."""
    times = [50.0 * 1.05**i for i in range(count + champion)]
    timer, entrants = field(times, Noise(drift_sd=0.05, drift_tau_s=5.0), f"{seed}")
    head = entrants[:-1] if champion else entrants
    last = entrants[-1] if champion else None
    lanes = screen(timer, head, last, Protocol(warm_ms=0.0, pairs=tuple(sorted(pairs))))
    if not head:
        assert lanes == []
        return
    assert [lane.contestant for lane in lanes] == entrants
    longest = max(len(lane.samples_us) for lane in lanes)
    assert longest in pairs
    for lane, us in zip(lanes, times, strict=True):
        reference = lanes[-1].samples_us if champion else lanes[0].samples_us
        for mine, theirs in zip(lane.samples_us, reference, strict=False):
            expected = math.log(us / (times[-1] if champion else times[0]))
            # One pass of twenty takes some 2 ms, in which the drift moves by about 0.1 %.
            assert math.log(mine / theirs) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("world", ["W1", "W3", "W5", "W6"])
def test_the_race_finds_the_best_and_drops_the_rest(world):
    missed = 0
    for seed in range(20):
        timer, entrants = field([51.5, 50.0, 50.6, 53.0, 60.0], WORLDS[world].noise, f"{seed}")
        lanes = race(timer, entrants, PROTOCOL)
        ties = tie_set({lane.contestant.name: lane.samples_us for lane in lanes})
        missed += ties.winner != "1"
        assert len(lanes[4].samples_us) < len(lanes[1].samples_us) or not lanes[4].alive
    assert missed <= 1


def test_identical_twins_end_the_race_early_and_stay_equals():
    sure = 0
    for seed in range(40):
        timer, entrants = field([50.0, 50.0], WORLDS["W1"].noise, f"{seed}")
        lanes = race(timer, entrants, PROTOCOL)
        samples = {lane.contestant.name: lane.samples_us for lane in lanes}
        ties = tie_set(samples, looks=PROTOCOL.rounds)
        sure += len(ties.equals) == 2
        for ratio in ties.ratios.values():
            assert verdict(ratio.log_ratio, ratio.low, ratio.high) not in ("faster", "slower")
        assert len(samples["0"]) < PROTOCOL.rounds * PROTOCOL.round_pairs
    assert sure >= 38


def test_a_field_of_one_takes_one_round_and_of_none_nothing():
    timer, entrants = field([50.0], Noise(sigma=0.01))
    (lane,) = race(timer, entrants, PROTOCOL)
    assert len(lane.samples_us) == PROTOCOL.round_pairs
    assert race(timer, [], PROTOCOL) == []


class _Swinging(SimulatedTimer):
    """A clock under which the first of two is faster at first and slower later on."""

    swing_s = 0.0

    def warm(self, contestant, warm_ms, *, steady=False):
        return self.swing_s

    def collect(self, contestants, orders):
        time.sleep(0.02)
        rows = super().collect(contestants, orders)
        for row, contestant in zip(rows, contestants, strict=True):
            if contestant.name == "0":
                row[:] = [us * (0.998 if self.device_s < 0.01 else 1.02) for us in row]
        return rows


@pytest.mark.parametrize("compare", [race, confirm])
def test_a_comparison_lasts_for_a_swing_of_the_clock(compare):
    def fastest(swing_s):
        timer = _Swinging(Noise(sigma=0.0005), "0", "pass")
        timer.swing_s = swing_s
        sources = [Source(50.0, (), timer, name) for name in "01"]
        field_ = [Contestant(f"{i}", source.sample) for i, source in enumerate(sources)]
        one, other = compare(timer, field_, Protocol(warm_ms=0.0, final_pairs=32))
        both = min(len(one.samples_us), len(other.samples_us))
        ratio = paired(one.samples_us[:both], other.samples_us[:both])
        return "0" if ratio.log_ratio < 0 else "1"

    assert fastest(0.0) == "0"
    assert fastest(0.3) == "1"


def test_a_confirmation_goes_on_until_close_ratios_are_known():
    protocol = Protocol(warm_ms=0.0, final_pairs=16)
    timer, entrants = field([50.0, 50.2, 80.0], Noise(sigma=0.01))
    winner, close, far = confirm(timer, entrants, protocol)
    assert len(far.samples_us) == 16
    assert 16 < len(close.samples_us) == len(winner.samples_us) <= 8 * 16
    timer, entrants = field([50.0, 50.2], Noise(sigma=0.0005))
    assert [len(lane.samples_us) for lane in confirm(timer, entrants, protocol)] == [16, 16]
    assert confirm(timer, [], protocol) == []


@pytest.mark.parametrize("sigma", [0.005, 0.03])
def test_stopping_by_width_alone_declares_no_twin_different(sigma):
    declared = 0
    for seed in range(60):
        noise = Noise(sigma=sigma, outlier_share=0.05, outlier_mean=0.1)
        timer, entrants = field([4.0, 4.0], noise, f"{seed}")
        one, other = confirm(timer, entrants, PROTOCOL)
        ratio = paired(other.samples_us, one.samples_us)
        declared += verdict(ratio.log_ratio, ratio.low, ratio.high) in ("faster", "slower")
    assert declared == 0
