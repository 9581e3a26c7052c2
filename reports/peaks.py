"""Spec-sheet ceilings of known devices, for the share of the roofline a winner reaches.

Sources: the vendors' data sheets (dense rates, without sparsity). A device that is not listed has
no share; its GB/s and TFLOP/s are still shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from search_spaces.records import Config, Device, Workload

_HALF = ("float16", "bfloat16", "fp16", "bf16")
_EIGHT = ("float8", "fp8", "int8", "uint8")


@dataclass(frozen=True, slots=True)
class Peak:
    """Device memory in GB/s; matrix units in TFLOP/s by operand (tf32 0.0: no such mode)."""

    memory_gb_s: float
    half: float
    eight_bit: float
    tf32: float
    fp32: float


_PEAKS: tuple[tuple[tuple[str, ...], Peak], ...] = (
    (("H200",), Peak(4800, 989.4, 1978.9, 494.7, 66.9)),
    (("H100", "NVL"), Peak(3900, 835.5, 1670.9, 417.7, 60.3)),
    (("H100", "PCIe"), Peak(2039, 756.4, 1512.9, 378.2, 51.2)),
    (("H100",), Peak(3350, 989.4, 1978.9, 494.7, 66.9)),
    (("A100", "40GB"), Peak(1555, 312.0, 624.0, 156.0, 19.5)),
    (("A100", "80GB PCIe"), Peak(1935, 312.0, 624.0, 156.0, 19.5)),
    (("A100",), Peak(2039, 312.0, 624.0, 156.0, 19.5)),
    (("B200",), Peak(8000, 2250.0, 4500.0, 1125.0, 75.0)),
    (("L40S",), Peak(864, 362.1, 733.0, 183.2, 91.6)),
    (("MI300X",), Peak(5300, 1307.4, 2614.9, 653.7, 163.4)),
)


def peak_of(device: Device) -> Peak | None:
    """The ceilings of a measurable GPU, found by words of its exact name."""
    if device.kind not in ("cuda", "hip"):
        return None
    for words, peak in _PEAKS:
        if all(re.search(rf"\b{word}\b", device.name) for word in words):
            return peak
    return None


def roofline_us(
    device: Device, workload: Workload, config: Config, flops: float, moved_bytes: float
) -> float | None:
    """The least time the device's ceilings allow, in microseconds; None when unknown."""
    peak = peak_of(device)
    if peak is None or (flops <= 0 and moved_bytes <= 0):
        return None
    rate = _rate(peak, workload, config)
    return max(moved_bytes / (peak.memory_gb_s * 1e3), flops / (rate * 1e6))


def _rate(peak: Peak, workload: Workload, config: Config) -> float:
    """TFLOP/s of the narrowest operands named by the config's precision or the workload's dtype."""
    precision = f"{config.get('precision', '')}"
    if precision in ("tf32", "tf32x3") and peak.tf32:
        return peak.tf32 / (3 if precision == "tf32x3" else 1)
    words = (precision, *(f"{value}" for _, value in workload.dims))
    if any(word.startswith(_EIGHT) for word in words):
        return peak.eight_bit
    return peak.half if any(word.startswith(_HALF) for word in words) else peak.fp32
