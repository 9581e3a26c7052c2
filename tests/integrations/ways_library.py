"""A kernel for the CPU, and a library with tables of it that is installed as a package."""

from __future__ import annotations

import sys

from installed_plugins import install_plugins

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
        steps = 60 if config["way"] == "steady" else 1 if few else 6000
        def run(inputs):
            x = inputs["x"]
            for _ in range(steps):
                x = x + 0.0
            return {"out": x * 2}
        return run
"""
PLUGIN = """
from tuner.integrations import Adapter, Place, Shape, TableKey
from tuner.integrations.adapter import joined_name, split_name
from tuner.tables.library_tables import LibraryTables

class WaysAdapter(Adapter):
    name, library, version = "waylib-ways", "waylib", "1.0"
    folder, kernels, required = "tables", ("ways",), ("way",)
    environment, size_dims = "WAYS", {"ways": "n"}
    def shapes(self, model, tensor_parallel=1, expert_parallel=1): return []
    def workloads(self, shape, size): return []
    def place(self, kernel, workload):
        return Place(TableKey((("A", 1), ("B", 1))), workload.size("n"))
    def dims(self, kernel, key): return {}
    def file_name(self, key, device): return joined_name(key, device, "")
    def parsed_name(self, name): return split_name(name, ("A", "B"))
    def default(self, key, size, device): return {"way": "steady"}

class WaysTables(LibraryTables):
    library = "waylib"
"""


def install(folder, monkeypatch):
    """The library, the kernel and a configuration in a folder, which becomes the current one."""
    monkeypatch.chdir(folder)
    packages = folder / "site"
    places = {"waylib-ways": "ways_plugin:WaysAdapter"}
    install_plugins(packages, "waylib", "tuner.integrations", places)
    formats = {"waylib": "ways_plugin:WaysTables"}
    install_plugins(packages, "waylib-tables", "tuner.exporters", formats)
    (packages / "ways_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "ways_plugin", raising=False)
    (folder / "ways.py").write_text(KERNEL)
    (folder / "config.yaml").write_text(
        "version: 1\ndatabase: {url: 'sqlite:///tuner.db'}\nkernels: [ways.py:Ways]\n"
        "pool: {kind: local, builders: 1}\nmeasure: {final_pairs: 8, warm_ms: 1}\n"
        "campaigns: {c: {tasks: [{kernel: ways.py:Ways}], budget: {trials: 2}}}\n"
    )
