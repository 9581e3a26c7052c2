"""What is known at each size of a range, and the fewest configs that serve it.

Notation: s is a measured size, c a config, b(s) the config that ships at s, and L(c, s) the loss
max(0, ln(time of c / time of b(s))) there, from the race at s, in which all configs were measured
side by side. A config that was faster in the race and not confirmed loses nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from results_db.shipped import select_shipped
from results_db.stored_records import FinalRecord, SelectionRecord, TaskInfo, TrialRecord
from search_spaces.records import Config, Workload, config_key
from search_spaces.size_range import Range, RangePlace
from workers.job_records import Mode


@dataclass(frozen=True, slots=True)
class SizeOutcome:
    """The outcome at one size."""

    size: int
    #: The confirmed time of the config that ships; None where nothing is confirmed.
    best_us: float | None
    #: L(c, s) by config key: of all configs that were raced here.
    losses: Mapping[str, float]
    #: These configs, fastest first, by key.
    configs: Mapping[str, Config]
    #: The key of the config that ships.
    shipped: str

    def loss(self, config: str) -> float:
        """L of a config by its key; infinite where it was not measured here."""
        return self.losses.get(config, math.inf)


def outcome_at(size: int, selection: SelectionRecord, finals: Iterable[FinalRecord]) -> SizeOutcome:
    """The outcome of a task, from its selection and its race."""
    ships = select_shipped(selection)
    key = config_key(ships.config)
    raced = {
        config_key(each.config): (each.log_ratio.value, each.config)
        for each in finals
        if each.stage == Mode.RACE and each.log_ratio is not None
    }
    reference = raced.setdefault(key, (0.0, ships.config))[0]
    losses = {name: max(0.0, loss - reference) for name, (loss, _) in raced.items()}
    ordered = sorted(raced, key=lambda name: (losses[name], name != key))
    return SizeOutcome(
        size,
        ships.median_us,
        {name: losses[name] for name in ordered},
        {name: raced[name][1] for name in ordered},
        key,
    )


def find_loss(outcome: SizeOutcome, config: str, trials: Iterable[TrialRecord]) -> float | None:
    """What a config loses at a size, as a share of the time there; None where it was not timed.

    From the race; for a config that failed there, or of a run that raced only the fastest, from the
    times of the trials of that size, which are of different passes.
    """
    if config in outcome.losses:
        return math.expm1(outcome.losses[config])
    times = {config_key(t.config): t.median_us for t in trials if t.median_us is not None}
    return times[config] / min(times.values()) - 1 if config in times else None


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring sizes that one config serves."""

    #: The key of the config.
    config: str
    #: The measured sizes, in order.
    sizes: tuple[int, ...]
    #: The first and the last size that the config serves.
    low: int
    high: int


def divide(outcomes: Sequence[SizeOutcome], gain: float, reach: Range) -> list[Segment]:
    """The fewest segments of a range in which no measured size loses more than `gain`.

    outcomes: in the order of their sizes. Of equally many segments, those with the least loss,
    weighed by the share of the launches nearest to each size. A segment's config ships at one of
    its sizes, so that its evidence is a confirmation. By dynamic programming over the sizes.
    """
    allowed, weights = math.log1p(gain), _weigh_each(outcomes, reach)
    #: By the number of sizes that are served: (segments, loss, last segment's start, its config).
    best: list[tuple[int, float, int, str]] = [(0, 0.0, 0, "")]
    for end in range(1, len(outcomes) + 1):
        found: list[tuple[int, float, int, str]] = []
        #: The loss from `start` to `end` of each config that serves all of these sizes.
        serving, shipped = dict.fromkeys(outcomes[end - 1].losses, 0.0), set[str]()
        for start in reversed(range(end)):
            each, before = outcomes[start], best[start]
            shipped.add(each.shipped)
            serving = {
                config: loss + each.loss(config) * weights[start]
                for config, loss in serving.items()
                if each.loss(config) <= allowed
            }
            if not serving:
                break
            found += [
                (before[0] + 1, before[1] + serving[config], start, config)
                for config in shipped & serving.keys()
            ]
        best.append(min(found))
    cuts: list[tuple[int, int, str]] = []
    end = len(outcomes)
    while end:
        _, _, start, config = best[end]
        cuts.insert(0, (start, end, config))
        end = start
    sizes = [each.size for each in outcomes]
    ends = [*(find_switch(*sizes[end - 1 : end + 1]) for _, end, _ in cuts[:-1]), reach.high]
    lows = [reach.low, *(end + 1 for end in ends)]
    return [
        Segment(config, tuple(sizes[start:end]), low, high)
        for (start, end, config), low, high in zip(cuts, lows, ends, strict=False)
    ]


def find_switch(lower: int, upper: int) -> int:
    """The last size that the lower of two neighbouring segments serves: the roundest one there.

    Blocks hold powers of two: just beyond a multiple of one, a launch takes the blocks of the next.
    """
    unit = 1 << (upper - 1).bit_length()
    while (size := -(-lower // unit) * unit) >= upper:
        unit //= 2
    return size


def _weigh_each(outcomes: Sequence[SizeOutcome], reach: Range) -> list[float]:
    """The share of the launches that are nearest to each size."""
    sizes = [each.size for each in outcomes]
    switches = list(itertools.starmap(find_switch, itertools.pairwise(sizes)))
    lows = [*sizes[:1], *(switch + 1 for switch in switches)]
    return list(map(reach.weigh, lows, [*switches, *sizes[-1:]]))


# -- the tasks of a run by ranges ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RangePart:
    """Sizes of a range that one config serves, with the task that stands for them."""

    task: TaskInfo
    segment: Segment

    @property
    def low(self) -> int:
        return self.segment.low

    @property
    def high(self) -> int:
        return self.segment.high


@dataclass(frozen=True, slots=True)
class RangeTasks:
    """The tasks of one kernel on one device that search one range together."""

    place: RangePlace
    #: The dims that are the same for all of them.
    fixed: Workload
    #: What is known at each size that has a part in the choice, and its task, by size.
    known: tuple[tuple[SizeOutcome, TaskInfo], ...]
    #: The same of the sizes that were held out.
    held_out: tuple[tuple[SizeOutcome, TaskInfo], ...]

    def list_parts(self) -> list[RangePart]:
        """The parts of the range that one config each serves, in the order of their sizes."""
        outcomes = [outcome for outcome, _ in self.known]
        segments = divide(outcomes, self.place.gain, self.place.sizes)
        return [RangePart(self._choose_task(segment), segment) for segment in segments]

    def _choose_task(self, segment: Segment) -> TaskInfo:
        """Of the sizes of a segment at which its config ships, the one nearest to the middle."""
        middle = math.log2(segment.sizes[0] * segment.sizes[-1]) / 2
        near = {
            abs(math.log2(outcome.size) - middle): task
            for outcome, task in self.known
            if outcome.size in segment.sizes and outcome.shipped == segment.config
        }
        return near[min(near)]


def group_ranges(tasks: Iterable[TaskInfo]) -> list[RangeTasks]:
    """The ranges of a run, from its tasks with a confirmed time, in the order of the tasks."""
    groups: dict[Hashable, list[TaskInfo]] = {}
    for task in tasks:
        if task.place is not None and task.selection and task.selection.median_us is not None:
            key, rest = task.key, task.place.rest_of(task.key.workload)
            same = key.kernel, key.launch_hash, key.device.fingerprint, task.place.ranges, rest
            groups.setdefault(same, []).append(task)
    return [found for each in groups.values() if (found := _make_range(each)).known]


def list_shown(tasks: Sequence[TaskInfo]) -> list[TaskInfo | RangePart]:
    """What readers see of tasks, in their order: those of a range as the parts of all of them.

    Sizes that were held out are not shown.
    """
    groups = {id(task): group for group in group_ranges(tasks) for _, task in group.known}
    shown: list[TaskInfo | RangePart] = []
    for task in tasks:
        if task.place is None:
            shown.append(task)
        elif group := groups.get(id(task)):
            shown += group.list_parts()
            groups = {key: each for key, each in groups.items() if each is not group}
    return shown


def _make_range(tasks: Sequence[TaskInfo]) -> RangeTasks:
    place, workload = tasks[0].place, tasks[0].key.workload
    assert place is not None
    fixed = {name: workload[name] for name in workload if name != place.dim}
    known: dict[int, tuple[SizeOutcome, TaskInfo]] = {}
    held_out: dict[int, tuple[SizeOutcome, TaskInfo]] = {}
    for task in tasks:
        assert task.selection is not None
        size = task.key.workload.size(place.dim)
        is_chosen = task.place is not None and not task.place.held_out
        outcome = outcome_at(size, task.selection, task.finals)
        (known if is_chosen else held_out)[size] = outcome, task
    by_size = [tuple(each[size] for size in sorted(each)) for each in (known, held_out)]
    return RangeTasks(place, Workload.from_mapping(fixed), *by_size)
