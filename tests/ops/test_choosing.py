"""Which implementation a problem gets, from entries of tables."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from operator_calls import write_table

from search_spaces import registry
from search_spaces.records import Workload
from tuner import runtime
from tuner.base.log_ratio import LogRatio
from tuner.ops import choosing
from tuner.ops.choosing import choose, list_substitutes, pick, prefer_tuned
from tuner.ops.problem import Problem
from tuner.tables.range_entries import pick_fastest
from workers.device import offline

SHIPPED = sorted(Path(runtime.__file__).parent.parent.joinpath("tables").glob("*.json"))
CONFIG = {"num_warps": 4, "rows_per_step": 1, "steps": 1, "stream": False}


def problem(rows=1024, cols=512, dtype="bfloat16", **more):
    dims = {"rows": rows, "cols": cols, "dtype": dtype, **more}
    return Problem("softmax", dims, {}, {"out": (rows, cols)})


def test_an_entry_names_its_config(softmax_tables):
    softmax_tables(baselines={"eager": 1.5, "compile": 1.1}, implementation="tuned")
    choice = choose(problem())
    assert (choice.implementation, choice.config, choice.gain) == ("tuned", CONFIG, 1.5)


def test_other_configs_stand_in_only_where_nothing_may_be_compiled(softmax_tables, monkeypatch):
    softmax_tables(baselines={"eager": 1.5}, implementation="tuned")
    choice = choose(problem())
    other = replace(choice, config={**CONFIG, "num_warps": 8})
    assert [*list_substitutes(problem(), other)] == []
    monkeypatch.setenv("TUNER_COMPILE", "never")
    first, *rest = list_substitutes(problem(), other)
    assert (first.config, first.known) == (CONFIG, False)
    configs = [choice.config, *(each.config for each in rest)]
    default = registry.load("softmax").default_config(problem().workload, offline("cuda:90"))
    assert configs[-1] == default
    assert [*list_substitutes(problem(), replace(choice, implementation="eager"))] == []


def test_an_entry_names_a_baseline(softmax_tables):
    softmax_tables(baselines={"eager": 0.9, "vendor": 0.8}, implementation="vendor")
    choice = choose(problem(rows=1500))
    assert (choice.implementation, choice.config) == ("vendor", None)
    assert choice.entry == {"rows": 1024, "cols": 512, "dtype": "bfloat16"}


def test_the_config_of_an_entry_loses_with_distance(softmax_tables):
    softmax_tables(baselines={"eager": 1.3, "compile": 0.9})
    near, far = choose(problem(cols=768)), choose(problem(rows=64, cols=4096))
    assert (near.implementation, far.implementation) == ("tuned", "eager")
    assert (near.gain, far.gain) == (1.3, 1.0)
    assert near.reason.startswith("predicted from an entry 0.6 octaves away, at least 1.")
    assert far.reason == "predicted from an entry 3.4 octaves away"


def test_numbers_of_rows_count_less(softmax_tables):
    softmax_tables(baselines={"eager": 1.3})
    assert choose(problem(rows=8192)).reason == choose(problem(cols=960)).reason
    assert choose(problem(rows=128)).reason == choose(problem(cols=1184)).reason  # and fewer more


def test_a_baseline_loses_nothing_with_distance(softmax_tables):
    softmax_tables(baselines={"eager": 1.3, "vendor": 0.8}, implementation="vendor")
    assert choose(problem(cols=16384)).implementation == "vendor"


def test_an_entry_without_baselines_serves_all_sizes(softmax_tables):
    softmax_tables()
    assert choose(problem(rows=60000)).implementation == "tuned"


def test_what_moves_as_many_bytes_is_no_other_workload(softmax_tables):
    softmax_tables(baselines={"eager": 1.1})
    assert "0.0 octaves" in choose(problem(dtype="float16")).reason
    assert choose(problem(dtype="float16")).implementation == "tuned"
    assert choose(problem(dtype="float32")).implementation == "eager"


def test_what_runs_in_parts_is_as_fast_as_compiled_code(softmax_tables):
    softmax_tables(baselines={"eager": 1.2, "compile": 0.9}, implementation="compile")
    assert choose(problem()).implementation == "tuned"
    assert choose(replace(problem(), in_parts=True)).implementation == "eager"


def test_rows_of_another_alignment_are_far(softmax_tables):
    softmax_tables(baselines={"eager": 1.2})
    assert choose(problem(cols=520)).implementation == "tuned"
    assert choose(problem(cols=519)).implementation == "eager"


def test_a_table_hides_no_entry_of_the_next(softmax_tables, tmp_path, monkeypatch):
    softmax_tables(rows=1024, baselines={"eager": 1.5})
    near = choose(problem(rows=2048)).reason
    (other := tmp_path / "other").mkdir()
    key = {"rows": 2**20, "cols": 64, "dtype": "bfloat16"}
    write_table(other, "softmax", [runtime.Entry(key, CONFIG)], "NVIDIA Test")
    monkeypatch.setenv("TUNER_TABLES", f"{other}{os.pathsep}{tmp_path}")
    assert choose(problem()).reason == "fastest in its entry"
    assert choose(problem(rows=2048)).reason == near
    assert choose(problem(rows=2**20, cols=64)).entry == key
    assert [choose(problem(rows=rows)).known for rows in (1024, 2048)] == [True, False]


def test_no_config_runs_where_its_kernel_declares_it_wrong(softmax_tables):
    softmax_tables(config={**CONFIG, "num_warps": 3})
    assert choose(problem(rows=2000)).reason == "no table serves it"


def test_the_nearest_config_runs_where_it_is_preferred(softmax_tables):
    softmax_tables(baselines={"eager": 1.1})
    with prefer_tuned():
        assert choose(problem(cols=8192)).implementation == "tuned"
    assert choose(problem(cols=8192)).implementation == "eager"


def test_an_entry_of_a_range_decides_for_all_of_its_sizes(softmax_tables, caplog):
    softmax_tables(serves={"rows": [1000, 65536]}, sizes={"rows": [1, 65536]})
    for rows, found in ((1024, "its entry"), (1025, "the entry of its range"), (65536, "")):
        choice = choose(problem(rows=rows))
        assert choice.implementation == "tuned"
        assert found in choice.reason
    assert choose(problem(rows=999)).reason == "predicted from an entry 0.0 octaves away"
    assert not caplog.records


def test_torch_runs_without_an_entry(softmax_tables):
    softmax_tables()
    assert "more than the 32768" in choose(problem(cols=40000)).reason


def test_eps_changes_no_choice():
    found = Problem("rms_norm", {"rows": 1, "cols": 2, "dtype": "float32", "eps": 1e-6}, {}, {})
    assert found.key == {"rows": 1, "cols": 2, "dtype": "float32"}
    assert found.workload["eps"] == 1e-6


@pytest.mark.parametrize(
    ("implementation", "baselines", "expected"),
    [
        ("tuned", {}, ("tuned", None)),
        ("tuned", {"eager": 1.3, "compile": 1.1}, ("tuned", 1.3)),
        ("compile", {"eager": 1.3, "compile": 0.9}, ("tuned", 1.3)),
        ("compile", {"eager": 0.95, "vendor": 0.97, "compile": 0.9}, ("eager", 1.0)),
        ("compile", {"compile": 0.9}, ("tuned", None)),
        ("compile_product", {"eager": 1.3, "compile_product": 0.9}, ("tuned", 1.3)),
        ("eager", {"eager": 0.5, "vendor": 0.6}, ("eager", 1.0)),
    ],
)
def test_nothing_is_compiled_by_torch_for_a_call(implementation, baselines, expected):
    assert pick(implementation, baselines) == expected


@pytest.mark.parametrize(
    ("implementation", "without", "expected"),
    [
        ("liger", ("liger",), "tuned"),
        ("tuned", ("tuned",), "liger"),
        ("liger", ("liger", "tuned"), "eager"),
        ("compile", ("liger", "tuned", "eager"), "eager"),
    ],
)
def test_the_next_fastest_replaces_what_failed(implementation, without, expected):
    baselines = {"liger": 0.9, "eager": 1.3, "compile": 0.8}
    assert pick(implementation, baselines, without)[0] == expected


def over(**ratios):
    """ln(baseline time / config time), each with a narrow interval."""
    import math

    return {n: LogRatio(math.log(r), math.log(r) - 1e-3, math.log(r) + 1e-3)
            for n, r in ratios.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({}, "tuned"),
        ({"eager": 1.2}, "tuned"),
        ({"eager": 0.995}, "tuned"),  # within 1 %
        ({"eager": 0.9}, "eager"),
        ({"compile": 0.9, "eager": 0.905, "vendor": 0.902}, "eager"),
        ({"compile": 0.9, "vendor": 0.902}, "vendor"),
        ({"compile": 0.8, "eager": 0.9}, "compile"),
    ],
)
def test_the_fastest_is_named_and_of_equals_the_plainest(ratios, expected):
    assert pick_fastest(over(**ratios)) == expected


def test_a_wide_interval_keeps_the_config():
    assert pick_fastest({"eager": LogRatio(-0.1, -0.3, 0.1)}) == "tuned"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"implementation": "vendor"}, "implementation is not `tuned` nor one of baselines"),
        ({"implementation": 3}, "implementation is not text"),
        ({"baselines": {"eager": "1"}}, "baselines.eager"),
        ({"baselines": [1]}, "baselines is not an object"),
    ],
)
def test_a_wrong_entry_is_named(softmax_tables, tmp_path, fields, message):
    softmax_tables(**fields)
    with pytest.raises(runtime.TableError, match=message):
        runtime.read(tmp_path / "softmax.json")
    found = runtime.lookup("softmax", problem().key, device="nearest", stale="use")
    assert found is None or found.table != str(tmp_path / "softmax.json")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name.partition("@")[0])
def test_shipped_tables_are_of_the_present_kernels(file):
    table = runtime.read(file)
    kernel = registry.load(table.kernel)
    assert table.launch_hash == kernel.launch_hash()
    for entry in table.entries:
        workload = Workload.from_mapping(entry.key)
        kernel.check_workload(workload)
        assert entry.baselines
        known = set(kernel.baselines(workload))
        assert entry.implementation in {"tuned", *known}
        if choosing.pick(entry.implementation, entry.baselines)[0] == "tuned":
            assert entry.baselines.get("eager", 1.0) > 0.99
