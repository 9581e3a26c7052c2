"""Starts due campaigns, each firing exactly once over any number of hosts.

A host claims a firing by inserting its row, which is unique by schedule and instant; of all hosts
that try, one succeeds. The next tick of any host resumes a firing whose run was interrupted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

from results_db import Fire, RunInfo, Store, StoreAwayError, StoreError, StoreMovedError
from results_db.stored_records import FireState, RunStatus
from search_spaces.errors import TunerError
from tuner.campaign import lease
from tuner.schedule.due import Due, Schedule, due, schedules
from tuner.settings.sections import Settings

PERIOD_S = 60.0
#: How often a firing is started when each of its runs is interrupted.
ATTEMPTS = 10
#: Seconds after its claim within which a firing of another host must have begun its run.
STARTING_S = 900.0
_UNFINISHED = (FireState.STARTED, FireState.INTERRUPTED)
_log = logging.getLogger(__name__)


class FiredRun(Protocol):
    """The outcome of a started run."""

    @property
    def run_id(self) -> int | None: ...

    @property
    def status(self) -> str: ...

    @property
    def summary(self) -> str: ...


Start: TypeAlias = Callable[[str], FiredRun]


def last_instants(settings: Settings, store: Store, now: datetime) -> Mapping[str, datetime]:
    """The newest recorded instant of each schedule that has one.

    An instant more than a day after `now` was recorded by a clock that was ahead, and is ignored.
    """
    found = {plan.name: store.last_fire(plan.name, now) for plan in schedules(settings)}
    return {name: fire.instant for name, fire in found.items() if fire is not None}


def list_lags(settings: Settings, store: Store, now: datetime) -> dict[str, float]:
    """Seconds since the oldest due firing of each enabled schedule that has not ended, 0 without.

    Before a tick settles them, firings that it will record as missed count.
    """
    lags = {}
    for plan in (each for each in schedules(settings) if each.enabled):
        last = store.last_fire(plan.name, now)
        waiting = [last.instant] if last and last.state in _UNFINISHED else []
        for item in due([plan], {plan.name: last.instant} if last else {}, now):
            waiting += [*item.missed, *filter(None, [item.instant])]
        lags[plan.name] = (now - waiting[0]).total_seconds() if waiting else 0.0
    return lags


def tick(
    settings: Settings,
    store: Store,
    now: datetime,
    host: str,
    start: Start,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Fire]:
    """Start every campaign that is due at `now` and that no other host has claimed.

    Interrupted firings are resumed first, unless their schedule is due again. Schedules that became
    due during the tick are started at its end, each once.

    start: runs the campaign of that name to its end. stop: once set, nothing more is started.
    clock: counts seconds from `now` on. Returns the firings that this host carried out, as
    recorded. An error of a run is recorded and does not prevent the next campaign from starting.
    """
    store.check_place()
    plans = schedules(settings)
    ticked = clock()
    ticker = _Ticker(
        store,
        host,
        start,
        stop or threading.Event(),
        lambda: now + timedelta(seconds=clock() - ticked),
        {plan.name: plan for plan in plans},
    )
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

    An unreachable database does not end the service: it is reported, and missed firings are
    coalesced when it answers again. A deleted database file ends the service.
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
    """Carries out the firings of one tick, one after another."""

    store: Store
    host: str
    start: Start
    stop: threading.Event
    now: Callable[[], datetime]
    plans: Mapping[str, Schedule]
    done: list[Fire] = field(default_factory=list)

    def fire(self, items: list[Due]) -> None:
        """Claim and start due firings."""
        for item in items:
            if self.stop.is_set():
                return
            if item.missed:
                _log.warning("%s: %d firings were missed", item.schedule, len(item.missed))
                self.store.record_missed(item.schedule, item.missed, self.host, self.now())
            # A blackout may have begun during the firing before.
            if item.instant is None or self.plans[item.schedule].is_dark(self.now()):
                continue
            fire = Fire(item.schedule, item.instant, FireState.STARTED, self.host)
            with _in_progress(fire):
                me = lease.process_identity()
                if self.store.claim_fire(item.schedule, item.instant, self.host, me, self.now()):
                    self._carry_out(fire)

    def resume(self, fire: Fire | None) -> None:
        """Resume a firing whose run was interrupted."""
        if fire is None or self.stop.is_set() or not self._interrupted(fire):
            return
        if self.plans[fire.schedule].is_dark(self.now()):
            return
        run = _run_of(self.store, fire)
        if run is not None and run.status == RunStatus.FINISHED:
            state, message = FireState.FINISHED, "resumed and finished by hand"
            self.store.finish_fire(fire.schedule, fire.instant, state, run.run_id, message)
        elif fire.attempts >= ATTEMPTS:
            message = f"interrupted {fire.attempts} times; `tuner run {fire.schedule}` resumes it"
            _log.warning("%s is given up: %s", _name(fire), message)
            run_id = None if run is None else run.run_id
            self.store.finish_fire(fire.schedule, fire.instant, FireState.FAILED, run_id, message)
        elif run is None or not lease.alive(run):
            with _in_progress(fire):
                if self.store.resume_fire(fire, self.host, lease.process_identity(), self.now()):
                    self._carry_out(replace(fire, host=self.host, attempts=fire.attempts + 1))

    def _interrupted(self, fire: Fire) -> bool:
        """Whether a firing has not ended and no process carries it out."""
        if fire.state != FireState.STARTED:
            return fire.state == FireState.INTERRUPTED
        if fire.process and fire.process == lease.process_identity():
            return (fire.schedule, fire.instant) not in _claimed_here
        lives = lease.process_lives(fire.process)
        if lives is not None:
            return not lives
        run = _run_of(self.store, fire)
        if run is None:
            began = fire.fired_at or fire.instant
            return (self.now() - began).total_seconds() > STARTING_S
        return run.status == RunStatus.FINISHED or lease.abandoned(run)

    def _carry_out(self, fire: Fire) -> None:
        state, run_id = FireState.INTERRUPTED, fire.run_id
        message = "the scheduler was stopped"
        _log.info("%s starts (attempt %d)", _name(fire), fire.attempts)
        try:
            outcome = self.start(fire.schedule)
            state, run_id = FireState(outcome.status), outcome.run_id
            message = outcome.summary if state is FireState.FINISHED else state
        except StoreAwayError as error:
            message = error.message
        except TunerError as error:
            state, message = FireState.FAILED, error.message
        except Exception as error:
            state, message = FireState.FAILED, f"{type(error).__name__}: {error}"
            _log.exception("%s failed", _name(fire))
        finally:
            self.store.finish_fire(fire.schedule, fire.instant, state, run_id, message)
        level = logging.WARNING if state is FireState.FAILED else logging.INFO
        _log.log(level, "%s %s: %s", _name(fire), state, message)
        self.done.append(replace(fire, state=state, run_id=run_id, message=message))


#: Firings that this process carries out or is about to claim, once per thread.
_claimed_here: list[tuple[str, datetime]] = []


@contextmanager
def _in_progress(fire: Fire) -> Iterator[None]:
    key = fire.schedule, fire.instant
    _claimed_here.append(key)
    try:
        yield
    finally:
        _claimed_here.remove(key)


def _run_of(store: Store, fire: Fire) -> RunInfo | None:
    """The run that a firing began or resumed; None where it has begun none."""
    if fire.run_id is not None:
        return store.run(fire.run_id)
    run = store.last_run(fire.schedule)
    beaten = run.heartbeat_at if run is not None else None
    return run if beaten and fire.fired_at and beaten >= fire.fired_at else None


def _name(fire: Fire) -> str:
    return f"{fire.schedule} of {fire.instant:%Y-%m-%d %H:%M}Z"
