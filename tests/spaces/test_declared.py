"""A kernel that declares what is its own: what follows from that, and what a declaration needs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.declaration import guarded_calls
from search_spaces.dims import Dims
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.kernel import EXACT, Kernel
from search_spaces.params import PowerOfTwo
from search_spaces.records import Device, TensorSpec, Workload
from search_spaces.registry import BUILT_IN
from search_spaces.space import SearchSpace

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "search_spaces" / "kernels"
#: What a declaration may import of `search_spaces`.
DECLARATION = {
    *(
        "block_sizes",
        "bound",
        "constraints",
        "dims",
        "edges",
        "errors",
        "kernel",
        "params",
        "records",
    ),
    *("shape_tensor", "space", "tensors", "triton_versions"),
}
DTYPES = ("bfloat16", "float32")


class Scale(Kernel):
    """Five declarations, and nothing else."""

    name = "scale"
    dims = Dims(rows=int, cols=4096, flip=bool, axis=(0, 1), dtype=DTYPES, tolerance=float)

    def inputs(self, workload):
        limits = (0, workload.size("rows"))
        index = workload.spec("rows", dtype="int64", limits=limits)
        return {"x": workload.spec("rows", "cols", scale=3.0), "index": index}

    def eager(self, workload):
        return lambda x, index: 2 * x[index]

    def space(self, workload):
        return SearchSpace([PowerOfTwo("BLOCK", 64, 256), PowerOfTwo("num_warps", 2, 8)], [])


class Described(Scale):
    """A kernel with two outputs that takes one of its inputs."""

    arguments = ("x",)
    output = ("low", "high")
    small = {"rows": 3, "cols": 5}
    elementwise = 2

    def eager(self, workload):
        return lambda x: (x.amin(1), x.amax(1))

    def alternatives(self, workload):
        return {"sorted": lambda x: (x.sort(1).values[:, 0], x.sort(1).values[:, -1])}


WORKLOAD = Workload.of(rows=7, cols=33, flip=False, axis=1, dtype="bfloat16")


def test_what_is_not_declared_is_derived():
    kernel = Scale()
    inputs = kernel.make_inputs(WORKLOAD, 3, "cpu")
    assert inputs["x"].shape == (7, 33)
    assert inputs["x"].dtype == torch.bfloat16
    assert 2.0 < inputs["x"].float().std() < 4.0
    assert inputs["index"].min() >= 0
    assert inputs["index"].max() < 7
    assert kernel.outputs(WORKLOAD) == {"out": TensorSpec((7, 33), "bfloat16")}
    exact = kernel.reference(WORKLOAD, inputs)["out"]
    assert exact.dtype == torch.float64
    assert torch.equal(exact, 2 * inputs["x"].double()[inputs["index"]])
    assert kernel.tolerance(WORKLOAD).relative == 4e-3
    assert kernel.tolerance(WORKLOAD).elementwise == 8 * 4e-3
    assert kernel.tolerance(WORKLOAD.with_dims(tolerance=0.5)).relative == 0.5
    assert kernel.cost(WORKLOAD).bytes == 2 * 7 * 33 * 2 + 7 * 8
    device = Device("cuda", "card", "cuda:90")
    assert kernel.default_config(WORKLOAD, device) == {"BLOCK": 64, "num_warps": 2}
    found = kernel.baselines(WORKLOAD)
    assert list(found) == ["eager", "compile"]
    assert torch.equal(found["eager"](inputs)["out"], 2 * inputs["x"][inputs["index"]])
    assert kernel.small_workload(WORKLOAD) == WORKLOAD
    assert kernel.workloads() == ()
    assert kernel.scratch(WORKLOAD, {}) == {}


def test_several_outputs_and_fewer_arguments_are_named():
    kernel = Described()
    assert kernel.outputs(WORKLOAD) == {
        name: TensorSpec((7,), "bfloat16") for name in ("low", "high")
    }
    inputs = kernel.make_inputs(kernel.small_workload(WORKLOAD), 1, "cpu")
    assert inputs["x"].shape == (3, 5)
    found = kernel.baselines(WORKLOAD)
    assert list(found) == ["eager", "compile", "sorted"]
    for name in ("low", "high"):
        assert torch.equal(found["sorted"](inputs)[name], found["eager"](inputs)[name])
    assert kernel.tolerance(WORKLOAD).elementwise == 2 * 4e-3


def test_a_misspelt_size_is_a_mistake_of_inputs_and_names_the_nearest(monkeypatch):
    monkeypatch.setattr(Scale, "inputs", lambda self, workload: {"x": workload.spec("row")})
    with pytest.raises(KernelError) as error:
        guarded_calls.check(Scale(), WORKLOAD)
    assert error.value.message.startswith(f"kernel scale: inputs() for {WORKLOAD.key!r} raises")
    assert "the workload has no dim 'row'; did you mean 'rows'?" in error.value.message


def test_workloads_of_a_kernel_without_dims_say_what_is_missing():
    class Bare(Scale):
        dims = Kernel.dims

        def workloads(self):
            return self.dims.workloads((4, 5, "float32"))

    with pytest.raises(WorkloadError, match="needs `dims`, and none are declared") as error:
        guarded_calls.workloads(Bare())
    assert "dims = Dims(" in error.value.hint


def test_a_kernel_without_eager_or_inputs_says_so():
    class Empty(Kernel):
        name = "empty"

        def space(self, workload):
            return SearchSpace([], [])

    with pytest.raises(NotImplementedError, match="Empty declares no inputs"):
        Empty().make_inputs(WORKLOAD, 0, "cpu")
    with pytest.raises(NotImplementedError, match=r"neither eager\(\) nor reference\(\)"):
        Empty().reference(WORKLOAD, {})
    assert Empty().baselines(WORKLOAD) == {}
    Empty().check_workload(Workload.of(anything="goes"))


BAD = [
    ({"rows": 0}, "rows is 0", "sizes are at least 1"),
    ({"rows": True}, "rows is True, not an integer", "give rows=4096"),
    ({"rows": 2**31}, "more than the 2147483647", "another kernel"),
    ({"cols": 4097}, "cols is 4097, more than the 4096", "at most 4096"),
    ({"flip": 1}, "flip is 1, not true or false", "give flip=true"),
    ({"axis": 2}, "axis is 2", "use 0, 1"),
    ({"axis": True}, "axis is True", "use 0, 1"),
    ({"dtype": "float64"}, "dtype 'float64' is not supported", "use bfloat16, float32"),
    ({"tolerance": -1}, "tolerance is -1, not a positive number", "give tolerance=0.001"),
    ({"tolerance": None}, "tolerance is None", "give tolerance"),
    ({"colz": 3}, "unknown dim colz; did you mean 'cols'?", "rows, cols, flip, axis, dtype"),
]


@pytest.mark.parametrize(("dims", "problem", "hint"), BAD)
def test_a_wrong_dim_is_one_line_with_the_remedy(dims, problem, hint):
    with pytest.raises(WorkloadError) as caught:
        Scale().check_workload(WORKLOAD.with_dims(**dims))
    assert problem in caught.value.message
    assert caught.value.message.startswith("scale [rows=")
    assert hint in caught.value.hint


@pytest.mark.parametrize("absent", ["rows", "flip", "axis", "dtype"])
def test_a_dim_must_be_there(absent):
    dims = {name: value for name, value in WORKLOAD.as_dict().items() if name != absent}
    with pytest.raises(WorkloadError, match=f"{absent} is missing"):
        Scale().check_workload(Workload.of(**dims))


def test_some_dims_may_be_absent_and_some_may_be_zero():
    dims = Dims(window=range(9), codes=(None, "int8"), dtype=DTYPES)
    dims.check("k", Workload.of(window=0, dtype="float32"))
    dims.check("k", Workload.of(window=8, codes="int8", dtype="float32"))
    for wrong in ({"window": 9}, {"window": -1}, {"codes": None}, {"codes": "int4"}):
        with pytest.raises(WorkloadError):
            dims.check("k", Workload.of(**{"window": 0, "dtype": "float32", **wrong}))
    with pytest.raises(WorkloadError, match="codes is 'int4'") as caught:
        dims.check("k", Workload.of(window=0, codes="int4", dtype="float32"))
    assert caught.value.hint == "use int8"


def test_rows_of_values_become_workloads():
    dims = Dims(rows=int, dtype=DTYPES, tolerance=float)
    assert [w.key for w in dims.workloads((3, "float32"), (4, "bfloat16", 0.5))] == [
        "rows=3 dtype=float32",
        "rows=4 dtype=bfloat16 tolerance=0.5",
    ]
    with pytest.raises(WorkloadError, match="more values than dims"):
        dims.workloads((3, "float32", 0.5, 7))


@given(st.permutations(["rows", "cols", "flip", "axis", "dtype"]))
def test_the_order_of_dims_is_shown_and_does_not_matter(names):
    shuffled = Workload.of(**{name: WORKLOAD[name] for name in names})
    assert shuffled == WORKLOAD
    assert hash(shuffled) == hash(WORKLOAD)
    assert [word.partition("=")[0] for word in shuffled.key.split()] == names
    assert shuffled.in_order(Scale.dims).key == WORKLOAD.key


def test_exact_outputs_stay_exact():
    assert EXACT.relative < 1e-9


# -- the kernel library ----------------------------------------------------------------------------
def test_families_import_the_declaration_alone():
    foreign = {}
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module == "search_spaces":
                names = [f"search_spaces.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                top, _, rest = name.partition(".")
                ours = top in ("tuner", "workers", "results_db", "reports")
                other = top == "search_spaces" and rest.split(".")[0] not in DECLARATION
                if ours or (other and not rest.startswith("kernels")):
                    foreign[str(path.relative_to(KERNELS))] = name
    assert foreign == {}


COPIED = """
import json, sys
from search_spaces.registry import BUILT_IN, load
from search_spaces.records import Device
device = Device("cuda", "card", "cuda:90", 132, 2**36, 2**17 * 3 // 2, 65536)
for name in json.loads(sys.argv[1]):
    ours, own = load(name), load(BUILT_IN[name].replace("search_spaces.kernels", "copied_kernels"))
    assert type(own).__module__.startswith("copied_kernels"), type(own)
    workload = ours.workloads()[0]
    assert own.workloads()[0] == workload
    assert own.space_hash(workload) == ours.space_hash(workload), name
    assert own.default_config(workload, device) == ours.default_config(workload, device), name
    assert len(own.launch_hash()) == 16
"""


def test_families_work_where_they_are_copied_to(tmp_path):
    for path in KERNELS.rglob("*.py"):
        target = tmp_path / "copied_kernels" / path.relative_to(KERNELS)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text().replace("search_spaces.kernels", "copied_kernels")
        target.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", COPIED, json.dumps(sorted(BUILT_IN)[::6])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
