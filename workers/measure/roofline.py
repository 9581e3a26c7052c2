"""The least time a device can take for a task, from what it was measured to be capable of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from search_spaces.kernel import Cost, Tolerance
from workers.records import Calibration

#: How far a matrix product may be faster than the calibration's best: it was taken under the power
#: limit, a short one runs at the full clock (1980 against 1485 MHz on an H200, seen within 250 ms).
_ABOVE_PEAK = 1.25
#: Error of a product of inputs rounded to a format, in units of that format's rounding; a variant
#: may use any format whose error is inside the tolerance.
_ROUNDINGS = 0.3
_UNIT_ROUNDING = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: of the 8-bit formats the finest, whose peak no calibration has
_EIGHT_BITS = 2.0**-4
#: formats always admissible for inputs of a dtype: what is split in parts of a coarser format
#: (three products of tf32 for one of float32) is no faster than one product of tf32
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
    """The larger of bytes over copy bandwidth and flops over the matrix peak, in us.

    dtypes: of the inputs, torch's names. held_bytes: what caches can have held of the traffic at
    the start; None where they may have held all of it. 0.0 when nothing can be said. Numbers
    missing from the calibration give no floor. A copy is not quite the fastest traffic either
    (reading alone reaches 8 % more on an H200): leave a tenth of slack below this floor.
    """
    found = 0.0
    if held_bytes is not None and calibration.copy_bytes_per_us > 0:
        found = max(0.0, cost.bytes - held_bytes) / calibration.copy_bytes_per_us
    products_us = at_peak_us(cost, dtypes, tolerance, calibration)
    return max(found, (products_us or 0.0) / _ABOVE_PEAK)


def at_peak_us(
    cost: Cost, dtypes: Iterable[str], tolerance: Tolerance, calibration: Calibration
) -> float | None:
    """What the task's flops take in us at the matrix peak; None when that is not known."""
    peak = peak_flops_per_us(dtypes, tolerance, calibration.flops_per_us)
    return cost.flops / peak if peak else None


def peak_flops_per_us(
    dtypes: Iterable[str], tolerance: Tolerance, measured: Mapping[str, float]
) -> float:
    """The fastest rate of products any admissible precision has; 0.0 when that is not known.

    Unknown for inputs of integers, 8-bit or double formats, for tolerances that admit 8-bit
    formats, and where the calibration lacks an admissible format.
    """
    given = set(dtypes)
    if not given or not given <= set(_ALWAYS) or tolerance.relative >= _ROUNDINGS * _EIGHT_BITS:
        return 0.0
    admissible = {name for dtype in given for name in _ALWAYS[dtype]}
    admissible |= {
        name
        for name, rounding in _UNIT_ROUNDING.items()
        if _ROUNDINGS * rounding <= tolerance.relative
    }
    rates = [measured.get(name, 0.0) for name in admissible]
    return max(rates) if min(rates) > 0 else 0.0
