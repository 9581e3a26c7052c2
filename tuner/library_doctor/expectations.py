"""What tuning a table would gain and cost, from stored results; unknown where there are none.

Notation: t[c, p] is the stored time of config c for part p of a problem (the products of a layer,
which a row configures together), t[c] its sum over all parts. The gain of a size is t[the config
that the library launches] / t[the fastest config].
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results_db import NothingStoredError, Store
from results_db.stored_records import TaskInfo
from search_spaces.errors import TunerError
from search_spaces.records import Config, Status, config_key
from tuner.base.statistics import geometric_mean
from tuner.integrations import Adapter
from tuner.library_doctor.states import Examined

#: Relative difference from which a row counts as slower than the library's default.
_SLOWER = 0.01


@dataclass(frozen=True, slots=True)
class Expectation:
    """What stored results say of one table. None: they say nothing."""

    #: Geometric mean, over the sizes with results, of the time of what the library launches today
    #: over the best time.
    gain: float | None = None
    #: Number of sizes with results.
    sizes: int = 0
    #: Sizes whose row is slower than the library's default config.
    slower: tuple[int, ...] = ()
    #: Minutes of device time to tune all rows.
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class _Tuned:
    """A confirmed task with its times."""

    task: TaskInfo
    #: Times in microseconds by config key.
    times_us: Mapping[str, float]
    configs: Mapping[str, Config]
    #: Seconds for which its trials held the device.
    device_s: float


class Expectations:
    """Reads expectations for tables on one device from a database."""

    def __init__(self, database: str, device: str) -> None:
        self._database, self._device = database, device
        self._tuned: dict[str, list[_Tuned]] = {}

    def of(self, examined: Examined, sizes: Sequence[int]) -> Expectation:
        """The expectation for a table; sizes: the rows that would be tuned."""
        adapter = examined.adapter
        gains: list[float] = []
        slower: list[int] = []
        for size, parts in sorted(self._by_size(examined).items()):
            if adapter.parts and not parts.keys() >= set(adapter.parts):
                continue
            now, default, best = _compare(examined, size, list(parts.values()))
            if now is not None and best is not None:
                gains.append(now / best)
            if now is not None and default is not None and now > default * (1 + _SLOWER):
                slower.append(size)
        gain = geometric_mean(gains)
        return Expectation(gain, len(gains), tuple(slower), self._minutes(examined, sizes))

    def _by_size(self, examined: Examined) -> dict[int, dict[str, _Tuned]]:
        """The newest task of each part of each size of a table."""
        found: dict[int, dict[str, _Tuned]] = defaultdict(dict)
        for kernel in examined.adapter.kernels:
            for tuned in self._all(kernel):
                workload = tuned.task.key.workload
                place = examined.adapter.place(kernel, workload)
                if place is None or place.key != examined.key:
                    continue
                if examined.shape is not None:
                    wanted = examined.adapter.workloads(examined.shape, place.size)
                    if (kernel, workload) not in wanted:
                        continue  # another model's layer, which shares the file
                found[place.size].setdefault(place.part, tuned)
        return found

    def _minutes(self, examined: Examined, sizes: Sequence[int]) -> float | None:
        """Minutes for all rows, from the mean device time of stored tasks of the same kernels."""
        shape = examined.shape
        if shape is None:
            return None
        tasks = [kernel for size in sizes for kernel, _ in examined.adapter.workloads(shape, size)]
        mean_s: dict[str, float] = {}
        for kernel in set(tasks):
            seconds = [tuned.device_s for tuned in self._all(kernel) if tuned.device_s > 0]
            if not seconds:
                return None
            mean_s[kernel] = math.fsum(seconds) / len(seconds)
        return math.fsum(mean_s[kernel] for kernel in tasks) / 60 if tasks else None

    def _all(self, kernel: str) -> list[_Tuned]:
        """The confirmed tasks of a kernel on the device, the newest first."""
        if kernel not in self._tuned:
            try:
                with Store.open(self._database, create=False) as store:
                    self._tuned[kernel] = list(_read(store, kernel, self._device))
            except NothingStoredError:
                self._tuned[kernel] = []
        return self._tuned[kernel]


def _read(store: Store, kernel: str, device: str) -> Iterator[_Tuned]:
    for one in store.list_confirmed(kernel):
        if one.device == device:
            trials = store.trials(one.task_id)
            right = [t for t in trials if t.status is Status.CORRECT and t.median_us]
            yield _Tuned(
                store.task(one.task_id),
                {config_key(trial.config): trial.median_us or 0.0 for trial in right},
                {config_key(trial.config): trial.config for trial in right},
                math.fsum(trial.device_s for trial in trials),
            )


def _compare(
    examined: Examined, size: int, parts: Sequence[_Tuned]
) -> tuple[float | None, float | None, float | None]:
    """The times of what the library launches, of its default, and of the fastest config."""
    adapter, key, device = examined.adapter, examined.key, parts[0].task.key.device

    def time_us(table: bool) -> float | None:
        try:
            config = adapter.choice(examined.table if table else None, key, size, device)
        except TunerError:
            return None
        found = [
            part.times_us.get(config_key(adapter.translate_back(part.task.key.kernel, config)))
            for part in parts
        ]
        known = [one for one in found if one is not None]
        return math.fsum(known) if len(known) == len(found) else None

    common = set.intersection(*(set(part.times_us) for part in parts))
    usable = [one for one in common if all(_expressible(adapter, part, one) for part in parts)]
    sums = [math.fsum(part.times_us[one] for part in parts) for one in usable]
    return time_us(table=True), time_us(table=False), min(sums, default=None)


def _expressible(adapter: Adapter, part: _Tuned, key: str) -> bool:
    """Whether the library can launch a config."""
    try:
        adapter.translate(part.task.key.kernel, part.configs[key])
    except TunerError:
        return False
    return True
