"""Starting what is due, exactly once over any number of hosts.

A firing is claimed by inserting its row, which is unique by schedule and instant: of all hosts that
try, one succeeds. A firing whose run was broken off, by a crash or a database that was away, is
resumed by the next tick of any host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

from results_db import Fire, RunInfo, Store, StoreAwayError, StoreError, StoreMovedError
from search_spaces.errors import TunerError
from tuner.campaign import lease, process_identity
from tuner.schedule.due import Due, due, schedules
from tuner.settings.models import Settings

PERIOD_S = 60.0
#: How often a firing is started in all, if it is broken off each time.
ATTEMPTS = 10
#: Seconds after its claim in which a firing of another host must have begun its run.
STARTING_S = 900.0


class Outcome(Protocol):
    """What a started run comes back with."""

    @property
    def run_id(self) -> int: ...

    @property
    def status(self) -> str: ...

    @property
    def summary(self) -> str: ...


Start: TypeAlias = Callable[[str], Outcome]


def last_instants(settings: Settings, store: Store, now: datetime) -> Mapping[str, datetime]:
    """The newest instant on record of each schedule that has one.

    What was recorded more than a day later than `now` is of a clock that was ahead.
    """
    found = {plan.name: store.last_fire(plan.name, now) for plan in schedules(settings)}
    return {name: fire.instant for name, fire in found.items() if fire is not None}


def tick(
    settings: Settings,
    store: Store,
    now: datetime,
    host: str,
    start: Start,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Fire]:
    """Start every campaign that is due at `now` and that no other host has taken.

    First come the firings that were interrupted, unless their schedule is due again anyway. At the
    end, what became due while this tick was busy is started too, each schedule once.

    start: runs the campaign of that name to its end. stop: when set, nothing more is started.
    clock: counts the seconds from `now` on. Returns the firings this host took, as recorded. What a
    run raises is recorded and returned, so that one campaign does not keep the next from starting.
    """
    store.check_place()
    ticked = clock()
    ticker = _Ticker(
        store,
        host,
        start,
        stop or threading.Event(),
        lambda: now + timedelta(seconds=clock() - ticked),
    )
    plans = schedules(settings)
    items = due(plans, last_instants(settings, store, now), now)
    names = {item.schedule for item in items if item.instant is not None}
    for plan in plans:
        if plan.enabled and plan.name not in names:
            ticker.resume(store.last_fire(plan.name, now))
    ticker.fire(items)
    if ticker.done:
        done = {fire.schedule for fire in ticker.done}
        rest = [plan for plan in plans if plan.name not in done]
        late = ticker.now()
        ticker.fire(due(rest, last_instants(settings, store, late), late, busy_since=now))
    return ticker.done


def serve(
    once: Callable[[], object],
    stop: threading.Event,
    *,
    report: Callable[[str], object],
    period_s: float = PERIOD_S,
) -> None:
    """Call `once` at the start of every period until `stop` is set.

    A database that is away does not end the service: it is reported, and what was due is coalesced
    when it is back. A deleted database file does end it.
    """
    while not stop.is_set():
        try:
            once()
        except StoreMovedError:
            raise
        except StoreError as error:
            report(f"{error.message}; trying again")
        stop.wait(period_s - datetime.now(UTC).timestamp() % period_s)


@dataclass(slots=True)
class _Ticker:
    """The firings that one tick takes, one after another."""

    store: Store
    host: str
    start: Start
    stop: threading.Event
    now: Callable[[], datetime]
    done: list[Fire] = field(default_factory=list)

    def fire(self, items: list[Due]) -> None:
        """Claim and start what is due."""
        for item in items:
            if self.stop.is_set():
                return
            if item.missed:
                self.store.record_missed(item.schedule, item.missed, self.host, self.now())
            if item.instant is None:
                continue
            fire = Fire(item.schedule, item.instant, "started", self.host)
            with _at_work(fire):
                me = process_identity.identity()
                if self.store.claim_fire(item.schedule, item.instant, self.host, me, self.now()):
                    self._carry_out(fire)

    def resume(self, fire: Fire | None) -> None:
        """Go on with a firing that did not come to its end, through nobody's will or a crash."""
        if fire is None or self.stop.is_set() or not self._broken_off(fire):
            return
        run = _run_of(self.store, fire)
        if run is not None and run.status == "finished":
            message = "gone on with by hand"
            self.store.finish_fire(fire.schedule, fire.instant, "finished", run.run_id, message)
        elif fire.attempts >= ATTEMPTS:
            message = f"broken off {fire.attempts} times; `tuner run {fire.schedule}` goes on"
            run_id = None if run is None else run.run_id
            self.store.finish_fire(fire.schedule, fire.instant, "failed", run_id, message)
        elif run is None or not lease.alive(run):
            with _at_work(fire):
                if self.store.resume_fire(fire, self.host, process_identity.identity(), self.now()):
                    self._carry_out(replace(fire, host=self.host, attempts=fire.attempts + 1))

    def _broken_off(self, fire: Fire) -> bool:
        """Whether nobody carries out a firing that has not come to its end."""
        if fire.state != "started":
            return fire.state == "interrupted"
        if fire.process and fire.process == process_identity.identity():
            return (fire.schedule, fire.instant) not in _mine
        if process_identity.gone(fire.process):
            return True
        run = _run_of(self.store, fire)
        if run is None:
            began = fire.fired_at or fire.instant
            return (self.now() - began).total_seconds() > STARTING_S
        return run.status == "finished" or lease.abandoned(run)

    def _carry_out(self, fire: Fire) -> None:
        state, run_id, message = "interrupted", fire.run_id, "the scheduler was stopped"
        try:
            outcome = self.start(fire.schedule)
            state, run_id = outcome.status, outcome.run_id
            message = outcome.summary if state == "finished" else state
        except StoreAwayError as error:
            message = error.message
        except TunerError as error:
            state, message = "failed", error.message
        except Exception as error:
            state, message = "failed", f"{type(error).__name__}: {error}"
        finally:
            self.store.finish_fire(fire.schedule, fire.instant, state, run_id, message)
        self.done.append(replace(fire, state=state, run_id=run_id, message=message))


#: Firings that this process is carrying out or about to claim, once for each thread.
_mine: list[tuple[str, datetime]] = []


@contextmanager
def _at_work(fire: Fire) -> Iterator[None]:
    key = fire.schedule, fire.instant
    _mine.append(key)
    try:
        yield
    finally:
        _mine.remove(key)


def _run_of(store: Store, fire: Fire) -> RunInfo | None:
    """The run that a firing began or went on with; None when it has not come to that."""
    if fire.run_id is not None:
        return store.run(fire.run_id)
    run = store.last_run(fire.schedule)
    beaten = run.heartbeat_at if run is not None else None
    return run if beaten and fire.fired_at and beaten >= fire.fired_at else None
