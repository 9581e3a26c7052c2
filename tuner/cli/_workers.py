"""`tuner workers`: the devices a campaign could use."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from tuner.cli._console import Format, FormatOption, emit, note
from tuner.cli._session import ConfigOption, settings_of

if TYPE_CHECKING:
    from search_spaces.records import Device
    from tuner.config import PoolConfig

app = typer.Typer(
    help="The devices of this machine, or of the cluster that `pool.address` names.",
    no_args_is_help=True,
)
KINDS = ("cuda", "hip", "cpu")
_COLUMNS = (
    "kind",
    "device",
    "target",
    "units",
    "memory_gib",
    "shared_kib",
    "power_w",
    "host",
    "fingerprint",
    "uuid",
)


@app.callback()
def workers() -> None:
    """The devices of this machine, or of the cluster that `pool.address` names."""


@app.command("list")
def list_workers(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the devices found, one runner each: here, or on every node of the cluster.

    A cluster is asked when `pool` names one: kind `ray` with an address, or with RAY_ADDRESS set.
    """
    settings, _ = settings_of(config)
    rows = [_row(host, device) for host, device in _devices(settings.pool)]
    emit(rows, _COLUMNS, style, empty="no device was found")


def _devices(pool: PoolConfig) -> Iterator[tuple[str, Device]]:
    """Devices and the host of each."""
    address = pool.address or os.environ.get("RAY_ADDRESS")
    if pool.kind != "ray" or address in (None, "", "local"):
        from workers.device import found

        for kind in KINDS:
            yield from ((socket.gethostname(), device) for device in found(kind))
        return
    from workers.pools.ray_survey import survey

    for node, devices in survey(address, pool.connect_timeout, KINDS):
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
        "shared_kib": device.shared_bytes // 1024,
        "power_w": device.power_limit_w or None,
        "host": host,
        "fingerprint": device.fingerprint,
        "uuid": device.uuid,
    }
