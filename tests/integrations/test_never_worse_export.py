"""`tuner export --never-worse` from the command line, measuring a kernel on this processor."""

from __future__ import annotations

import json
import sys

import pytest
from installed_plugins import install_plugins
from tuned_runs import H200, add_result, moe, tile

from results_db import Store
from search_spaces.records import Device, Workload
from tuner.cli import invoke

#: Two ways to double: `small` is fast below 3000 elements and a hundred times slower above.
KERNEL = """
import torch
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload

class Ways(Kernel):
    name = "ways"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=1000)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device):
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(workload.size("n"), generator=source, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((workload.size("n"),), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(workload.size("n"), 8.0 * workload.size("n"))
    def space(self, workload):
        return SearchSpace([Choice("way", ["steady", "small"])], [], kernel=self.name)
    def default_config(self, workload, device): return {"way": "steady"}
    def baselines(self, workload): return {}
    def cpu_callable(self, workload, config):
        few = workload.size("n") < 3000
        steps = 20 if config["way"] == "steady" else 1 if few else 400
        def run(inputs):
            x = inputs["x"]
            for _ in range(steps):
                x = x + 0.0
            return {"out": x * 2}
        return run
"""
PLUGIN = """
from tuner.integrations import Adapter, Place, Shape, TableKey
from tuner.integrations.file_names import joined_name, split_name
from tuner.tables.library_tables import LibraryTables

class WaysAdapter(Adapter):
    name, library, distribution, version = "waylib-ways", "waylib", "waylib", "1.0"
    folder, kernels, required = "tables", ("ways",), ("way",)
    environment, size_dims = "WAYS", {"ways": "n"}
    def shapes(self, model, tensor_parallel=1, expert_parallel=1): return []
    def workloads(self, shape, size): return []
    def place(self, kernel, workload):
        return Place(TableKey((("A", 1), ("B", 1))), workload.size("n"))
    def file_name(self, key, device): return joined_name(key, device, "")
    def parsed_name(self, name): return split_name(name, ("A", "B"))
    def default(self, key, size, device): return {"way": "steady"}

class WaysTables(LibraryTables):
    library = "waylib"
"""
NAME = "A=1,B=1,device_name=cpu.json"
CPU = Device("cpu", "cpu", "cpu:x86-64", 2)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    packages = tmp_path / "site"
    places = {"waylib-ways": "ways_plugin:WaysAdapter"}
    install_plugins(packages, "waylib", "tuner.integrations", places)
    install_plugins(
        packages, "waylib-tables", "tuner.exporters", {"waylib": "ways_plugin:WaysTables"}
    )
    (packages / "ways_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "ways_plugin", raising=False)
    (tmp_path / "ways.py").write_text(KERNEL)
    (tmp_path / "config.yaml").write_text(
        "version: 1\ndatabase: {url: 'sqlite:///tuner.db'}\nkernels: [ways.py:Ways]\n"
        "pool: {kind: local, builders: 1}\nmeasure: {final_pairs: 8, warm_ms: 1}\n"
        "campaigns: {c: {tasks: [{kernel: ways.py:Ways}]}}\n"
    )

    def run(*arguments):
        capsys.readouterr()
        code = invoke(["export", "-o", "out", *arguments])
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}", create=True) as opened:
        opened.begin_run("c", "ff", 0, {}, {})
        yield opened


def test_a_row_is_added_where_the_nearest_one_is_measured_to_be_slower(call, store, tmp_path):
    steady, small = {"way": "steady"}, {"way": "small"}
    add_result(store, 1, "ways", Workload.of(n=1000), [(steady, 20.0), (small, 2.0)], device=CPU)
    add_result(store, 1, "ways", Workload.of(n=9000), [(steady, 20.0), (small, 90.0)], device=CPU)
    store.finish_run(1, "finished", {})
    code, err = call("--format", "waylib", "--never-worse", "--sizes", "4")
    assert code == 0, err
    rows = json.loads((tmp_path / "out" / NAME).read_text())
    assert (rows["1000"], rows["9000"]) == (small, steady)
    (added,) = set(rows) - {"1000", "9000"}
    assert 3000 <= int(added) <= 5000
    assert rows[added] == steady
    assert "waylib is not installed here: comparing with its default configs" in err
    assert f"sizes were slower, rows added: {added}; rows set to today's config: none" in err


def test_formats_without_a_lookup_and_missing_packages_are_refused(call, store):
    for gemm in ("gate_up", "down"):
        times = [(tile(16), 20.0), (tile(32), 10.0)]
        add_result(store, 1, "moe_matmul", moe(8, gemm), times, device=H200)
    store.finish_run(1, "finished", {})
    code, err = call("--format", "csv", "--never-worse")
    assert code == 2
    assert "--never-worse: the format csv has no lookup by size" in err
    code, err = call("--format", "vllm", "--never-worse", "--package", "absent")
    assert code == 2
    assert "--package absent: no such folder" in err
    code, err = call("--format", "vllm", "--never-worse", "--package", ".")
    assert code == 2
    assert "there is no cuda device here to time it on" in err
