"""Which sizes of a range are searched, which are only compared, and which are left out.

Notation: a < m < b are sizes of the range, t(s) the least confirmed time at s.

The middle of a range is searched, then its ends from there. Then intervals are bisected. At the
middle m of an interval (a, b) the fastest configs of a and b are measured, with no search. A search
at m follows only where it may pay: time grows with the size, and at most as the work does, so that

    t(m) >= max(t(a), t(b) (m / b)^q),

where the work grows with the power q of the size, 1 or more as the times at a and b tell. The best
of the configs within the gain of this bound cannot be beaten by more. After half of the searches,
each further one has to promise half as much again as the one before, and wide intervals that are
undecided keep a search each. An interval is not bisected where it is narrow and one config serves
both ends within half of the gain, which leaves the other half for what it loses between them.

Ranges that differ in joint dims alone (`Kernel.joint_dims`) have rows of a library's table in
common, and a row needs configs that were measured for all of them. The first of these ranges leads:
at each of its sizes the others begin after it, and try its fastest configs there as well; it tries
what won nearest by in the others.

Under `numerics: batch_invariant` rows have the same bits at all sizes. Ends and middle are searched
without that, for half of their budget. Then one digest of bits is chosen: that with the least
product of the best times at these three sizes. They are searched on among its configs, which are
the only ones from there on.

Measured times of layer_norm say how many configs of each neighbour to compare
(docs/decisions/0020-ranges-are-bisected.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import TypeAlias

from results_db.range_outcomes import SizeOutcome, divide, outcome_at
from results_db.stored_records import LEFT_OUT, Source, Stage, TaskInfo, TrialRecord
from search_spaces.records import Config, Value, Workload, config_key
from search_spaces.size_range import Range, RangePlace, find_middle
from tuner.engine.search import Search
from tuner.engine.task import Task
from tuner.engine.task_spec import TaskSpec
from tuner.engine.warm_start import START_SOURCES

#: An interval wider than this, in octaves, is looked into though one config serves both ends.
_WIDE = 0.5
#: By how much each search after the first half has to promise more than the one before.
_GROWTH = 1.5
#: The work grows with the power 2 of the size if the time grows by more than 1 and this.
_ABOVE = 0.1
#: An interval is wider than another if it has this many times its octaves.
_WIDER = 1.4
#: Configs of each neighbour, and configs in all, that are measured between two sizes.
_OF_EACH, _IN_ALL = 12, 28
#: Winners that a range tries of each other one that has rows in common with it.
_JOINT = 3
#: Chosen where no config showed the bits of its rows: none has these.
_NO_BITS = "none"
#: The most configs that are tried at a size that is not searched: these and the default config.
COMPARED = _IN_ALL + 1

#: Kernel, device, the ranges, and the other dims: what the tasks of one range share.
_Key: TypeAlias = tuple[str, str, tuple[tuple[str, Range], ...], frozenset[tuple[str, Value]]]


@dataclass(frozen=True, slots=True)
class FinishedSize:
    """A task of a range that an earlier part of the run has finished."""

    #: The spec of the kernel and the fingerprint of the device.
    kernel: str
    device: str
    workload: Workload
    place: RangePlace
    #: None where it was left out or found nothing.
    outcome: SizeOutcome | None
    #: Whether more was tried than what was to be compared.
    searched: bool = False
    #: The bits that rows have with its config; empty where they were not compared.
    row_bits: str = ""

    @classmethod
    def of(cls, kernel: str, task: TaskInfo, trials: Sequence[TrialRecord]) -> FinishedSize:
        """A stored task with its trials. kernel: the spec of its kernel."""
        assert task.place is not None
        workload, chosen = task.key.workload, task.selection
        size = workload.size(task.place.dim)
        outcome = None if chosen is None else outcome_at(size, chosen, task.finals)
        searched = bool(trials) and (task.place.between is None or _has_searched(trials))
        bits = {config_key(each.config): each.row_bits for each in trials}
        found = None if outcome is None else bits.get(outcome.shipped)
        device = task.key.device.fingerprint
        return cls(kernel, device, workload, task.place, outcome, searched, found or "")

    @property
    def key(self) -> _Key:
        return self.kernel, self.device, self.place.ranges, self.place.rest_of(self.workload)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a task begins."""

    #: What it tries after the default config.
    starts: Sequence[Config] = ()
    #: Whether a search follows, by the least time in us of these; None: in any case.
    pays: Callable[[float], bool] | None = None
    #: What the range's table has for a size that was held out: it takes part in the race.
    served: Config | None = None


@dataclass(slots=True)
class _OneRange:
    """The sizes of one range on one device."""

    #: The size that is searched before all others.
    first: int
    tasks: dict[int, Task] = field(default_factory=dict)
    #: Sizes that are over, with what is known there; None where they were left out.
    known: dict[int, SizeOutcome | None] = field(default_factory=dict)
    #: How many sizes an earlier part of the run has searched.
    before: int = 0
    #: The range whose sizes come before those of this one; None: this one leads.
    leader: _OneRange | None = None
    followers: list[_OneRange] = field(default_factory=list)
    #: The bits of rows that were chosen for all sizes; empty before that.
    row_bits: str = ""

    def list_deciding(self) -> list[Task]:
        """The tasks whose searches decide about the bits of rows: those that wait for no others."""
        places = [(task, task.spec.place) for task in self.tasks.values()]
        return [task for task, place in places if place and not self.waits_between(place)]

    def waits_between(self, place: RangePlace) -> bool:
        """Whether a size waits for those between which it lies; filters may leave these out."""
        return place.between is not None and all(map(self.has, place.between))

    def update(self) -> None:
        """Take the outcomes of the tasks that are over by now."""
        for size, task in self.tasks.items():
            if task.stage is Stage.DONE and size not in self.known:
                chosen = task.outcome
                self.known[size] = (
                    None if chosen is None else outcome_at(size, chosen.selection, chosen.finals)
                )

    def has(self, size: int) -> bool:
        """Whether a size is part of the run; filters may leave it out."""
        return size in self.tasks or size in self.known

    def list_fastest(self, outcome: SizeOutcome) -> list[Config]:
        """The fastest configs of a size: those of its race, then others by their screening."""
        raced, task = outcome.configs, self.tasks.get(outcome.size)
        screened = [] if task is None else _list_fastest(task.search)
        others = [config for config in screened if config_key(config) not in raced]
        return [*raced.values(), *others][:_OF_EACH]

    def waits(self, size: int) -> bool:
        """Whether the leader has not decided about a size that it has."""
        if self.leader is None:
            return False
        self.leader.update()
        return self.leader.has(size) and size not in self.leader.known

    def list_joint(self, size: int) -> list[Config]:
        """The leader's fastest configs of a size, or what won nearest by in the other ranges."""
        if self.leader and (outcome := self.leader.known.get(size)):
            return self.leader.list_fastest(outcome)
        others = [self.leader] if self.leader else self.followers
        return [one for each in others for one in islice(_list_winners(each, size), _JOINT)]

    def count_undecided(self, width: float) -> int:
        """Sizes that may still be searched, in intervals wider than this many octaves."""
        return sum(
            size not in self.known
            and not _is_searched(task)
            and _find_width(task.spec.place) > width
            for size, task in self.tasks.items()
        )

    def count_searches(self) -> int:
        """The sizes that are or were searched, and not only compared."""
        return self.before + sum(map(_is_searched, self.tasks.values()))


class RangeSearches:
    """The ranges of one run."""

    def __init__(self, tasks: Iterable[Task], finished: Iterable[FinishedSize] = ()) -> None:
        by_key: dict[_Key, _OneRange] = {}
        leaders: dict[_Key, _OneRange] = {}
        #: By the number of the task.
        self._ranges: dict[int, _OneRange] = {}
        awaiting: dict[int, _OneRange] = {}
        for task in tasks:
            if (place := task.spec.place) is not None:
                key = _key_of(task.spec, place)
                if key not in by_key:
                    joint = _without(key, task.spec.joint_dims)
                    leader = leaders.get(joint)
                    first = find_middle(place.sizes, place.sizes.low, place.sizes.high)
                    by_key[key] = group = _OneRange(first or place.sizes.high, leader=leader)
                    leaders.setdefault(joint, group)
                    if leader is not None:
                        leader.followers.append(group)
                group = by_key[key]
                self._ranges[task.spec.task_id] = group
                if task.spec.awaits_bits:
                    awaiting[id(group)] = group
                if not place.held_out:
                    group.tasks[task.spec.workload.size(place.dim)] = task
        for each in finished:
            if not each.place.held_out and each.key in by_key:
                size = each.workload.size(each.place.dim)
                by_key[each.key].known[size] = each.outcome
                by_key[each.key].before += each.searched
                by_key[each.key].row_bits = by_key[each.key].row_bits or each.row_bits
        #: Ranges whose bits of rows are to be chosen.
        self._undecided = [group for group in awaiting.values() if not group.row_bits]

    def choose_bits(self) -> bool:
        """Choose the bits of rows where the searches for that are over; whether any were chosen."""
        undecided, self._undecided = self._undecided, []
        for group in undecided:
            deciding = group.list_deciding()
            held = [task for task in deciding if task.is_held]
            if all(task.is_held or task.stage is Stage.DONE for task in deciding):
                group.row_bits = _choose_bits(held)
                for task in held:
                    task.keep_to_bits(group.row_bits)
            else:
                self._undecided.append(group)
        return len(self._undecided) < len(undecided)

    def list_unlikely(self) -> set[int]:
        """Numbers of waiting tasks that will probably be left out: more than may be searched."""
        found: set[int] = set()
        for group in {id(group): group for group in self._ranges.values()}.values():
            waiting = [
                task
                for task in group.tasks.values()
                if task.stage is Stage.WAITING and task.spec.place and task.spec.place.between
            ]
            if waiting and (place := waiting[0].spec.place):
                left = max(0, place.searches - group.count_searches())
                found |= {task.spec.task_id for task in waiting[left:]}
        return found

    def plan(self, task: Task) -> Opening | str | None:
        """How a waiting task begins, why it is left out, or None while it waits for others."""
        place = task.spec.place
        if place is None:
            return Opening()
        group, size = self._ranges[task.spec.task_id], task.spec.workload.size(place.dim)
        group.update()
        if group.row_bits and task.spec.awaits_bits:
            task.keep_to_bits(group.row_bits)
        if place.held_out:
            if task.spec.awaits_bits or not all(each in group.known for each in group.tasks):
                return None
            served = _find_served(group, place, size)
            starts = [*_list_winners(group, size)]
            return Opening(starts if served is None else [served, *starts], served=served)
        if group.waits(size):
            return None
        if place.between is None:
            return _plan_end(group, task, size)
        if not all(each in group.known for each in place.between):
            return None if group.waits_between(place) else Opening()
        lower, upper = (group.known[each] for each in place.between)
        both = f"{place.dim}={place.between[0]} and {place.between[1]}"
        if _has_searched(task.spec.finished):
            return Opening()
        if lower is None or upper is None:
            return f"{LEFT_OUT}: not both of {both} have a result"
        if not _worth_a_look(lower, upper, place.gain):
            return f"{LEFT_OUT}: the configs of {both} serve it"
        bound_us = _find_bound_us(lower, upper, size)
        return Opening(
            _keep_valid(task, _list_starts(group, lower, upper, size)),
            lambda best_us: best_us > bound_us * (1 + _find_least_gain(place, group)),
        )


def _choose_bits(tasks: Iterable[Task]) -> str:
    """The bits of rows that the fastest configs of all tasks have in common, by their times."""
    best: list[dict[str, float]] = []
    for task in tasks:
        times: dict[str, float] = {}
        for trial in task.search.trials.values():
            bits = trial.record.row_bits if trial.record is not None else None
            if bits and trial.score is not None:
                times[bits] = min(times.get(bits, math.inf), trial.score)
        best.append(times)

    def rank(bits: str) -> tuple[int, float, str]:
        found = [times[bits] for times in best if bits in times]
        return -len(found), sum(found), bits

    return min({bits for times in best for bits in times}, key=rank, default=_NO_BITS)


def _plan_end(group: _OneRange, task: Task, size: int) -> Opening | None:
    """How the search of an end or of the middle begins: the middle first, the ends from there."""
    first, outcome = group.tasks.get(group.first), group.known.get(group.first)
    held = first is not None and first.is_held
    if size != group.first and group.first not in group.known and first is not None and not held:
        return None
    fastest = [] if outcome is None else group.list_fastest(outcome)
    if held and first is not None:
        fastest = _list_fastest(first.search)[:_OF_EACH]
    return Opening(_keep_valid(task, _in_turns(fastest, group.list_joint(size))))


def _keep_valid(task: Task, configs: Iterable[Config]) -> list[Config]:
    return [one for one in configs if task.spec.space.why_invalid(one) is None][:_IN_ALL]


def _key_of(spec: TaskSpec, place: RangePlace) -> _Key:
    rest = place.rest_of(spec.workload)
    return spec.kernel.spec, spec.device.fingerprint, place.ranges, rest


def _without(key: _Key, dims: Sequence[str]) -> _Key:
    """What ranges share that differ in these dims alone."""
    kernel, device, ranges, rest = key
    return kernel, device, ranges, frozenset(pair for pair in rest if pair[0] not in dims)


def _worth_a_look(lower: SizeOutcome, upper: SizeOutcome, gain: float) -> bool:
    allowed = math.log1p(gain / 2)
    shared = any(max(lower.loss(key), upper.loss(key)) <= allowed for key in lower.losses)
    return not shared or math.log2(upper.size / lower.size) > _WIDE


def _find_bound_us(lower: SizeOutcome, upper: SizeOutcome, size: int) -> float:
    """The least time that a search may find between two sizes; 0 where that is not known."""
    if lower.best_us is None or upper.best_us is None:
        return 0.0
    power = math.log(upper.best_us / lower.best_us) / math.log(upper.size / lower.size)
    grows = max(1, math.ceil(power - _ABOVE))
    return max(lower.best_us, upper.best_us * (size / upper.size) ** grows)


def _is_searched(task: Task) -> bool:
    if _has_searched(task.spec.finished):
        return True
    return (task.active or len(task.search.trials) > 0) and task.search.asker.searches


def _has_searched(trials: Iterable[TrialRecord]) -> bool:
    """Whether a strategy has suggested one of the trials of a size."""
    return any(trial.strategy not in START_SOURCES for trial in trials)


def _find_width(place: RangePlace | None) -> float:
    """The octaves of the interval in which a size lies; infinite for the ends and the middle."""
    if place is None or place.between is None:
        return math.inf
    return math.log2(place.between[1] / place.between[0])


def _find_least_gain(place: RangePlace, group: _OneRange) -> float:
    """What the next search has to promise, as a share of the time; infinite beyond the last one."""
    searched = group.count_searches()
    if searched + group.count_undecided(_find_width(place) * _WIDER) >= place.searches:
        return math.inf
    return place.gain * _GROWTH ** max(0, searched - place.searches // 2)


def _list_starts(
    group: _OneRange, lower: SizeOutcome, upper: SizeOutcome, size: int
) -> list[Config]:
    """The fastest configs of both neighbours, and of joint ranges, in turns, then the winners of
    other sizes."""
    fastest = map(group.list_fastest, (lower, upper))
    listed = _in_turns(*fastest, group.list_joint(size))
    found = {config_key(each): each for each in (*listed, *_list_winners(group, size))}
    return list(found.values())


def _in_turns(*lists: Sequence[Config]) -> list[Config]:
    """The first of each list, then the second of each."""
    return [one for one in chain.from_iterable(zip_longest(*lists)) if one is not None]


def _list_fastest(search: Search) -> list[Config]:
    """Configs by their times in a search, each binary once; those dropped early count as well."""
    timed = [trial for trial in search.trials.values() if trial.score is not None]
    measured = [each for each in timed if each.record and each.record.source != Source.BINARY]
    measured.sort(key=lambda each: (each.score, each.number))
    return [each.config for each in measured[:_OF_EACH]]


def _find_served(group: _OneRange, place: RangePlace, size: int) -> Config | None:
    """What the table has for a size, once all sizes that have a part in its choice are over."""
    known = [each for each in group.known.values() if each is not None and each.best_us is not None]
    known.sort(key=lambda each: each.size)
    configs = {key: config for each in known for key, config in each.configs.items()}
    for part in divide(known, place.gain, place.sizes) if known else ():
        if part.low <= size <= part.high:
            return configs[part.config]
    return None


def _list_winners(group: _OneRange, size: int) -> Iterator[Config]:
    """What ships at each size, nearest first."""
    known = [each for each in group.known.values() if each is not None]
    for each in sorted(known, key=lambda one: abs(math.log2(one.size / size))):
        yield each.configs[each.shipped]
