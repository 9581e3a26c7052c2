"""What each device and its clock could do, as its worker found when it started."""

from __future__ import annotations

from collections.abc import Mapping

from reports.quantity import NOTHING, plain
from reports.ratio import finite
from reports.run_data import RunData
from reports.view import Table

_HEADINGS = (
    "device",
    "card",
    "host",
    "measured at",
    "clock's step, µs",
    "read when nothing runs, µs",
    "flush of the cache, µs",
    "copy, GB/s",
    "matrix products, TFLOP/s",
)


def calibration_table(data: RunData) -> Table | None:
    """One row per card and host; None when no worker reported any."""
    if not data.calibrations:
        return None
    rows = []
    for record in data.calibrations:
        found = record.calibration
        rows.append(
            (
                record.device.name or record.device.target,
                f"…{record.device.uuid[-8:]}" if record.device.uuid else NOTHING,
                record.host or NOTHING,
                f"{record.measured_at:%Y-%m-%d %H:%M:%S %Z}".strip(),
                _known(found.quantum_us, 1.0),
                _listed(found.overhead_us, 1.0),
                _known(found.flush_us, 1.0),
                _known(found.copy_bytes_per_us, 1e-3),
                _listed(found.flops_per_us, 1e-6),
            )
        )
    return Table.of(_HEADINGS, rows)


def _known(value: float, scale: float) -> str:
    """Zero means that it could not be measured."""
    number = finite(value)
    return plain(number * scale) if number else NOTHING


def _listed(values: Mapping[str, float], scale: float) -> str:
    """An overhead of 0 is a finding; a rate of 0 is none."""
    parts = []
    for name, value in sorted(values.items()):
        number = finite(value)
        if number is not None:
            parts.append(f"{name} {plain(number * scale)}")
    return ", ".join(parts) or NOTHING
