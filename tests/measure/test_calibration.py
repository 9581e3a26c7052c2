"""Calibration of made-up readings and of this processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.measure.timers.calibration import calibrate_cpu, clock_overhead_us, step_us


def _readings(step_us, count=1024, longest_us=40.0, seed=0):
    drawn = np.random.default_rng(seed).uniform(1.0, longest_us, count)
    ticks = np.round(drawn / step_us) * step_us
    # As events give them: milliseconds in float32.
    return (ticks / 1000).astype(np.float32).astype(float) * 1000


@given(st.sampled_from([0.01, 0.032, 0.064, 0.5, 1.0, 1.024]), st.integers(0, 50))
def test_the_quantum_of_a_clock_is_found(step, seed):
    assert step_us(_readings(step, seed=seed)) == pytest.approx(step, rel=1e-4)


def test_a_few_outliers_do_not_hide_the_quantum():
    readings = _readings(0.032)
    readings[:5] += 0.013
    assert step_us(readings) == pytest.approx(0.032)


def test_a_clock_without_a_quantum_has_none():
    assert step_us(np.random.default_rng(0).uniform(1.0, 40.0, 1024)) == 0.0
    assert step_us([]) == 0.0
    assert step_us([2.0, 2.0, 2.0]) == 0.0


OWN = [2.0, 5.0, 10.0, 20.0]


@given(st.floats(0.0, 6.0), st.floats(-0.05, 0.05))
def test_the_overhead_does_not_depend_on_the_length(overhead, jitter):
    readings = [own + overhead + jitter * (-1) ** at for at, own in enumerate(OWN)]
    assert clock_overhead_us(readings, OWN) == pytest.approx(overhead, abs=0.05) or (
        overhead < abs(jitter)
    )


@pytest.mark.parametrize(
    "readings",
    [
        [2 + 0.0, 5 + 1.0, 10 + 2.0, 20 + 4.0],  # a share of the time, not an overhead
        [2 + 2.0, 5 + 2.0, 10 + 2.0, 20 + 3.5],  # bent
        [1.0, 4.0, 9.0, 19.0],  # less than the kernel takes
    ],
)
def test_readings_that_disagree_give_no_overhead(readings):
    assert clock_overhead_us(readings, OWN) is None
    assert clock_overhead_us(readings[:1], OWN[:1]) is None


def test_a_processor_is_calibrated_and_its_settings_are_preserved():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found = calibrate_cpu()
    assert found.quantum_us > 0
    assert found.overhead_us["perf_counter"] > 0
    assert found.copy_bytes_per_us > 0
    assert found.flops_per_us["float32"] > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
