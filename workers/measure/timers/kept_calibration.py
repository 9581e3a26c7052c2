"""Calibrations that are kept between runs, each checked before it is used again.

A calibration takes about a second and depends on the device, its driver, the machine and the
toolchain. It is kept in the folder `calibrations` of `workers.user_cache`, one file per such
combination, together with a spot check that was made just before it. A later process repeats the
spot check, which takes some 50 ms, and calibrates anew where the two disagree:

- by more than `OVERHEAD_LIMIT_US` in the reading of a timer for a kernel of no length, or
- by more than `COPY_LIMIT`, as a share, in the rate of a copy in the device's memory.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_atomic
from search_spaces.records import Device, Toolchain, digest
from tuner.base.tracing import span
from workers import user_cache
from workers.job_records import Calibration

#: The largest accepted differences of two spot checks.
OVERHEAD_LIMIT_US = 0.5
COPY_LIMIT = 0.05
#: Part of the file's name. It changes when calibrations of before have another meaning.
_FORMAT = 1
_PART = "calibrations"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """Two quick readings that change when a calibration does not hold any more."""

    #: The reading of a timer for a kernel of no length, extrapolated from short ones.
    overhead_us: float
    #: Bytes read plus bytes written by a copy in the device's memory; 0 where it did not fit.
    copy_bytes_per_us: float


def kept_or_new(
    device: Device,
    toolchain: Toolchain,
    spot_check: Callable[[], SpotCheck],
    calibrate: Callable[[], Calibration],
) -> Calibration:
    """The kept calibration if a spot check confirms it, else a new one, which is then kept.

    Its rate of copies is that of the spot check: it shows how the card is now.
    A file that cannot be read or written costs a calibration and one line in the log.
    """
    with span("spot check of the calibration", "start"):
        found = spot_check()
    file = place(device, toolchain)
    kept = _read(file)
    if kept is not None:
        calibration, before = kept
        if (changed := difference(before, found)) is None:
            return _with_rate(calibration, found)
        _log.info("%s is calibrated anew: %s", device.name, changed)
    calibration = calibrate()
    _write(file, calibration, found)
    return _with_rate(calibration, found)


def _with_rate(calibration: Calibration, found: SpotCheck) -> Calibration:
    rate = found.copy_bytes_per_us
    return replace(calibration, copy_bytes_per_us=rate) if rate else calibration


def place(device: Device, toolchain: Toolchain) -> Path:
    """The file of the calibration of a device of this machine."""
    identity = [_FORMAT, asdict(device), asdict(toolchain), socket.gethostname()]
    return user_cache.place(_PART) / f"{digest(identity, 32)}.json"


def list_kept() -> list[Path]:
    """The files of all calibrations that this user keeps."""
    return sorted(user_cache.place(_PART).glob("*.json"))


def difference(before: SpotCheck, now: SpotCheck) -> str | None:
    """What differs between two spot checks by more than the limits; None if nothing does."""
    if abs(now.overhead_us - before.overhead_us) > OVERHEAD_LIMIT_US:
        return f"the overhead was {before.overhead_us:.2f} us and is {now.overhead_us:.2f} us"
    if abs(now.copy_bytes_per_us - before.copy_bytes_per_us) > COPY_LIMIT * max(
        before.copy_bytes_per_us, now.copy_bytes_per_us
    ):
        gb_s = before.copy_bytes_per_us / 1000, now.copy_bytes_per_us / 1000
        return f"a copy ran at {gb_s[0]:.0f} GB/s and runs at {gb_s[1]:.0f} GB/s"
    return None


def _read(file: Path) -> tuple[Calibration, SpotCheck] | None:
    if user_cache.folder(_PART) is None or not file.is_file():
        return None
    try:
        kept = json.loads(file.read_bytes())
        return _calibration(kept["calibration"]), SpotCheck(
            _number(kept["spot_check"]["overhead_us"], low=-math.inf),
            _number(kept["spot_check"]["copy_bytes_per_us"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("the kept calibration %s is damaged and not used: %s", file, error)
        return None


def _calibration(kept: Any) -> Calibration:
    return Calibration(
        quantum_us=_number(kept["quantum_us"]),
        overhead_us={str(name): _number(value) for name, value in kept["overhead_us"].items()},
        flush_us=_number(kept["flush_us"]),
        copy_bytes_per_us=_number(kept["copy_bytes_per_us"]),
        flops_per_us={str(name): _number(value) for name, value in kept["flops_per_us"].items()},
    )


def _number(value: Any, low: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not (math.isfinite(value) and value >= low):
        raise ValueError(f"{value!r} is no value of a calibration")
    return float(value)


def _write(file: Path, calibration: Calibration, spot_check: SpotCheck) -> None:
    content = {"calibration": asdict(calibration), "spot_check": asdict(spot_check)}
    if user_cache.folder(_PART) is None:
        return
    try:
        write_atomic(file, json.dumps(content, sort_keys=True, indent=1).encode(), durable=False)
    except OSError as error:
        _log.info("the calibration cannot be kept in %s: %s", file, error)
