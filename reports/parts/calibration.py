"""The calibrations of devices and clocks, measured when each worker started."""

from __future__ import annotations

from collections.abc import Mapping

from reports.parts.view import Table
from reports.quantity import NOTHING, finite, plain
from reports.run_data import RunData

_HEADINGS = (
    "device",
    "card",
    "host",
    "measured at",
    "clock resolution, µs",
    "empty measurement, µs",
    "cache flush, µs",
    "copy, GB/s",
    "matrix products, TFLOP/s",
)


def calibration_table(data: RunData) -> Table | None:
    """One row per card and host; None for a run without calibrations."""
    if not data.calibrations:
        return None
    rows = []
    for record in data.calibrations:
        measured = record.calibration
        rows.append(
            (
                record.device.name or record.device.target,
                f"…{record.device.uuid[-8:]}" if record.device.uuid else NOTHING,
                record.host or NOTHING,
                f"{record.measured_at:%Y-%m-%d %H:%M:%S %Z}".strip(),
                _format_known(measured.quantum_us, 1.0),
                _format_each(measured.overhead_us, 1.0),
                _format_known(measured.flush_us, 1.0),
                _format_known(measured.copy_bytes_per_us, 1e-3),
                _format_each(measured.flops_per_us, 1e-6),
            )
        )
    return Table.of(_HEADINGS, rows)


def _format_known(value: float, scale: float) -> str:
    """A number; zero stands for an unknown value."""
    number = finite(value)
    return plain(number * scale) if number else NOTHING


def _format_each(values: Mapping[str, float], scale: float) -> str:
    """Numbers by name. Zero is a valid overhead."""
    parts = []
    for name, value in sorted(values.items()):
        number = finite(value)
        if number is not None:
            parts.append(f"{name} {plain(number * scale)}")
    return ", ".join(parts) or NOTHING
