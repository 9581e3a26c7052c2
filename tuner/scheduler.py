"""Starting what is due, exactly once over any number of hosts.

A firing is claimed by inserting its row, which is unique by schedule and instant: of all hosts that
try, one succeeds. A host that dies after its claim leaves the firing `started`; it is not repeated,
and the run it began is resumed by the next firing or by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, TypeAlias

from results_db import Fire, Store, StoreError
from search_spaces.errors import TunerError
from tuner.config import Settings
from tuner.schedule import Due, due, schedules

PERIOD_S = 60.0


class Outcome(Protocol):
    """What a started run comes back with."""

    @property
    def run_id(self) -> int: ...

    @property
    def status(self) -> str: ...

    @property
    def summary(self) -> str: ...


Start: TypeAlias = Callable[[str], Outcome]


def last_instants(settings: Settings, store: Store) -> Mapping[str, datetime]:
    """The newest instant on record of each schedule that has one."""
    found = {plan.name: store.last_fire(plan.name) for plan in schedules(settings)}
    return {name: fire.instant for name, fire in found.items() if fire is not None}


def tick(
    settings: Settings,
    store: Store,
    now: datetime,
    host: str,
    start: Start,
    stop: threading.Event | None = None,
) -> list[Fire]:
    """Start every campaign that is due at `now` and that no other host has taken.

    start: runs the campaign of that name to its end. stop: when set, nothing more is started.
    Returns the firings this host took, as recorded. What a run raises is recorded and returned as
    a failed firing, so that one campaign does not keep the next from starting.
    """
    done = []
    for item in due(schedules(settings), last_instants(settings, store), now):
        if stop is not None and stop.is_set():
            break
        if item.missed:
            store.record_missed(item.schedule, item.missed, host)
        if item.instant is not None and store.claim_fire(item.schedule, item.instant, host):
            done.append(_carry_out(store, item, item.instant, host, start))
    return done


def serve(
    once: Callable[[datetime], object],
    stop: threading.Event,
    *,
    report: Callable[[str], object],
    period_s: float = PERIOD_S,
) -> None:
    """Call `once` with the time at the start of every period until `stop` is set.

    A database that is away for a moment does not end the service: it is reported, and what was due
    is coalesced when it is back.
    """
    while not stop.is_set():
        now = datetime.now(UTC)
        try:
            once(now)
        except StoreError as error:
            report(f"{error.message}; trying again")
        stop.wait(period_s - datetime.now(UTC).timestamp() % period_s)


def _carry_out(store: Store, item: Due, instant: datetime, host: str, start: Start) -> Fire:
    state, run_id, message = "failed", None, "the scheduler was stopped"
    try:
        outcome = start(item.schedule)
        state = "finished" if outcome.status == "finished" else "failed"
        run_id, message = outcome.run_id, outcome.summary if state == "finished" else outcome.status
    except TunerError as error:
        message = error.message
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    finally:
        store.finish_fire(item.schedule, instant, state, run_id, message)
    return Fire(item.schedule, instant, state, host, run_id, instant, message)
