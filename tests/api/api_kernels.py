"""The text of a kernel for the CPU that is timed without a compiler, to be written to a file."""

from __future__ import annotations

KERNEL = """
import torch
from tuner import (
    Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload, WorkloadError
)

FACTOR = 2.0

class Scale(Kernel):
    name = "scale"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=1000)]
    def check_workload(self, workload):
        if workload.size("n") < 1:
            raise WorkloadError("n must be positive", "choose another n")
    def make_inputs(self, workload, seed, device):
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(workload.size("n"), generator=source, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((workload.size("n"),), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2.0}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(workload.size("n"), 8.0 * workload.size("n"))
    def space(self, workload):
        return SearchSpace([Choice("way", ["plain", "slow"])], [], kernel=self.name)
    def default_config(self, workload, device): return {"way": "slow"}
    def baselines(self, workload): return {"eager": lambda inputs: {"out": inputs["x"] * 2}}
    def cpu_callable(self, workload, config):
        if workload.size("n") == 17:
            raise RuntimeError("seventeen is not supported")
        wrong = workload.size("n") == 13
        def plain(inputs): return {"out": inputs["x"] * FACTOR + wrong}
        def slow(inputs):
            x = inputs["x"]
            for _ in range(300):
                x = x + 0.0
            return {"out": x * FACTOR + wrong}
        return {"plain": plain, "slow": slow}[config["way"]]
"""
#: Short measurements with one builder.
SETTINGS = {
    "pool": {"builders": 1},
    "measure": {"final_pairs": 8, "warm_ms": 1},
}
