"""The gate at the edges of inputs: what random numbers never show is refused with its place."""

from __future__ import annotations

import pytest
import torch

from search_spaces.declaration import guarded_calls
from search_spaces.edges import ALL_EDGES, put_edges
from search_spaces.errors import KernelError
from search_spaces.kernel import Cost, Kernel
from search_spaces.params import Choice
from search_spaces.records import Status, TensorSpec, Workload
from search_spaces.space import SearchSpace
from workers.job_records import Failure
from workers.measure.gate.checks import check_variant
from workers.measure.task_tensors import Checked, TaskTensors

SMALL = Workload.of(rows=20, cols=33)
LOG2_E = 1.4426950408889634


class Rows(Kernel):
    """Softmax over rows."""

    name = "rows"
    kinds = ("cpu",)
    edges = ALL_EDGES

    def check_workload(self, workload):
        pass

    def small_workload(self, workload):
        return SMALL

    def inputs(self, workload):
        shape = workload.size("rows"), workload.size("cols")
        return {"x": TensorSpec(shape, "float32"), "at": TensorSpec(shape[:1], "int64")}

    def outputs(self, workload):
        return {"y": self.inputs(workload)["x"]}

    def reference(self, workload, inputs):
        return {"y": torch.softmax(inputs["x"].double(), -1)}

    def cost(self, workload):
        return Cost(1.0, 1.0)

    def space(self, workload):
        return SearchSpace([Choice("way", [1, 2])], [], kernel=self.name)

    def cpu_callable(self, workload, config):
        return lambda inputs: {"y": torch.softmax(inputs["x"], -1)}


def scaled_first(x):
    """It multiplies before it subtracts the maximum, which overflows."""
    scaled = x * LOG2_E
    powers = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def without_nan(x):
    return torch.softmax(torch.where(x.isnan(), torch.zeros_like(x), x), -1)


def without_infinity(x):
    return torch.softmax(x.clamp(-1e30, 1e30), -1)


def without_maximum(x):
    powers = torch.exp(x)
    return powers / powers.sum(-1, keepdim=True)


def skipping(x):
    """Rows of equal elements are left out."""
    return torch.softmax(x, -1).masked_fill((x == x[:, :1]).all(-1, keepdim=True), 0.0)


def check(fn, edges=ALL_EDGES, workload=SMALL):
    kernel = Rows()
    kernel.edges = edges
    task = TaskTensors(kernel, workload, (1, 2), "cpu")
    before = {name: tensor.clone() for name, tensor in task.inputs.items()}
    found = check_variant(task, lambda: {"y": fn(task.inputs["x"])})
    assert all(torch.equal(task.inputs[name], before[name]) for name in before)
    return found


def test_a_right_variant_passes_at_every_edge():
    assert isinstance(check(lambda x: torch.softmax(x, -1)), Checked)


@pytest.mark.parametrize(
    ("fn", "edge"),
    [
        (scaled_first, "lowest"),
        (scaled_first, "largest"),
        (without_nan, "nan"),
        (without_nan, "half nan"),
        (without_infinity, "inf"),
        (without_infinity, "-inf"),
        (without_infinity, "half inf"),
        (without_maximum, "largest"),
        (skipping, "equal"),
        (skipping, "zero"),
    ],
)
def test_a_variant_that_is_wrong_at_an_edge_is_refused(fn, edge):
    assert isinstance(check(fn, ()), Checked), "random numbers do not show it"
    for edges in ((edge,), ALL_EDGES):
        found = check(fn, edges)
        assert isinstance(found, Failure)
        assert found.status is Status.CORRECTNESS
        assert "of `y` are wrong at the edges of the inputs, the first at [" in found.message
    others = [name for name in ("half lowest", "tiny", "denormal") if name != edge]
    if fn is not skipping:
        assert isinstance(check(fn, tuple(others)), Checked)


def test_only_the_check_size_has_edges():
    assert isinstance(check(without_nan, ALL_EDGES, Workload.of(rows=21, cols=33)), Checked)


@pytest.mark.parametrize("rows", [1, 3, 13, 40])
def test_every_edge_is_in_some_row(rows):
    """Of tensors with few rows several copies are made; integers stay as they are."""
    inputs = {"x": torch.randn(rows, 8), "at": torch.arange(rows), "b": torch.randn(8)}
    copies = put_edges(inputs, (), ALL_EDGES)
    assert len(copies) == -(-len(ALL_EDGES) // rows)
    seen = torch.cat([copy["x"] for copy in copies])
    for value in (torch.finfo().min, torch.finfo().max, torch.inf, -torch.inf, 0.0, 1.5):
        assert (seen == value).all(-1).any()
    assert seen.isnan().all(-1).any()
    assert any(torch.equal(row, row) for row in seen)
    for copy in copies:
        assert torch.equal(copy["at"], inputs["at"])
        assert torch.equal(copy["b"], inputs["b"])


def test_a_tensor_of_one_dim_has_an_edge_in_each_element():
    (copy,) = put_edges({"x": torch.ones(40)}, ("x",), ("nan", "zero"))
    assert copy["x"][::2].isnan().all()
    assert (copy["x"][1::2] == 0).all()


def test_a_name_of_no_edge_is_refused_before_a_run():
    kernel = Rows()
    kernel.edges = ("lowest", "half full")
    with pytest.raises(KernelError, match="'half full' names no edge of inputs"):
        guarded_calls.check(kernel, SMALL)
