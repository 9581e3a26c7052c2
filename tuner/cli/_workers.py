"""`tuner workers`: the devices a campaign could use."""

from __future__ import annotations

import typer

from tuner.cli._console import Format, FormatOption, emit
from tuner.cli._session import ConfigOption, settings_of

app = typer.Typer(help="The devices of this machine.", no_args_is_help=True)
KINDS = ("cuda", "hip", "cpu")
_COLUMNS = (
    "kind",
    "device",
    "target",
    "units",
    "memory_gib",
    "shared_kib",
    "power_w",
    "fingerprint",
    "uuid",
)


@app.callback()
def workers() -> None:
    """The devices of this machine."""


@app.command("list")
def list_workers(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the devices found on this machine, one runner each."""
    from workers.device import found

    settings_of(config)
    rows = [
        {
            "kind": device.kind,
            "device": device.name,
            "target": device.target,
            "units": device.sm_count,
            "memory_gib": round(device.memory_bytes / 2**30, 1),
            "shared_kib": device.shared_bytes // 1024,
            "power_w": device.power_limit_w or None,
            "fingerprint": device.fingerprint,
            "uuid": device.uuid,
        }
        for kind in KINDS
        for device in found(kind)
    ]
    emit(rows, _COLUMNS, style, empty="no device was found")
