"""What the card did beside the timing: clocks, power, temperature, throttle reasons.

Reads NVML and never changes a setting. Reasons are NVML's `nvmlClocksEventReasons`.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_INTERVAL_S = 0.05
_JOIN_S = 5.0

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
#: a pass under these says nothing about its candidates; a power cap is normal and only named
_VOIDING = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the card; None is what it would not tell. reasons: NVML's bits."""

    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: int = 0


def reason_names(bits: int) -> str:
    """The reasons in words, comma-separated; unknown bits in hexadecimal."""
    names = [name for bit, name in _REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_REASONS):
        names.append(hex(unknown))
    return ",".join(names)


class Monitor:
    """Samples while its `with` block runs: at the start, 20 times a second, and at the end.

    look: takes one sample; None where there is nothing to look at, and `summary` is then empty.
    """

    def __init__(self, look: Callable[[], Sample] | None) -> None:
        self._look = look
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Monitor:
        if self._look is not None:
            self._samples.append(self._look())
            self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._look is None or self._thread is None:
            return
        self._samples.append(self._look())
        self._stop.set()
        self._thread.join(_JOIN_S)

    def summary(self) -> Mapping[str, float | str]:
        """sm_mhz (median), sm_mhz_min, power_w and temperature_c (highest), throttle (all reasons
        seen, in words) and, only when the pass is void, throttled (the reasons that void it)."""
        if not self._samples:
            return {}
        found: dict[str, float | str] = {}
        clocks = [sample.sm_mhz for sample in self._samples if sample.sm_mhz is not None]
        if clocks:
            found["sm_mhz"] = statistics.median(clocks)
            found["sm_mhz_min"] = min(clocks)
        powers = [sample.power_w for sample in self._samples if sample.power_w is not None]
        if powers:
            found["power_w"] = max(powers)
        heats = [s.temperature_c for s in self._samples if s.temperature_c is not None]
        if heats:
            found["temperature_c"] = max(heats)
        reasons = 0
        for sample in self._samples:
            reasons |= sample.reasons
        found["throttle"] = reason_names(reasons)
        if reasons & _VOIDING:
            found["throttled"] = reason_names(reasons & _VOIDING)
        return found

    def _watch(self) -> None:
        assert self._look is not None
        while not self._stop.wait(_INTERVAL_S):
            self._samples.append(self._look())


def nvml_look(uuid: str) -> Callable[[], Sample] | None:
    """A function that takes one sample of the NVIDIA card with this UUID, None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # no driver, no library, no such card: all the same here
        return None

    def ask(question: Callable[..., Any], *args: object) -> float | None:
        with suppress(pynvml.NVMLError):
            return float(question(handle, *args))
        return None

    def look() -> Sample:
        power_mw = ask(pynvml.nvmlDeviceGetPowerUsage)
        return Sample(
            sm_mhz=ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            reasons=int(ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0),
        )

    return look
