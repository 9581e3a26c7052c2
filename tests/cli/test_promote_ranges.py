"""`tuner promote` of the entries of a range into a table that serves this range already."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from cli_samples import DEFAULT, DEVICE
from promotions import only_table, promote

from results_db import Store
from results_db.stored_records import FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Toolchain, Workload
from search_spaces.size_range import Range, RangePlace
from tuner.base.log_ratio import LogRatio

LOW, HIGH = {"BLOCK": 256}, {"BLOCK": 4096}
OTHER = {"BLOCK": 512}
#: The sizes that both runs measure, with the config that wins at each.
FORMER = {16: LOW, 64: LOW, 256: HIGH, 1024: HIGH}


def fill_range(
    url: str,
    best: Mapping[int, Mapping[str, int]],
    *,
    gain: Mapping[int, float] | float = 0.5,
    half_width: float = 0.001,
    sizes: str = "16..1024",
    cols: int = 64,
    launch_hash: str = "0123456789abcdef",
) -> int:
    """Add a finished run over a range of rows.

    best: the winner at each measured size; others lose 10 %. gain: ln(default time / winner time).
    """
    low, high = map(int, sizes.split(".."))
    place = RangePlace((("rows", Range(low, high)),), 0.02, 8)
    configs = [config for config in (LOW, HIGH, OTHER) if config in best.values()]
    with Store.open(url) as store:
        run = store.begin_run("nightly", "spec", 7, {}, {"tasks": []})
        for size, winner in best.items():
            workload = Workload.of(rows=size, cols=cols, dtype="float32")
            tools = Toolchain(python="3.12", torch="2.11", triton="3.6")
            key = TaskKey("scale", launch_hash, "fedc", workload, DEVICE, tools)
            task = store.ensure_task(
                run.run_id, key, flops=1e9, bytes=1e8, tolerance=0.01, place=place
            )
            value = gain if isinstance(gain, float) else gain[size]
            selection = SelectionRecord(
                winner, (winner,), "faster", default=DEFAULT, median_us=70.0, default_us=115.0,
                confirmed_at=datetime.now(UTC),
                log_ratio=LogRatio(value, value - half_width, value + half_width),
            )  # fmt: skip
            losses = [(config, 0.0 if config == winner else 0.1) for config in configs]
            finals = [
                FinalRecord("race", config, log_ratio=LogRatio(loss, loss, loss))
                for config, loss in losses
            ]
            store.record_selection(task.task_id, selection, [], finals)
            store.set_stage(task.task_id, "done")
        store.finish_run(run.run_id, "finished", {})
        return run.run_id


def served(table, *sizes: int) -> list[Mapping[str, object] | None]:
    """The configs that a table gives for some rows."""
    keys = ({"rows": size, "cols": 64, "dtype": "float32"} for size in sizes)
    return [hit and hit.config for hit in map(table.find, keys)]


def test_a_range_is_replaced_as_a_whole_where_it_is_faster_somewhere_and_slower_nowhere(
    tuner, url, folder
):
    promote(tuner, fill_range(url, FORMER))
    # Faster at 16 rows, equal beyond its intervals at 64.
    new = {**FORMER, 16: OTHER, 64: OTHER}
    rows = promote(tuner, fill_range(url, new, gain={16: 0.6, 64: 0.5, 256: 0.5, 1024: 0.5}))
    assert {row["outcome"] for row in rows} == {"promoted"}
    (reason,) = {row["reason"] for row in rows}
    assert reason.startswith("faster at 1 of 2 sizes compared, slower at none: rows=16 cols=64")
    table = only_table(folder)
    assert served(table, 16, 30, 64, 256, 1024) == [OTHER, OTHER, OTHER, HIGH, HIGH]
    assert table.find_overlap() == ""
    (coverage,) = table.coverage
    assert coverage["configs"] == 2
    with Store.open(url) as store:
        assert {each.reason for each in store.promotions()} == {reason, "new table"}
    assert tuner("rollback", "published").code == 0
    assert served(only_table(folder), 16, 64, 256) == [LOW, LOW, HIGH]


@pytest.mark.parametrize(
    ("gains", "half_width", "reason"),
    [
        ({16: 0.6, 64: 0.4}, 0.001, "it is slower at 1 of 2 sizes compared: rows=64"),
        ({16: 0.6, 64: 0.6}, 0.2, "it is not faster beyond its interval at any of 2 sizes"),
    ],
)
def test_a_range_that_is_slower_anywhere_or_faster_nowhere_is_refused(
    tuner, url, folder, gains, half_width, reason
):
    promote(tuner, fill_range(url, FORMER))
    before = only_table(folder)
    gains = {256: 0.5, 1024: 0.5, **gains}
    run = fill_range(url, {**FORMER, 16: OTHER, 64: OTHER}, gain=gains, half_width=half_width)
    rows = promote(tuner, run)
    assert {row["outcome"] for row in rows} == {"refused"}
    assert all(row["reason"].startswith(reason) for row in rows)
    assert only_table(folder) == before


def test_equal_configs_stay_with_their_evidence(tuner, url, folder):
    promote(tuner, fill_range(url, FORMER))
    before = only_table(folder)
    assert {row["outcome"] for row in promote(tuner, fill_range(url, FORMER, gain=0.9))} == {"same"}
    assert only_table(folder) == before


def test_a_switch_that_moved_is_compared_beside_it(tuner, url, folder):
    promote(tuner, fill_range(url, FORMER))
    rows = promote(tuner, fill_range(url, {**FORMER, 64: HIGH}, gain=0.6))
    assert {row["outcome"] for row in rows} == {"promoted"}
    assert "rows=64 cols=64" in rows[0]["reason"]
    assert served(only_table(folder), 16, 64, 256) == [LOW, HIGH, HIGH]


@pytest.mark.parametrize(
    ("sizes", "best", "reason"),
    [
        ("16..256", {16: OTHER, 64: OTHER, 256: OTHER}, "also serves rows=129..1024, beyond"),
        ("32..1024", {64: OTHER, 1024: HIGH}, "also serves rows=16.."),
    ],
)
def test_a_range_that_would_leave_sizes_without_a_config_is_refused(
    tuner, url, folder, sizes, best, reason
):
    promote(tuner, fill_range(url, FORMER))
    before = only_table(folder)
    rows = promote(tuner, fill_range(url, best, gain=0.9, sizes=sizes))
    assert {row["outcome"] for row in rows} == {"refused"}
    assert all(reason in row["reason"] for row in rows), rows
    assert only_table(folder) == before


def test_a_wider_range_with_the_same_configs_and_a_range_of_other_dims_are_added(
    tuner, url, folder
):
    promote(tuner, fill_range(url, FORMER))
    rows = promote(tuner, fill_range(url, {**FORMER, 4096: HIGH}, sizes="16..4096"))
    assert {(row["outcome"], row["reason"]) for row in rows} == {
        ("promoted", "the table's configs, for more sizes")
    }
    rows = promote(tuner, fill_range(url, FORMER, cols=128))
    assert {(row["outcome"], row["reason"]) for row in rows} == {("promoted", "new range")}
    table = only_table(folder)
    assert served(table, 16, 4096) == [LOW, HIGH]
    assert {(each["of"], each["sizes"]) for each in table.coverage} == {
        ("cols=64 dtype=float32", "16..4096"),
        ("cols=128 dtype=float32", "16..1024"),
    }


def test_ranges_of_other_code_are_refused(tuner, url, folder):
    promote(tuner, fill_range(url, FORMER))
    rows = promote(tuner, fill_range(url, {**FORMER, 16: OTHER}, gain=0.9, launch_hash="f" * 16))
    assert {row["outcome"] for row in rows} == {"refused"}
    assert all("code of the kernel" in row["reason"] for row in rows)


def test_without_the_published_results_a_range_needs_a_new_pass(tuner, url, folder):
    promote(tuner, fill_range(url, FORMER))
    (folder / "results" / "tuner.db").unlink()
    rows = promote(tuner, fill_range(url, {**FORMER, 16: OTHER}, gain=0.9))
    assert {row["outcome"] for row in rows} == {"refused"}
    assert all("--remeasure measures both" in row["reason"] for row in rows)
