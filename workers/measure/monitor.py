"""Monitoring of the device during timing: clocks, power, temperature, throttle reasons.

Reads NVML and never changes a setting. Reasons are the bits of NVML's `nvmlClocksEventReasons`.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_INTERVAL_S = 0.05
_JOIN_S = 5.0
#: Readings between two of the errors of memory.
_BETWEEN_ERRORS = 64

_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
#: Reasons that void a pass. A power cap is the normal state of a large kernel and is only recorded.
_VOIDING = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the device; None where the device does not report a value."""

    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    #: NVML's bits.
    reasons: int = 0
    #: Errors of its memory that were not corrected, since the driver was loaded.
    memory_errors: float | None = None


def reason_names(bits: int) -> str:
    """The names of the reasons, separated by commas; unknown bits in hexadecimal."""
    names = [name for bit, name in _REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_REASONS):
        names.append(hex(unknown))
    return ",".join(names)


class Monitor:
    """Reads the device during its `with` block: at the start, 20 times a second, and at the end.

    read: takes one sample; None where the device cannot be monitored, and `summary` is then empty.
    """

    def __init__(self, read: Callable[[], Sample] | None) -> None:
        self._read = read
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Monitor:
        if self._read is not None:
            self._samples.append(self._read())
            self._thread = threading.Thread(target=self._sample, name="monitor", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._read is None or self._thread is None:
            return
        self._samples.append(self._read())
        self._stop.set()
        self._thread.join(_JOIN_S)

    def summary(self) -> Mapping[str, float | str]:
        """The values that are stored with a measurement.

        sm_mhz (median), sm_mhz_min, power_w and temperature_c (maximum), throttle (names of all
        reasons seen) and, only for a void pass, throttled (the names of the reasons that void it);
        memory_errors where there are any.
        """
        if not self._samples:
            return {}
        summary: dict[str, float | str] = {}
        clocks = [sample.sm_mhz for sample in self._samples if sample.sm_mhz is not None]
        if clocks:
            summary["sm_mhz"] = statistics.median(clocks)
            summary["sm_mhz_min"] = min(clocks)
        powers = [sample.power_w for sample in self._samples if sample.power_w is not None]
        if powers:
            summary["power_w"] = max(powers)
        temperatures = [s.temperature_c for s in self._samples if s.temperature_c is not None]
        if temperatures:
            summary["temperature_c"] = max(temperatures)
        if errors := max(sample.memory_errors or 0.0 for sample in self._samples):
            summary["memory_errors"] = errors
        reasons = 0
        for sample in self._samples:
            reasons |= sample.reasons
        summary["throttle"] = reason_names(reasons)
        if reasons & _VOIDING:
            summary["throttled"] = reason_names(reasons & _VOIDING)
        return summary

    def _sample(self) -> None:
        assert self._read is not None
        while not self._stop.wait(_INTERVAL_S):
            self._samples.append(self._read())


def nvml_reader(uuid: str) -> Callable[[], Sample] | None:
    """A function that takes one sample of the NVIDIA card with this UUID, None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # no driver, no library or no such card
        return None

    def query(function: Callable[..., Any], *args: object) -> float | None:
        with suppress(pynvml.NVMLError):
            return float(function(handle, *args))
        return None

    reads = itertools.count()

    def count_errors() -> float | None:
        """Now and then, since they rarely change and other readings must not wait for them."""
        if next(reads) % _BETWEEN_ERRORS:
            return None
        kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        return query(pynvml.nvmlDeviceGetTotalEccErrors, kind, counter)

    def read() -> Sample:
        power_mw = query(pynvml.nvmlDeviceGetPowerUsage)
        return Sample(
            sm_mhz=query(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=query(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            reasons=int(query(pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0),
            memory_errors=count_errors(),
        )

    return read
