"""The roofline bound: the least time a device can take for a task, from its calibration.

Notation: B is the task's least traffic in bytes, H the bytes that caches may hold at the start, W
the copy bandwidth in bytes/us, F the flops and P the matrix peak in flops/us of the fastest
precision that the tolerance admits. The bound is max((B - H) / W, F / (1.25 P)) in us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from search_spaces.kernel import Cost, Tolerance
from workers.job_records import Calibration

#: How much faster than the calibrated peak a product may be. Calibration ran under the power limit;
#: a short product runs at the full clock (1980 against 1485 MHz on an H200).
_ABOVE_PEAK = 1.25
#: Relative error of a product of inputs rounded to a format, in units of that format's rounding. A
#: variant may use any format whose error is inside the tolerance.
_ROUNDINGS = 0.3
_UNIT_ROUNDING = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: Rounding of the finest 8-bit format. No calibration has the peak of 8-bit formats.
_EIGHT_BITS = 2.0**-4
#: Formats that are always admissible for inputs of a dtype. A product split into parts of a coarser
#: format (three tf32 products for one of float32) is not faster than one product of that format.
_ALWAYS = {
    "float32": ("float32", "tf32"),
    "float16": ("float16", "bfloat16"),
    "bfloat16": ("float16", "bfloat16"),
}


def roofline_us(
    cost: Cost,
    dtypes: Iterable[str],
    tolerance: Tolerance,
    calibration: Calibration,
    *,
    held_bytes: int | None,
) -> float:
    """The bound in us; 0.0 when it is unknown, such as for values missing from the calibration.

    dtypes: of the inputs, torch's names. held_bytes: H above; None where caches may hold all of the
    traffic. Reading alone is up to 8 % faster than a copy on an H200, so callers leave a margin of
    10 % below the bound.
    """
    bandwidth_us = 0.0
    if held_bytes is not None and calibration.copy_bytes_per_us > 0:
        bandwidth_us = max(0.0, cost.bytes - held_bytes) / calibration.copy_bytes_per_us
    products_us = at_peak_us(cost, dtypes, tolerance, calibration)
    return max(bandwidth_us, (products_us or 0.0) / _ABOVE_PEAK)


def at_peak_us(
    cost: Cost, dtypes: Iterable[str], tolerance: Tolerance, calibration: Calibration
) -> float | None:
    """Time of the task's flops at the matrix peak in us; None when the peak is unknown."""
    peak = peak_flops_per_us(dtypes, tolerance, calibration.flops_per_us)
    return cost.flops / peak if peak else None


def peak_flops_per_us(
    dtypes: Iterable[str], tolerance: Tolerance, measured: Mapping[str, float]
) -> float:
    """The matrix peak P of the fastest admissible precision; 0.0 when it is unknown.

    It is unknown for integer, 8-bit and double inputs, for tolerances that admit 8-bit formats, and
    where the calibration lacks an admissible format.
    """
    names = set(dtypes)
    if not names or not names <= set(_ALWAYS) or tolerance.relative >= _ROUNDINGS * _EIGHT_BITS:
        return 0.0
    admissible = {name for dtype in names for name in _ALWAYS[dtype]}
    admissible |= {
        name
        for name, rounding in _UNIT_ROUNDING.items()
        if _ROUNDINGS * rounding <= tolerance.relative
    }
    rates = [measured.get(name, 0.0) for name in admissible]
    return max(rates) if min(rates) > 0 else 0.0
