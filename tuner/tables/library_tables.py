"""Exporters of the tables that libraries load: one file per problem and device, rows by size.

Notation: t[c, p, l] is the time of config c for part p of problem l. A row's config minimises
sum_l ln sum_p t[c, p, l], because the parts of a problem (both products of a layer) run one after
the other with the same config, and problems that share a file count alike. The sizes of a range
become the fewest rows by which the library's lookup gives the config that the range chose.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from results_db.range_outcomes import SizeOutcome, divide, outcome_at
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.errors import TunerError
from search_spaces.records import Config, Device, Status, config_key
from search_spaces.size_range import RangePlace
from tuner import integrations
from tuner.integrations import Adapter, Place, SizeTable, TableKey
from tuner.integrations.size_rows import SizePart, list_rows
from tuner.tables.exporters import File
from tuner.tables.results import Results
from workers import backend_kinds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LibraryTable:
    """One file to be: the rows that a run found for a key on a device."""

    adapter: Adapter
    key: TableKey
    device: Device
    triton: str
    #: The tasks by size.
    tasks: Mapping[int, Sequence[tuple[Place, TaskInfo]]]
    rows: Mapping[int, Config]
    #: The place of the sizes in a range; None where each size is a row.
    place: RangePlace | None = None

    @property
    def file(self) -> File:
        text = self.adapter.text_of(SizeTable(self.rows, self.triton))
        name = self.adapter.export_name(self.key, self.device.name, self.triton)
        found = {task.task_id for pairs in self.tasks.values() for _, task in pairs}
        return File(name, text.encode(), tuple(sorted(found)))


class LibraryTables:
    """The tables of one library."""

    library = ""

    def __init__(self) -> None:
        #: Changes each table before it is written. Then no part has a file of its own: rows that
        #: are added to one file would change what the other file's rows launch.
        self.adjust: Callable[[LibraryTable], LibraryTable] | None = None

    def files(self, results: Results) -> Iterator[File]:
        for table in self.tables(results):
            yield self.adjust(table).file if self.adjust else table.file

    def tables(self, results: Results) -> list[LibraryTable]:
        """The tables of a run; raises TunerError where none of its tasks has a place in one."""
        groups: dict[tuple[str, ...], _Group] = {}
        refused: dict[str, str] = {}
        for task in results.tasks:
            if task.selection is None or task.selection.median_us is None:
                continue
            if task.place is not None and task.place.held_out:
                continue
            if not backend_kinds.spec_of_stored(task.key.device.kind).timed:
                continue
            found = self._place(task)
            if isinstance(found, str):
                refused.setdefault(found, task.key.workload.key)
                continue
            adapter, place = found
            same = (adapter.name, f"{place.key}", task.key.device.fingerprint)
            code = (task.key.toolchain.triton, task.key.launch_hash)
            group = groups.setdefault((*same, *code), _Group(adapter, place.key, task))
            group.rows[place.size].append((place, task))
        for reason in refused:
            _log.warning("left out of the tables for %s: %s", self.library, reason)
        if not groups:
            raise self._nothing(results, refused)
        newest: dict[str, _Group] = {}
        for _, group in sorted(groups.items(), key=lambda pair: pair[1].latest):
            newest[group.file_name] = group
        whole = [newest[name].table(results) for name in sorted(newest)]
        return whole if self.adjust else [one for table in whole for one in split(table, results)]

    def _place(self, task: TaskInfo) -> tuple[Adapter, Place] | str:
        """The adapter and row of a task, or why it has none."""
        kernel, workload = task.key.kernel, task.key.workload
        adapters = integrations.adapters(self.library)
        fitting = [adapter for adapter in adapters if kernel in adapter.kernels]
        for adapter in fitting:
            if place := adapter.place(kernel, workload):
                return adapter, place
        if fitting:
            return f"{fitting[0].name} cannot express {kernel} [{workload.key}]"
        known = sorted({name for adapter in adapters for name in adapter.kernels})
        return f"no table of {self.library} has configs of {kernel}, only of {', '.join(known)}"

    def _nothing(self, results: Results, refused: Mapping[str, str]) -> TunerError:
        if refused:
            reason = next(iter(refused))
            return TunerError(
                f"run {results.run_id} has nothing for {self.library}: {reason}",
                "export it as `tuner` or `triton`, or tune one of these kernels",
            )
        return TunerError(
            f"run {results.run_id} has nothing to export as {self.library}",
            "only tasks with a confirmed winner go into tables; see `tuner status`",
        )


class Vllm(LibraryTables):
    """`vllm`: files for VLLM_TUNED_CONFIG_FOLDER, and below `package/` for vLLM's own folders."""

    library = "vllm"


class Sglang(LibraryTables):
    """`sglang`: a folder for SGLANG_MOE_CONFIG_DIR, and below `package/` for SGLang's own ones."""

    library = "sglang"


class _Group:
    """The tasks of one file."""

    def __init__(self, adapter: Adapter, key: TableKey, task: TaskInfo) -> None:
        self.adapter, self.key = adapter, key
        self.device, self.triton = task.key.device, task.key.toolchain.triton
        self.rows: dict[int, list[tuple[Place, TaskInfo]]] = defaultdict(list)

    @property
    def latest(self) -> int:
        """The newest task; of groups for one file, as after a change of the code, that one wins."""
        return max(task.task_id for pairs in self.rows.values() for _, task in pairs)

    @property
    def file_name(self) -> str:
        return self.adapter.export_name(self.key, self.device.name, self.triton)

    def table(self, results: Results) -> LibraryTable:
        place = self._find_place()
        tasks = self._list_whole() if place else self.rows
        self._warn_of_missing_parts(tasks)
        outcomes = self._list_outcomes(results, tasks, some=place is not None)
        if place is None:
            rows = {each.size: each.configs[each.shipped] for each in outcomes}
        else:
            configs = {key: config for each in outcomes for key, config in each.configs.items()}
            rows = list_rows(
                [
                    SizePart(part.low, part.high, configs[part.config])
                    for part in divide(outcomes, place.gain, place.sizes)
                ]
            )
        return LibraryTable(self.adapter, self.key, self.device, self.triton, tasks, rows, place)

    def _list_outcomes(
        self, results: Results, tasks: Mapping[int, Sequence[tuple[Place, TaskInfo]]], some: bool
    ) -> list[SizeOutcome]:
        """What is known of each size. some: sizes may be left out that no config can serve."""
        found: list[SizeOutcome] = []
        unknown: list[TunerError] = []
        for size, pairs in sorted(tasks.items()):
            try:
                found.append(make_outcome(self.adapter, results, size, pairs))
            except TunerError as error:
                unknown.append(error)
        if unknown and not (some and found):
            raise unknown[0]
        return found

    def _find_place(self) -> RangePlace | None:
        """The place of the rows' sizes in a range, where they are those that it bisects."""
        for _, task in itertools.chain.from_iterable(self.rows.values()):
            if task.place and task.place.dim == self.adapter.size_dims[task.key.kernel]:
                return task.place
        return None

    def _list_whole(self) -> Mapping[int, list[tuple[Place, TaskInfo]]]:
        """The sizes of which every part was measured; each part looks at sizes of its own."""
        parts = {
            size: {(place.part, place.rest) for place, _ in pairs}
            for size, pairs in self.rows.items()
        }
        every = set().union(*parts.values())
        whole = {size: self.rows[size] for size, found in parts.items() if found == every}
        return whole or self.rows

    def _warn_of_missing_parts(self, tasks: Mapping[int, Sequence[tuple[Place, TaskInfo]]]) -> None:
        """One line for the first row of which a part was not tuned."""
        for size, pairs in sorted(tasks.items()):
            for rest in {place.rest for place, _ in pairs}:
                parts = {place.part for place, _ in pairs if place.rest == rest}
                if parts.issuperset(self.adapter.parts):
                    continue
                _log.warning(
                    "%s [%s]: the row of size %s configures %s, of which only %s was tuned",
                    *(self.adapter.name, self.key, size, " and ".join(self.adapter.parts)),
                    ", ".join(sorted(parts)),
                )
                return


def split(table: LibraryTable, results: Results) -> list[LibraryTable]:
    """A table and that of its separate part; the table alone where no row gains by it.

    Both have the same sizes, so that a lookup takes rows that were chosen together. Rows of a range
    stand for parts of it, which both products share.
    """
    adapter = table.adapter
    key = adapter.separate_key(table.key)
    if key is None or table.place is not None:
        return [table]
    first, second = dict(table.rows), dict(table.rows)
    for size, pairs in table.tasks.items():
        if found := _split_row(adapter, results, pairs, table.rows[size]):
            first[size], second[size] = found
    if first == second:
        return [table]
    return [replace(table, rows=first), replace(table, key=key, rows=second)]


def _split_row(
    adapter: Adapter, results: Results, pairs: Sequence[tuple[Place, TaskInfo]], joint: Config
) -> tuple[Config, Config] | None:
    """The configs of the other parts and of the separate part with the least sum of times.

    They agree in the parameters that the library shares. Only configs of the finals, and the joint
    row's, are chosen from, since times of the search are less certain. None: the parts were not
    tuned for the same problems, or no two of these configs agree.
    """
    halves: list[dict[object, TaskInfo]] = [{}, {}]
    for place, task in sorted(pairs, key=lambda pair: pair[1].task_id):
        halves[place.part == adapter.separate][place.rest] = task
    if not halves[0] or halves[0].keys() != halves[1].keys():
        return None
    times = [
        {rest: _finals(adapter, results, task, joint) for rest, task in half.items()}
        for half in halves
    ]
    known = [next(iter(half.values())) for half in times]
    first, second = (
        [key for key in known[at] if all(key in one for one in half.values())]
        for at, half in enumerate(times)
    )
    choices = [
        pair
        for pair in itertools.product(first, second)
        if _agree(adapter, known[0][pair[0]][0], known[1][pair[1]][0])
    ]

    def score(pair: tuple[str, str]) -> tuple[float, tuple[str, str]]:
        sums = (times[0][rest][pair[0]][1] + times[1][rest][pair[1]][1] for rest in times[0])
        return sum(map(math.log, sums)), pair

    if not choices:
        return None
    # Of one problem, the configs that the parts' own tables ship come first.
    alone = len(halves[0]) == 1 and choices[0] == (first[0], second[0])
    best = choices[0] if alone else min(choices, key=score)
    return known[0][best[0]][0], known[1][best[1]][0]


def _agree(adapter: Adapter, first: Config, second: Config) -> bool:
    """Whether two configs can be launched for the parts of one row."""
    return all(first.get(name) == second.get(name) for name in adapter.shared)


def _finals(
    adapter: Adapter, results: Results, task: TaskInfo, joint: Config
) -> dict[str, tuple[Config, float]]:
    """The configs of a task's finals and the joint row's, with their times in us.

    The config that the task's table ships comes first.
    """
    times = _times(adapter, results, task)
    keys = [*_finalists(adapter, task), config_key(joint)]
    return {key: times[key] for key in keys if key in times}


def make_outcome(
    adapter: Adapter, results: Results, size: int, pairs: Sequence[tuple[Place, TaskInfo]]
) -> SizeOutcome:
    """What is known of a row, in the library's parameters; the config that ships is the row's.

    A single task keeps the config that its table would ship. Raises TunerError where no config that
    was timed for all tasks can be expressed.
    """
    newest = {place: task for place, task in sorted(pairs, key=lambda pair: pair[1].task_id)}
    timed = [_times(adapter, results, task) for task in newest.values()]
    common = [key for key in timed[0] if all(key in times for times in timed)]
    if not common:
        raise _no_config(adapter, results, list(newest.values()))
    preferred = [_finalists(adapter, task) for task in newest.values()]
    finalists = [key for key in common if any(key in found for found in preferred)]
    # Where a shipped config cannot be expressed, the search's own times decide.
    ships = all(found[0] for found in preferred)

    def score(key: str) -> tuple[float, str]:
        problems: dict[object, float] = defaultdict(float)
        for place, times in zip(newest, timed, strict=True):
            problems[place.rest] += times[key][1]
        return sum(map(math.log, problems.values())) / len(problems), key

    alone = len(newest) == 1 and preferred[0][0] in common
    best = (
        preferred[0][0] if alone else min(finalists if ships and finalists else common, key=score)
    )
    losses = {key: max(0.0, score(key)[0] - score(best)[0]) for key in common}
    return SizeOutcome(size, None, losses, {key: timed[0][key][0] for key in common}, best)


def _times(adapter: Adapter, results: Results, task: TaskInfo) -> dict[str, tuple[Config, float]]:
    """The configs that the library can launch, in its parameters, with their times in us.

    A time of the race, in which configs were measured side by side, replaces that of a trial.
    """
    found: dict[str, tuple[Config, float]] = {}
    for trial in results.trials(task.task_id):
        row = _row(adapter, task, trial.config)
        if row is not None and trial.status is Status.CORRECT and trial.median_us:
            known = found.get(config_key(row))
            if known is None or trial.median_us < known[1]:
                found[config_key(row)] = row, trial.median_us
    assert task.selection is not None
    raced = outcome_at(0, task.selection, task.finals)
    for key, loss in raced.losses.items():
        row = _row(adapter, task, raced.configs[key])
        if row is not None and raced.best_us:
            found[config_key(row)] = row, raced.best_us * math.exp(loss)
    return found


def _finalists(adapter: Adapter, task: TaskInfo) -> list[str]:
    """The keys of the configs of a task's finals, the one that ships first; "" for a config that
    the library cannot launch."""
    assert task.selection is not None
    ships = select_shipped(task.selection)
    configs = [ships.config, *ships.ties, task.selection.runner_up, task.selection.default]
    rows = [_row(adapter, task, config) for config in configs if config is not None]
    return [config_key(row) if row is not None else "" for row in rows]


def _row(adapter: Adapter, task: TaskInfo, config: Config) -> Config | None:
    try:
        return adapter.translate(task.key.kernel, config)
    except TunerError:
        return None


def _no_config(adapter: Adapter, results: Results, tasks: Sequence[TaskInfo]) -> TunerError:
    task = tasks[0]
    assert task.selection is not None
    for one in tasks:
        try:
            adapter.translate(
                one.key.kernel, select_shipped(one.selection or task.selection).config
            )
        except TunerError as error:
            return TunerError(
                f"{one.key.kernel} [{one.key.workload.key}]: {error.message}", error.hint
            )
    return TunerError(
        f"{adapter.name}: no config was timed for all of "
        + ", ".join(f"{one.key.kernel} [{one.key.workload.key}]" for one in tasks),
        "run the campaign again: it tries winners of neighbouring workloads first",
    )
