"""From the tasks of ranges to the entries of a table: parts without gaps, and what they lose."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_documents import H200, TOOLCHAIN

from results_db import TaskInfo
from results_db.stored_records import (
    BaselineRecord,
    FinalRecord,
    SelectionRecord,
    Stage,
    TaskKey,
    TrialRecord,
)
from search_spaces.records import Status, Workload
from search_spaces.size_range import Range, RangePlace, list_places
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.campaign.range_workloads import list_workloads
from tuner.runtime import DeviceFacts, Entry, Rule, Span, Table
from tuner.settings.sections import TaskConfig
from tuner.tables.range_entries import describe_coverage, list_coverage, list_entries
from tuner.tables.valid_sizes import renew_sizes

GAIN = 0.02
ALL = Span(1, 2**31 - 1)


def task(workload: Workload, place: RangePlace, losses: dict[int, float]) -> TaskInfo:
    """A task of which configs were raced. losses: ln(time / least time) by the config's number."""
    winner = min(losses, key=losses.__getitem__)
    ratio = LogRatio(0.5, 0.49, 0.51)
    return TaskInfo(
        task_id=abs(hash((workload, place.held_out))) % 10**9,
        run_id=1,
        key=TaskKey("k", "aa", "cc", workload, H200, TOOLCHAIN),
        stage=Stage.DONE,
        selection=SelectionRecord(
            {"at": winner}, ({"at": winner},), Verdict.FASTER,
            default={"at": -1}, median_us=9.0, default_us=15.0, log_ratio=ratio,
        ),
        finals=tuple(
            FinalRecord("race", {"at": number}, log_ratio=LogRatio(loss, loss, loss))
            for number, loss in losses.items()
        ),
        place=place,
    )  # fmt: skip


def entry_of(task: TaskInfo) -> Entry:
    dims = task.key.workload.as_dict()
    free = {name: ALL for name, _ in task.place.ranges}
    return Entry(dims, task.selection.winner, sizes=free)


def undeclared(task: TaskInfo) -> Entry:
    return Entry(task.key.workload.as_dict(), task.selection.winner)


def no_trials(task_id: int) -> list[TrialRecord]:
    return []


def table_of(tasks: list[TaskInfo], make_entry=entry_of, trials=no_trials) -> Table:
    entries = list_entries(tasks, make_entry, trials)
    return Table("k", "", DeviceFacts("d"), {}, tuple(entries), Rule("sizes"))


def placed(best: dict[int, int]) -> list[TaskInfo]:
    """Tasks of sizes of one range. best: the number of the best config by size."""
    place = RangePlace((("M", Range(16, 4096)),), GAIN, 8)
    return [task(Workload.of(M=size), place, {config: 0.0}) for size, config in best.items()]


def tasks_of(ranges: dict[str, str], best, **rest) -> list[TaskInfo]:
    """Tasks of all sizes of a range. best: the number of the best config at a workload."""
    line = TaskConfig(kernel="k", workloads=[rest], ranges=ranges, coverage={"held_out": 3})
    found = []
    for workload, place in list_workloads(line, []):
        losses = {number: 0.1 * abs(number - best(workload)) for number in range(4)}
        found.append(task(workload, place, losses))
    return found


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 3000), st.lists(st.integers(1, 4000), max_size=3))
def test_the_entries_part_the_range_without_a_gap(low, more, switches):
    sizes = f"{low}..{low + more}"
    tasks = tasks_of({"M": sizes}, lambda w: sum(w["M"] > s for s in switches), N=8)
    table = table_of(tasks)
    parts = sorted((entry.serves["M"].low, entry.serves["M"].high) for entry in table.entries)
    assert (parts[0][0], parts[-1][1]) == (low, low + more)
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(parts))
    assert len(parts) <= len(set(switches)) + 1
    for each in tasks:
        if not each.place.held_out:  # every measured size has its own best config
            assert table.find(each.key.workload.as_dict()).config == each.selection.winner


def test_two_ranges_part_a_plane():
    tasks = tasks_of(
        {"cols": "256..16384", "rows": "1..4096"},
        lambda w: (w["cols"] > 1000) + (w["rows"] > 100),
        dtype="float16",
    )
    assert {each.key.workload["cols"] for each in tasks} == {256, 1024, 4096, 16384}
    table = table_of(tasks)
    for cols, rows in itertools.product((256, 257, 511, 700, 5000, 16384), (1, 90, 130, 4096)):
        key = {"cols": cols, "rows": rows, "dtype": "float16"}
        hit = table.find(key)
        assert hit.how in ("range", "exact")
        hits = [
            entry
            for entry in table.entries
            if cols in entry.serves["cols"] and rows in entry.serves["rows"]
        ]
        assert [hit.entry] == hits or hit.how == "exact"
    assert table.find({"cols": 300, "rows": 3, "dtype": "float32"}) is None
    last, beyond = (
        table.find({"cols": cols, "rows": 3, "dtype": "float16"}) for cols in (16384, 10**6)
    )
    assert (beyond.how, beyond.config) == ("nearest", last.config)


@pytest.mark.parametrize(
    ("ratios", "runs", "mean"),
    [
        ({64: 1.3, 1151: 0.7, 4096: 1.05}, "eager", (1.3 * 0.7 * 1.05) ** (1 / 3)),
        ({64: 1.3, 1151: 0.9, 4096: 1.05}, "tuned", (1.3 * 0.9 * 1.05) ** (1 / 3)),
        ({64: 0.9, 4096: 0.9}, "eager", 0.9),
    ],
)
def test_a_part_runs_what_is_fastest_over_all_of_its_sizes(ratios, runs, mean):
    place = RangePlace((("M", Range(64, 4096)),), GAIN, 8)
    tasks = []
    for size, ratio in ratios.items():
        # At one size the config of the part is not what ships, and loses 1 %.
        losses = {1: 0.0, 0: 0.01} if size == 1151 else {0: 0.0}
        over = LogRatio(*[math.log(ratio) + losses[0]] * 3)
        timed = BaselineRecord("eager", Status.CORRECT, 9.0, over)
        alone = [BaselineRecord("vendor", Status.CORRECT, 9.0, over)] if size == 64 else []
        each = task(Workload.of(M=size, N=1), place, losses)
        tasks.append(replace(each, baselines=(timed, *alone)))
    (entry,) = table_of(tasks).entries
    assert entry.implementation == runs
    assert entry.baselines == {"eager": pytest.approx(mean, abs=1e-3)}
    assert (entry.serves["M"].low, entry.serves["M"].high) == (64, 4096)


def test_what_is_held_out_changes_no_entry_and_shows_the_loss():
    place = RangePlace((("M", Range(16, 4096)),), GAIN, 8)
    chosen = [
        task(Workload.of(M=size, N=1), place, {0: 0.0, 1: 0.3})
        for size in list_places(Range(16, 4096))
    ]
    out = RangePlace(place.ranges, GAIN, 8, held_out=True)
    held = [
        task(Workload.of(M=100, N=1), out, {1: 0.0, 0: 0.05}),
        task(Workload.of(M=101, N=1), out, {0: 0.0, 1: 0.4}),
        task(Workload.of(M=102, N=1), out, {1: 0.0}),  # the table's config was not raced
    ]
    table = table_of([*chosen, *held])
    assert table.entries == table_of(chosen).entries
    (coverage,) = list_coverage(table, [*chosen, *held], no_trials)
    assert (coverage["held_out"], coverage["configs"], coverage["served"]) == (2, 1, 1.0)
    assert coverage["worst_loss"] == pytest.approx(math.expm1(0.05), abs=1e-4)
    assert coverage["worst_at"] == 100
    assert "at most 5.1% (M=100)" in describe_coverage(coverage)


def test_a_config_without_declaration_serves_between_the_sizes_that_ran():
    table = table_of(placed({32: 0, 512: 0}), undeclared)
    assert table.find({"M": 100}).config == {"at": 0}
    assert table.find({"M": 31}) is None
    assert table.find({"M": 513}) is None


@pytest.mark.parametrize(
    ("passed", "switch"),
    [
        ({0: [512], 1: [64]}, 256),  # both: the roundest size
        ({0: [512], 1: []}, 511),
        ({0: [], 1: [64]}, 64),
    ],
)
def test_the_switch_of_undeclared_configs_is_where_both_were_verified(passed, switch):
    tasks = placed({16: 0, 64: 0, 512: 1, 4096: 1})

    def trials(number: int) -> list[TrialRecord]:
        size = next(t.key.workload["M"] for t in tasks if t.task_id == number)
        ran = [config for config, sizes in passed.items() if size in sizes]
        return [TrialRecord(f"{c}", c, {"at": c}, Status.CORRECT) for c in ran]

    table = table_of(tasks, undeclared, trials)
    parts = [entry.serves["M"] for entry in table.entries]
    assert parts == [Span(16, switch), Span(switch + 1, 4096)]
    for size in range(16, 4097):
        hit = table.find({"M": size})
        assert hit.how in ("exact", "range")
        assert hit.config == {"at": 0 if size <= switch else 1}


def test_a_config_that_failed_at_a_size_serves_none_beyond():
    tasks = placed({16: 0, 64: 0, 256: 1, 512: 1})

    def trials(number: int) -> list[TrialRecord]:
        size = next(t.key.workload["M"] for t in tasks if t.task_id == number)
        status = Status.CORRECTNESS if size == 256 else Status.CORRECT
        return [TrialRecord("a", 0, {"at": 0}, status)]

    table = table_of(tasks, undeclared, trials)
    assert [entry.sizes["M"] for entry in table.entries] == [Span(16, 64), Span(256, 512)]
    assert table.find({"M": 100}) is None


def test_tasks_outside_ranges_keep_their_own_entries():
    assert len(list_entries(placed({16: 0, 4096: 0}), entry_of, no_trials)) == 1
    assert list_entries([], entry_of, no_trials) == []


class Declared:
    """What `valid_sizes` asks of a kernel, for a config whose block must divide n."""

    def declares(self, config):
        return config["block"] is not None

    def check_workload(self, workload):
        pass

    def space(self, workload):
        return self

    def bind(self, workload, device):
        self.size = workload["n"]
        return self

    def why_invalid(self, config):
        return None if self.size % config["block"] == 0 else "n must be a multiple of block"


def test_a_new_config_in_the_place_of_an_old_one_serves_its_part():
    old = Entry({"n": 64}, {"block": 32}, sizes={"n": Span(32, 640, 32)}, serves={"n": Span(1, 99)})
    new = renew_sizes(Declared(), H200, replace(old, config={"block": 16}, serves={}), old)
    assert new.serves == old.serves
    assert new.sizes["n"].multiple == 16
    # Nothing is known of a config that is not declared, unless it is the old one.
    other = renew_sizes(Declared(), H200, replace(old, config={"block": None}), old)
    assert (other.sizes, other.serves) == ({}, {})
    unknown = replace(old, config={"block": None})
    assert renew_sizes(Declared(), H200, unknown, unknown).sizes == old.sizes
    assert renew_sizes(None, H200, old, old) == old
