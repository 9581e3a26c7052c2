"""The roofline bound of a workload on a device, by the peak rates of the device's data sheet.

Notation: B bytes and F operations, peak bandwidth P_B and peak rate P_F of the operands' type. The
roofline bound is max(B / P_B, F / P_F). The spec of the device's backend has the peak rates
(`workers.backend_spec.Peak`). For a device without them the report shows GB/s and TFLOP/s only.
"""

from __future__ import annotations

from search_spaces.records import Config, Device, Workload
from workers import backend_kinds
from workers.backend_kinds import Peak

_HALF = ("float16", "bfloat16", "fp16", "bf16")
_EIGHT = ("float8", "fp8", "int8", "uint8")


def peak_of(device: Device) -> Peak | None:
    """The peak rates of a device, of a recorded one too; None where its backend has none."""
    backend = backend_kinds.spec_of_stored(device.kind)
    if backend.replayed:
        backend = backend_kinds.spec_of_stored(device.target.partition(":")[0])
    return backend.peak(device)


def roofline_us(
    device: Device, workload: Workload, config: Config, flops: float, moved_bytes: float
) -> float | None:
    """The roofline bound in microseconds; None for an unknown device."""
    peak = peak_of(device)
    if peak is None or (flops <= 0 and moved_bytes <= 0):
        return None
    rate = _rate(peak, workload, config)
    return max(moved_bytes / (peak.memory_gb_s * 1e3), flops / (rate * 1e6))


def _rate(peak: Peak, workload: Workload, config: Config) -> float:
    """TFLOP/s of the operand type that the config's precision or the workload's dtype names."""
    precision = f"{config.get('precision', '')}"
    if precision in ("tf32", "tf32x3") and peak.tf32:
        return peak.tf32 / (3 if precision == "tf32x3" else 1)
    words = (precision, *(f"{value}" for _, value in workload.dims))
    if any(word.startswith(_EIGHT) for word in words):
        return peak.eight_bit
    return peak.half if any(word.startswith(_HALF) for word in words) else peak.fp32
