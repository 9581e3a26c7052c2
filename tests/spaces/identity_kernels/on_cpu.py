# mypy: ignore-errors
"""A CPU kernel whose mathematics and checks live in other modules."""

import checking
import ops

from search_spaces.kernel import Cost, Kernel
from search_spaces.params import Choice
from search_spaces.records import TensorSpec, Workload
from search_spaces.space import SearchSpace

THREADS = 1


def bind(form):
    def run(inputs):
        return {"y": form(inputs["x"])}

    return run


class Leaky(Kernel):
    name = "leaky"
    kinds = ("cpu",)
    share = 1

    def workloads(self):
        return [Workload.of(n=n) for n in (64, 96)]

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        return {"x": checking.draw(workload.size("n"), seed, device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), "float32")}

    def reference(self, workload, inputs):
        return {"y": checking.exact(inputs["x"])}

    def tolerance(self, workload):
        return checking.TOLERANCE

    def cost(self, workload):
        return Cost(1.0, 8.0 * workload.size("n"))

    def space(self, workload):
        return SearchSpace([Choice("form", ("plain", "scaled"))], kernel=self.name)

    def default_config(self, workload, device):
        return {"form": "plain"}

    def cpu_threads(self, workload, config):
        return THREADS * self.share

    def cpu_callable(self, workload, config):
        return bind(ops.FORMS[config["form"]])

    def baselines(self, workload):
        from checking import exact

        return {"eager": lambda inputs: {"y": exact(inputs["x"]).float()}}
