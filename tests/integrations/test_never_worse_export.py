"""`tuner export --never-worse` from the command line, measuring a kernel on this processor."""

from __future__ import annotations

import json

import pytest
from tuned_runs import add_layer, add_result, tile
from ways_library import install

from search_spaces.records import Device, Workload
from tuner.cli import invoke

NAME = "A=1,B=1,device_name=cpu.json"
CPU = Device("cpu", "cpu", "cpu:x86-64", 2)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    install(tmp_path, monkeypatch)

    def run(*arguments):
        capsys.readouterr()
        code = invoke(["export", "-o", "out", *arguments])
        return code, capsys.readouterr().err

    return run


def test_a_row_is_added_where_the_nearest_one_is_measured_to_be_slower(call, store, tmp_path):
    steady, small = {"way": "steady"}, {"way": "small"}
    add_result(store, 1, "ways", Workload.of(n=1000), [(steady, 20.0), (small, 2.0)], device=CPU)
    add_result(store, 1, "ways", Workload.of(n=9000), [(steady, 20.0), (small, 90.0)], device=CPU)
    store.finish_run(1, "finished", {})
    code, err = call("--format", "waylib", "--never-worse", "--sizes", "4")
    assert code == 0, err
    rows = json.loads((tmp_path / "out" / NAME).read_text())
    # `small` is slower from 3000 on, and would be launched up to 5000.
    keys = sorted(map(int, rows))
    picked = [rows[f"{min(keys, key=lambda key: abs(key - size))}"] for size in (1000, 5000, 9000)]
    assert (picked, len(rows)) == ([small, steady, steady], 2)
    assert "waylib is not installed here: comparing with its default configs" in err
    assert "1 sizes were slower; 2 rows in place of 2" in err
    # Against a library that ships the same rows, there is nothing to compare.
    shipped = tmp_path / "waylib" / "tables" / NAME
    shipped.parent.mkdir(parents=True)
    shipped.write_text(json.dumps({"1000": small, "9000": steady}))
    code, err = call("--format", "waylib", "--never-worse", "--package", "waylib")
    assert code == 0, err
    assert f"0 comparisons with {shipped.relative_to(tmp_path)}; 0 sizes were slower" in err
    again = json.loads((tmp_path / "out" / NAME).read_text())
    assert list(again.values()) == [small, steady]


def test_formats_without_a_lookup_and_missing_packages_are_refused(call, store):
    add_layer(store, 8, [(tile(16), 20.0), (tile(32), 10.0)])
    store.finish_run(1, "finished", {})
    for given, message in (
        (["csv"], "--never-worse: the format csv has no lookup by size"),
        (["vllm", "--package", "absent"], "--package absent: no such folder"),
        (["vllm", "--package", "."], "there is no cuda device here to time it on"),
    ):
        code, err = call("--never-worse", "--format", *given)
        assert code == 2
        assert message in err
