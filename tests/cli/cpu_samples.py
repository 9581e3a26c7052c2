"""A kernel for the CPU that is timed without a compiler: three ways to double, one wrong."""

from __future__ import annotations

KERNEL = """
import torch
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload

class Double(Kernel):
    name = "double"
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
        return SearchSpace([Choice("way", ["add", "wrong", "slow"])], [], kernel=self.name)
    def default_config(self, workload, device): return {"way": "slow"}
    def baselines(self, workload): return {"eager": lambda inputs: {"out": inputs["x"] * 2}}
    def cpu_callable(self, workload, config):
        def add(inputs): return {"out": inputs["x"] + inputs["x"]}
        def wrong(inputs): return {"out": inputs["x"] * 3}
        def slow(inputs):
            x = inputs["x"]
            for _ in range(300):
                x = x + 0.0
            return {"out": x * 2}
        return {"add": add, "wrong": wrong, "slow": slow}[config["way"]]
"""
