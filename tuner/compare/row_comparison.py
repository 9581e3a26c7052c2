"""Compare configs of a library with its choice today, by measuring our kernels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from search_spaces.records import Config, Status, Workload, config_key
from tuner.base.log_ratio import LogRatio
from tuner.compare.bench_rows import BenchRow, compare
from tuner.compare.given_tasks import GivenTask
from tuner.compare.named_configs import Variant
from tuner.compare.targets import BenchTarget, bench_target
from tuner.integrations import Adapter, Place
from tuner.integrations.size_rows import Pair
from tuner.progress import ProgressCallback
from tuner.settings.sections import Settings


class RowWorkload(NamedTuple):
    """A workload of some row: a kernel's spec, its name, the workload and its place."""

    spec: str
    kernel: str
    workload: Workload
    place: Place


@dataclass(slots=True)
class RowComparison:
    """A `Compare` that measures on this machine; each call starts a pool of its own.

    parts: of all rows; they are measured at other sizes. target: the kind of device.
    """

    settings: Settings
    base: Path
    adapter: Adapter
    parts: Sequence[RowWorkload]
    target: str
    on_progress: ProgressCallback | None = None
    _targets: dict[str, BenchTarget] = field(default_factory=dict)

    def __call__(self, pairs: Sequence[Pair]) -> list[LogRatio | None]:
        """A pair is worse if it is so for any problem. None: something could not be measured."""
        found: dict[tuple[int, str], dict[object, list[_Ratio | None]]]
        found = defaultdict(lambda: defaultdict(list))
        given = [item for part in self._problems() for item in self._list_given(part, pairs)]
        passes = compare(self.settings, [task for _, _, task in given], self.on_progress)
        for (part, size, _), measured in zip(given, passes, strict=True):
            today, *others = measured.rows
            for row in others:
                found[size, row.variant][part.place.rest].append(_ratio(today, row))
        return [_worst(found[pair.size, config_key(pair.config)].values()) for pair in pairs]

    def _problems(self) -> Iterable[RowWorkload]:
        """Each part of each problem once, whatever its size."""
        same = {(part.kernel, part.place.part, part.place.rest): part for part in self.parts}
        return same.values()

    def _list_given(
        self, part: RowWorkload, pairs: Sequence[Pair]
    ) -> Iterable[tuple[RowWorkload, int, GivenTask]]:
        """A task for each size: today's config first, then the configs to compare."""
        if part.spec not in self._targets:
            target = bench_target(self.settings, self.base, part.spec, target=self.target)
            self._targets[part.spec] = target
        chosen: dict[int, list[Variant]] = {}
        for pair in pairs:
            today = Variant("today", self._ours(part, pair.today))
            config = Variant(config_key(pair.config), self._ours(part, pair.config))
            chosen.setdefault(pair.size, [today]).append(config)
        for size, variants in chosen.items():
            workload = part.workload.with_dims(**{self.adapter.size_dims[part.kernel]: size})
            yield part, size, GivenTask(self._targets[part.spec], workload, variants)

    def _ours(self, part: RowWorkload, config: Config) -> Config:
        return self.adapter.translate_back(part.kernel, config)


class _Ratio(NamedTuple):
    """ln(time of a config / today's), and today's time in us."""

    log_ratio: LogRatio
    today_us: float


def _ratio(today: BenchRow, row: BenchRow) -> _Ratio | None:
    timed = all(one.status is Status.CORRECT and one.median_us for one in (today, row))
    if not timed or row.log_ratio is None or row.log_ratio.interval is None:
        return None
    return _Ratio(row.log_ratio, today.median_us or 0.0)


def _worst(problems: Iterable[Sequence[_Ratio | None]]) -> LogRatio | None:
    """The comparison of the problem that loses most; the times of its parts add up."""
    found = []
    for ratios in problems:
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) < len(ratios) or not known:
            return None
        whole = sum(one.today_us for one in known)
        sums = (
            sum(math.exp(getattr(one.log_ratio, name)) * one.today_us for one in known) / whole
            for name in ("value", "low", "high")
        )
        found.append(LogRatio(*map(math.log, sums)))
    return max(found, key=lambda one: one.low) if found else None


def parts_of(
    adapter: Adapter, tasks: Iterable[tuple[str, Workload]], specs: Mapping[str, str]
) -> list[RowWorkload]:
    """The parts of a table. tasks: names of kernels with workloads. specs: by name, if others."""
    found = []
    for kernel, workload in tasks:
        if place := adapter.place(kernel, workload):
            found.append(RowWorkload(specs.get(kernel, kernel), kernel, workload, place))
    return found
