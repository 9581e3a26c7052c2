"""`tuner workers`: the devices that a campaign can use, and which are kept from it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column

if TYPE_CHECKING:
    from results_db.card_health import CardRun, Drift
    from results_db.promotion_records import QuarantineRecord
    from search_spaces.records import Device
    from tuner.settings.sections import PoolConfig, Settings
    from workers.job_records import Calibration

_LIST = "`tuner workers list` and `tuner workers show` list cards"
app = typer.Typer(
    help="The devices of this machine, or of the cluster that `pool.address` names.",
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A device with its host, and its calibration where one is known."""

    host: str
    device: Device
    calibration: Calibration | None
    #: Why it gets no work; empty where it does.
    quarantine: str = ""

    @property
    def peak_tflop_s(self) -> dict[str, float] | None:
        rates = _rates(self.calibration) if self.calibration else []
        return {name: round(rate / 1e6, 1) for name, rate in rates} or None


def _read(name: str, read: Callable[[Calibration], object]) -> Column[_Found]:
    """A column of calibrations."""
    return Column(name, lambda e: (read(e.calibration) or None) if e.calibration else None)


_WORKERS: tuple[Column[_Found], ...] = (
    Column("kind", lambda each: each.device.kind),
    Column("device", lambda each: each.device.name),
    Column("target", lambda each: each.device.target),
    Column("units", lambda each: each.device.sm_count),
    Column("memory_gib", lambda each: round(each.device.memory_bytes / 2**30, 1)),
    Column("shared_kib", lambda each: each.device.shared_bytes // 1024 or None),
    Column("power_w", lambda each: each.device.power_limit_w or None),
    _read("clock_step_us", lambda known: known.quantum_us),
    _read("overhead_us", lambda known: dict(known.overhead_us)),
    _read("copy_tb_s", lambda known: known.copy_bytes_per_us / 1e6),
    Column("peak_tflop_s"),
    Column("host"),
    Column("quarantine", lambda each: each.quarantine or None),
    Column("fingerprint", lambda each: each.device.fingerprint),
    Column("uuid", lambda each: each.device.uuid),
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
    known, away = calibrations(settings), _find_quarantined(settings)
    rows = [
        _Found(host, device, known.get(device.fingerprint), away.get(device.uuid, ""))
        for host, device in _devices(settings.pool)
    ]
    emit(rows, _WORKERS, style, empty="no device was found")


@dataclass(frozen=True, slots=True)
class _Night:
    """A card in a run, and its quarantine where that was found in it."""

    found: CardRun
    state: str


def _percent(drift: Drift | None) -> str | None:
    return None if drift is None else f"{math.expm1(drift.value):+.2%} ± {drift.error:.2%}"


_NIGHTS: tuple[Column[_Night], ...] = (
    Column("run_id", lambda each: each.found.run_id),
    Column("card", lambda each: each.found.card),
    Column("device", lambda each: each.found.device),
    Column("copies", lambda each: _percent(each.found.drifts.get("copies"))),
    Column("times", lambda each: _percent(each.found.drifts.get("times"))),
    Column("voided", lambda each: each.found.voided),
    Column("state"),
)

_Card = Annotated[str, typer.Argument(help="UUID of the card, as `tuner workers list` shows it.")]


@app.command("show")
def show_worker(
    card: Annotated[str, typer.Argument(help="UUID of a card; all without one.")] = "",
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show how far cards were from their earlier runs, run by run.

    By the rate of copies, and by the times of baselines; each with its standard error.
    """
    from tuner.campaign.quarantine import read_health

    settings, _ = settings_of(config)
    with store_of(settings) as store:
        runs = read_health(store)
        away = {each.card: each for each in reversed(store.quarantines())}
    rows = [
        _Night(each, _describe_state(each, away.get(each.card)))
        for each in runs
        if card in ("", each.card)
    ]
    emit(rows, _NIGHTS, style, empty="no confirmation of a card is stored")


@app.command("quarantine")
def quarantine(
    card: _Card,
    reason: Annotated[str, typer.Option(help="Why, in one line.")],
    config: ConfigOption = None,
) -> None:
    """Give a card no work until it is admitted. What it has measured stays."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        devices = {each.uuid: each.name for _, each in _devices(settings.pool)}
        seen = {each.card: each.device for each in store.list_card_times()}
        name = {**seen, **devices}.get(card)
        if not card or name is None:
            raise TunerError(f"no card {card!r} is here or in the database", _LIST)
        if not store.quarantine(card, name, reason, datetime.now(UTC)):
            raise TunerError(f"{card} is in quarantine", f"`tuner workers show {card}` says why")
    note(f"{name} {card} gets no work until `tuner workers admit {card}`")


@app.command("admit")
def admit(card: _Card, config: ConfigOption = None) -> None:
    """Let a card in quarantine work again. Its earlier runs count no more for its health."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        if not store.admit_card(card):
            raise TunerError(f"{card} is in no quarantine", _LIST)
    note(f"{card} is admitted")


def _describe_state(found: CardRun, away: QuarantineRecord | None) -> str:
    if away is not None and away.is_open:
        return f"in quarantine: {away.reason}"
    return found.fault or ("odd" if found.is_odd else "sound")


def _find_quarantined(settings: Settings) -> dict[str, str]:
    """Why cards get no work, by their UUID."""
    try:
        with store_of(settings) as store:
            found = store.quarantines()
    except TunerError:  # `calibrations` says so
        return {}
    return {each.card: each.reason for each in found if each.is_open}


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
    from workers.pools.ray_nodes import survey

    for node, devices in survey(address, pool.connect_timeout, backend_kinds.timed_kinds()):
        if devices is None:
            note(f"node {node.name} ({node.address}) does not answer")
        yield from ((node.name, device) for device in devices or ())
