"""`tuner schedule`: list schedules and start due campaigns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import NOTE, FireState
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of, warn_of_job_folders
from tuner.cli.console import Format, FormatOption, emit, final_output, note
from tuner.cli.history import follow_run
from tuner.cli.morning_note import send_note
from tuner.cli.stop_signals import interruptible
from tuner.views.column import Column, columns_of
from tuner.views.news import begin_note, list_events

if TYPE_CHECKING:
    from results_db import Fire, Store
    from tuner.campaign import Control, RunOutcome
    from tuner.schedule.ticker import FiredRun
    from tuner.settings.sections import Settings

app = typer.Typer(help="List schedules and start due campaigns.", no_args_is_help=True)
_SCHEDULES = ("schedule", "cron", "timezone", "enabled", "last", "state", "run", "next")
_FIRED: tuple[Column[Fire], ...] = (
    *columns_of("schedule", "instant", "state"),
    Column("run", lambda fire: fire.run_id),
    Column("message"),
)


@app.command("list")
def list_schedules(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the schedules with their last and next firing, in UTC."""
    from tuner.schedule.due import next_fires, schedules

    settings, _ = settings_of(config)
    now = datetime.now(UTC)
    rows = []
    with store_of(settings, create=True) as store:
        for plan in schedules(settings):
            last = store.last_fire(plan.name)
            rows.append(
                {
                    "schedule": plan.name,
                    "cron": plan.cron,
                    "timezone": plan.timezone,
                    "enabled": plan.enabled,
                    "last": last.instant if last else None,
                    "state": last.state if last else None,
                    "run": last.run_id if last else None,
                    "next": next(iter(next_fires(plan, now)), None),
                }
            )
    emit(rows, _SCHEDULES, style, empty="no campaign has a schedule")


@app.command("next")
def next_ones(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000)] = 5,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the next firings of all schedules, soonest first, in UTC."""
    from tuner.schedule.due import next_fires, schedules

    settings, _ = settings_of(config)
    now = datetime.now(UTC)
    fires = sorted(
        (instant, plan.name)
        for plan in schedules(settings)
        for instant in next_fires(plan, now, count)
    )
    rows = [{"instant": instant, "schedule": name} for instant, name in fires[:count]]
    emit(rows, ("instant", "schedule"), style, empty="nothing is scheduled")


@app.command()
def tick(
    config: ConfigOption = None,
    quiet: Annotated[bool, flag("--quiet", "-q", help="Show no progress.")] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Start due campaigns that no host has started.

    Meant for cron, systemd or Kubernetes; more frequent calls do no harm. Exits with 1 if a run
    failed or a kernel became slower.
    """
    settings, base = settings_of(config)
    warn_of_job_folders(settings)
    with _service(settings, base, quiet=quiet) as service, interruptible(service):
        fires = service.tick()
    with final_output():
        emit(fires, _FIRED, style, empty="nothing is due")
    if service.stop.is_set():
        raise typer.Exit(130)
    if service.slower or any(fire.state != FireState.FINISHED for fire in fires):
        raise typer.Exit(1)


@app.command()
def serve(
    config: ConfigOption = None,
    quiet: Annotated[bool, flag("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tick every minute until SIGTERM, SIGHUP or Ctrl-C, which drain the run in progress."""
    from tuner.schedule.ticker import serve as serve_until

    settings, base = settings_of(config)
    warn_of_job_folders(settings)
    with _service(settings, base, quiet=quiet) as service, interruptible(service):
        note(f"serving the schedules of {base}; Ctrl-C drains and stops")
        serve_until(lambda: _note_fires(service.tick()), service.stop, report=note)


@contextmanager
def _service(settings: Settings, base: Path, *, quiet: bool) -> Iterator[_Service]:
    """A service whose store waits for an unreachable database until it is stopped."""
    from results_db import Store
    from results_db.patience import Patience

    database = settings.database
    with Store.open(database.url, answer_s=database.timeout) as store:
        stop = threading.Event()
        patience = Patience(database.patience, stop.is_set)
        yield _Service(settings, base, store.waiting(patience), stop, quiet=quiet)


class _Service:
    """Runs campaigns one after another and forwards a request to stop to the present one."""

    def __init__(
        self, settings: Settings, base: Path, store: Store, stop: threading.Event, *, quiet: bool
    ) -> None:
        self.stop = stop
        #: Whether a run has confirmed a regression.
        self.slower = False
        self._store = store
        self._settings = settings
        self._base = base
        self._quiet = quiet
        self._control: Control | None = None

    def tick(self) -> list[Fire]:
        """Tick by the database's clock, which all hosts share."""
        from tuner.schedule.ticker import tick as tick_once

        store = self._store
        return tick_once(self._settings, store, store.now(), host_name(), self.start, self.stop)

    def start(self, name: str) -> FiredRun:
        """Run a campaign, or send the note."""
        if name != NOTE:
            return self._run(name)
        begin = begin_note(self._store)
        send_note(self._settings, begin, list(list_events(self._store, begin)))
        return SentNote()

    def _run(self, campaign: str) -> RunOutcome:
        from tuner.campaign import Control, RunOptions, run_campaign
        from tuner.views.progress_display import show_progress

        self._control = Control()
        if self.stop.is_set():
            self._control.drain()
        note(f"starting campaign {campaign}")
        settings, base, quiet = self._settings, self._base, self._quiet
        with show_progress(not quiet) as show:
            outcome = run_campaign(
                settings,
                campaign,
                options=RunOptions(base=base),
                on_progress=show,
                control=self._control,
            )
        for line in follow_run(settings, base, campaign, outcome, quiet=quiet):
            self.slower = True
            note(line)
        return outcome

    def drain(self) -> None:
        self.stop.set()
        if self._control is not None:
            self._control.drain()

    def kill(self) -> None:
        self.stop.set()
        if self._control is not None:
            self._control.kill()


@dataclass(frozen=True, slots=True)
class SentNote:
    """The outcome of a firing that is no run."""

    run_id: int | None = None
    status: str = FireState.FINISHED
    summary: str = "sent"


def host_name() -> str:
    """The name of this host in the records of firings."""
    import socket

    return socket.gethostname()


def _note_fires(fires: list[Fire]) -> None:
    for fire in fires:
        note(f"{fire.schedule}: {fire.state}: {fire.message}")
