# mypy: ignore-errors
"""Sums of rows on a CPU, in several orders, without a compiler: each has other bits."""

import time

import torch

from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.params import Choice
from search_spaces.records import TensorSpec, Workload
from search_spaces.space import SearchSpace

#: Ways and in how many parts each adds a row up; `slow` ones have the bits of the others.
PARTS = {"whole": 1, "slow whole": 1, "eighths": 8, "slow eighths": 8}
#: Their bits depend on the number of rows, and on the place of a row.
OTHERS = ("by count", "by place")


def add_up(x, parts):
    """Each part exactly, then the parts in order."""
    chunks = [chunk.cumsum(1)[:, -1] for chunk in x.chunk(parts, 1)]
    total = chunks[0]
    for each in chunks[1:]:
        total = total + each
    return total


class RowSum(Kernel):
    name = "row_sum"
    kinds = ("cpu",)

    def workloads(self):
        return [Workload.of(rows=64, cols=512)]

    def make_inputs(self, workload, seed, device):
        shape = workload.size("rows"), workload.size("cols")
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        x = torch.randn(shape, generator=source, device=device)
        return {"x": x, "scale": torch.rand(shape[1], generator=source, device=device) + 0.5}

    def outputs(self, workload):
        return {
            "y": TensorSpec((workload.size("rows"),), "float32"),
            "n": TensorSpec((1,), "float32"),
        }

    def reference(self, workload, inputs):
        y = (inputs["x"].double() * inputs["scale"]).sum(1)
        return {"y": y, "n": torch.ones(1)}

    def tolerance(self, workload):
        return Tolerance(1e-4, 1e-3)

    def cost(self, workload):
        count = workload.size("rows") * workload.size("cols")
        return Cost(2.0 * count, 4.0 * count)

    def space(self, workload):
        return SearchSpace([Choice("way", [*PARTS, *OTHERS])], kernel=self.name)

    def default_config(self, workload, device):
        return {"way": "slow whole"}

    def baselines(self, workload):
        return {"eager": lambda inputs: self._result((inputs["x"] * inputs["scale"]).sum(1))}

    def _result(self, y):
        return {"y": y, "n": torch.ones(1)}

    def cpu_callable(self, workload, config):
        way = config["way"]

        def run(inputs):
            x = inputs["x"] * inputs["scale"]
            if way.startswith("slow"):
                time.sleep(0.0005)
            if way == "by place":
                even = torch.arange(len(x)) % 2 == 0
                y = torch.where(even, add_up(x, 8), add_up(x.flip(1), 8))
            else:
                y = add_up(x, PARTS.get(way) or min(16, 1 + len(x) // 8))
            return self._result(y)

        return run
