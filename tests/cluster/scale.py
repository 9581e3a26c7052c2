# mypy: ignore-errors
"""A project's kernel, which imports a module of the project."""

from factor import FACTOR

from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.params import Choice
from search_spaces.records import TensorSpec, Workload
from search_spaces.space import SearchSpace


class Scale(Kernel):
    """y = FACTOR x on the CPU, in `chunks` steps; nothing has to be compiled."""

    name = "scale"
    kinds = ("cpu",)

    def workloads(self):
        return [Workload.of(n=4096)]

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        import torch

        drawn = torch.randn(workload.size("n"), generator=torch.Generator().manual_seed(seed))
        return {"x": drawn.to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), "float32")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() * FACTOR}

    def tolerance(self, workload):
        return Tolerance(1e-6, 1e-6)

    def cost(self, workload):
        return Cost(workload.size("n"), 8.0 * workload.size("n"))

    def space(self, workload):
        return SearchSpace([Choice("chunks", (1, 2, 4))], kernel=self.name)

    def default_config(self, workload, device):
        return {"chunks": 1}

    def cpu_callable(self, workload, config):
        import torch

        def call(inputs):
            parts = inputs["x"].chunk(config["chunks"])
            return {"y": torch.cat([part * FACTOR for part in parts])}

        return call

    def baselines(self, workload):
        return {}
