"""`tuner workers`: list the devices that a campaign can use."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, settings_of
from tuner.cli.console import Format, FormatOption, emit, note

if TYPE_CHECKING:
    from search_spaces.records import Device
    from tuner.settings.sections import PoolConfig, Settings
    from workers.job_records import Calibration

app = typer.Typer(
    help="The devices of this machine, or of the cluster that `pool.address` names.",
    no_args_is_help=True,
)
_COLUMNS = (
    "kind",
    "device",
    "target",
    "units",
    "memory_gib",
    "shared_kib",
    "power_w",
    "clock_step_us",
    "overhead_us",
    "copy_tb_s",
    "peak_tflop_s",
    "host",
    "fingerprint",
    "uuid",
)


@app.callback()
def workers() -> None:
    """The devices of this machine, or of the cluster that `pool.address` names."""


@app.command("list")
def list_workers(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the devices of this machine, or of every node of the cluster.

    The cluster is queried when `pool` names one: kind `ray` with an address, or with RAY_ADDRESS
    set. Calibrations are the latest in the database.
    """
    settings, _ = settings_of(config)
    known = calibrations(settings)
    rows = [
        {**_row(host, device), **_calibration_row(known.get(device.fingerprint))}
        for host, device in _devices(settings.pool)
    ]
    emit(rows, _COLUMNS, style, empty="no device was found", details=_COLUMNS[7:])


def calibrations(settings: Settings) -> dict[str, Calibration]:
    """The latest calibration of each device, by fingerprint."""
    from results_db import NothingStoredError, Store

    try:
        with Store.open(settings.database.url, create=False) as store:
            found = store.calibrations()
    except NothingStoredError:
        return {}
    except TunerError as error:
        note(f"calibrations are left out: {error.message}")
        return {}
    return {item.device.fingerprint: item.calibration for item in reversed(found)}


def _calibration_row(calibration: Calibration | None) -> dict[str, object]:
    if calibration is None:
        return {}
    return {
        "clock_step_us": calibration.quantum_us or None,
        "overhead_us": dict(calibration.overhead_us) or None,
        "copy_tb_s": calibration.copy_bytes_per_us / 1e6 or None,
        "peak_tflop_s": {name: round(rate / 1e6, 1) for name, rate in _rates(calibration)} or None,
    }


def calibration_text(calibration: Calibration) -> str:
    """A calibration in one line."""
    parts = [f"clock step {calibration.quantum_us:.3g} us"] if calibration.quantum_us else []
    parts += [f"{name} add {us:.3g} us" for name, us in sorted(calibration.overhead_us.items())]
    if calibration.copy_bytes_per_us:
        parts.append(f"copies at {calibration.copy_bytes_per_us / 1e6:.3g} TB/s")
    parts += [f"{name} {rate / 1e6:.3g} TFLOP/s" for name, rate in _rates(calibration)]
    return ", ".join(parts) or "no calibration value"


def _rates(calibration: Calibration) -> list[tuple[str, float]]:
    return sorted(calibration.flops_per_us.items())


def _devices(pool: PoolConfig) -> Iterator[tuple[str, Device]]:
    """Devices and the host of each."""
    from workers import backend_kinds

    address = pool.address or os.environ.get("RAY_ADDRESS")
    if pool.kind != "ray" or address in (None, "", "local"):
        from workers.device import find_devices

        for kind in backend_kinds.timed_kinds():
            yield from ((socket.gethostname(), device) for device in find_devices(kind))
        return
    from workers.pools.ray_survey import survey

    for node, devices in survey(address, pool.connect_timeout, backend_kinds.timed_kinds()):
        if devices is None:
            note(f"node {node.name} ({node.address}) does not answer")
        yield from ((node.name, device) for device in devices or ())


def _row(host: str, device: Device) -> dict[str, object]:
    return {
        "kind": device.kind,
        "device": device.name,
        "target": device.target,
        "units": device.sm_count,
        "memory_gib": round(device.memory_bytes / 2**30, 1),
        "shared_kib": device.shared_bytes // 1024 or None,
        "power_w": device.power_limit_w or None,
        "host": host,
        "fingerprint": device.fingerprint,
        "uuid": device.uuid,
    }
