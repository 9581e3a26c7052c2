"""The monitor's summary of device readings, and its behaviour without a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import wait_until

from workers.measure.monitor import Monitor, Sample, nvml_reader, reason_names


def _watched(samples):
    given_samples = iter(samples)
    last = samples[-1]
    with Monitor(lambda: next(given_samples, last)) as monitor:
        pass
    return monitor.summary()


def test_the_summary_of_two_readings(monkeypatch):
    monkeypatch.setattr("workers.measure.monitor._INTERVAL_S", 600.0)
    seen = _watched([Sample(1980.0, 300.0, 40.0, 0x1), Sample(1480.0, 690.0, 61.0, 0x4)])
    assert seen == {
        "sm_mhz": 1730.0,
        "sm_mhz_min": 1480.0,
        "power_w": 690.0,
        "temperature_c": 61.0,
        "throttle": "gpu_idle,sw_power_cap",
    }


def test_it_reads_while_the_block_runs():
    readings = []

    def read():
        readings.append(Sample(500.0 if len(readings) == 1 else 1000.0))
        return readings[-1]

    with Monitor(read) as monitor:
        wait_until(lambda: len(readings) >= 2)
    assert monitor.summary()["sm_mhz_min"] == 500.0


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_hardware_and_thermal_slow_downs_void_a_pass(bit):
    assert _watched([Sample(reasons=bit | 0x4)])["throttled"] == reason_names(bit)


def test_a_power_cap_is_only_recorded():
    assert "throttled" not in _watched([Sample(reasons=0x4)])


def test_errors_of_memory_are_read_now_and_then(monkeypatch):
    monkeypatch.setattr("workers.measure.monitor._INTERVAL_S", 600.0)
    assert _watched([Sample(memory_errors=2.0), Sample()])["memory_errors"] == 2.0
    assert "memory_errors" not in _watched([Sample(memory_errors=0.0), Sample()])


def test_a_card_without_readings_and_a_missing_card():
    assert _watched([Sample()]) == {"throttle": ""}
    with Monitor(None) as monitor:
        pass
    assert monitor.summary() == {}
    assert nvml_reader("GPU-00000000-0000-0000-0000-000000000000") is None


@given(st.integers(0, 0xFFFF))
def test_every_reason_has_a_name(bits):
    assert bool(reason_names(bits)) == bool(bits)


def test_an_error_inside_the_block_ends_the_monitor():
    with pytest.raises(KeyError), Monitor(Sample) as monitor:
        raise KeyError
    assert not monitor._thread.is_alive()
