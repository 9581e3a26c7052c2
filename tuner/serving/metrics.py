"""Figures of the farm in Prometheus' format, read from the database whenever they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from results_db import Store, StoreError
from results_db.promotion_records import RegressionState
from tuner.base.inert_text import inert

#: Seconds by which each schedule lags at a time, as `tuner.schedule.ticker.list_lags`.
Lags: TypeAlias = Callable[[datetime], Mapping[str, float]]
#: The most values of a label, and its longest value.
_MOST, _LONGEST = 50, 120
#: Families about the newest ended run of each campaign: the key of its summary, and what it is.
_OF_RUN = {
    "tuner_run_device_busy_ratio": ("device_busy_share", "Share of device time in use"),
    "tuner_run_ready_busy_ratio": (
        "busy_share_while_ready",
        "Share in use of the time in which a device had a job",
    ),
    "tuner_run_device_seconds": ("device_s", "Seconds in which devices worked"),
    "tuner_run_wall_seconds": ("elapsed_s", "Seconds from start to end"),
}


class FarmFigures(Collector):
    """Collects all families. A database that does not answer gives `tuner_database_up` 0 alone."""

    def __init__(self, store: Store, lags: Lags) -> None:
        self._store = store
        self._lags = lags

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            families = list(self._read())
        except StoreError:
            families = []
        up = float(bool(families))
        yield GaugeMetricFamily("tuner_database_up", "Whether the database answers", up)
        yield from families

    def _read(self) -> Iterator[GaugeMetricFamily]:
        store, counts = self._store, self._store.count_states()
        yield _family("tuner_runs", "Runs by status", "status", counts["run"])
        yield _family("tuner_tasks", "Tasks of running runs by stage", "stage", counts["task"])
        yield _family("tuner_trials", "Stored trials by status", "status", counts["trial"])
        ended = [run for run in store.runs(limit=_MOST) if run.finished_at is not None]
        for name, (key, text) in _OF_RUN.items():
            # The newest comes last, and so counts.
            known = {run.campaign: run.summary.get(key) for run in reversed(ended)}
            numbers = {each: n for each, n in known.items() if isinstance(n, int | float)}
            yield _family(name, f"{text}, newest ended run", "campaign", numbers)
        cards = Counter(each.device for each in store.quarantines() if each.is_open)
        yield _family("tuner_quarantined_cards", "Cards in quarantine", "device", cards)
        steps = store.regressions()
        waiting = sum(each.state is RegressionState.CANDIDATE for each in steps)
        states = {"candidate": waiting, "open": sum(each.is_open for each in steps)}
        yield _family("tuner_regressions", "Regressions nobody settled", "state", states)
        text = "Seconds since the oldest due firing that has not ended"
        yield _family("tuner_schedule_lag_seconds", text, "schedule", self._lags(store.now()))


def _family(
    name: str, text: str, label: str, values: Mapping[str, float | int]
) -> GaugeMetricFamily:
    """A family with one label, whose values are inert, short and of bounded number."""
    family = GaugeMetricFamily(name, text, labels=[label])
    found: dict[str, float] = {}
    for each, number in values.items():
        found.setdefault(inert(each)[:_LONGEST].encode(errors="replace").decode(), number)
    for each, number in islice(found.items(), _MOST):
        family.add_metric([each], number)
    return family
