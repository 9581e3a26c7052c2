"""Mistakes in a declaration are reported, with their line, before anything is built."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from cli_samples import campaign_file

from search_spaces.registry import BUILT_IN

ADOPTED = """
import torch
import triton
import triton.language as tl
from tuner import Cost, TensorSpec, Workload, adopt

def keep(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= 4 * {**named_args, **kwargs}["n"]]

@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=2) for b in (64, 128)],
    key=["n"], prune_configs_by={"early_config_prune": keep},
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, at < n), at < n)

def vector(w):
    return TensorSpec((w.size("n"),), w.text("dtype"))

example = adopt(
    double_kernel,
    name="example",
    workloads=[Workload.of(n=1 << 26, dtype="float32"), Workload.of(n=1000, dtype="float16")],
    inputs=lambda w: {"x": vector(w)},
    outputs=lambda w: {"out": vector(w)},
    arguments=lambda w, t: {"x_ptr": t["x"], "out_ptr": t["out"], "n": w.size("n")},
    grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
    reference=lambda w, t: 2 * t["x"],
    cost=lambda w: Cost(flops=1.0 * w.size("n"), bytes=8.0 * w.size("n")),
    small={"n": 389},
)
"""
DECLARED = """
import torch
import triton
import triton.language as tl
from tuner import Constraint, Cost, Kernel, Launch, PowerOfTwo, SearchSpace
from tuner import Dims, TensorSpec, Tolerance, Workload

@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, at < n), at < n)

def fits(config, workload, device):
    return config["BLOCK"] <= 4 * workload.size("n")

class ExampleKernel(Kernel):
    name = "example"
    kinds = ("cuda",)
    def workloads(self): return [Workload.of(n=1 << 26), Workload.of(n=1000)]
    dims = Dims(n=int)
    def small_workload(self, workload): return workload.with_dims(n=389)
    def make_inputs(self, workload, seed, device):
        if device == "meta":
            return {"x": torch.empty(workload.size("n"), device="meta")}
        source = torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(workload.size("n"), generator=source, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((workload.size("n"),), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(1.0 * workload.size("n"), 8.0 * workload.size("n"))
    def space(self, workload):
        return SearchSpace([PowerOfTwo("BLOCK", 64, 128)], [Constraint("fits", fits, "too large")])
    def default_config(self, workload, device): return {"BLOCK": 64}
    def baselines(self, workload): return {}
    def launches(self, workload, config, tensors):
        n = workload.size("n")
        grid = (triton.cdiv(n, config["BLOCK"]),)
        args = (tensors["x"], tensors["out"], n)
        return [Launch(double_kernel, grid, args, {"BLOCK": config["BLOCK"], "num_warps": 2})]

example = ExampleKernel()
"""
CPU = """
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload
import torch

class ExampleKernel(Kernel):
    name = "example"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=100)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device): return {"x": torch.ones(100, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((100,), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(100.0, 800.0)
    def space(self, workload): return SearchSpace([Choice("way", ["a", "b"])], [])
    def default_config(self, workload, device): return {"way": "a"}
    def baselines(self, workload): return {}
    def cpu_callable(self, workload, config):
        return {"a": lambda inputs: {"out": inputs["x"] * 2}}[config["way"]]

example = ExampleKernel()
"""
PLACE = "'n=67108864 dtype=float32'"
#: source -> mistake: what is right, what is wrong in its place, words of the message
MISTAKES = {
    "adopted": {
        "unknown argument": (
            '"n": w.size("n")}', '"n": w.size("n"), "m": 3}',
            f"kernel example: launches() for {PLACE} passes double_kernel an unknown argument m",
        ),
        "missing argument": (
            '"x_ptr": t["x"], ', "",
            f"launches() for {PLACE} passes double_kernel no argument x_ptr",
        ),
        "tensor name": (
            '"out_ptr": t["out"]', '"out_ptr": t["output"]',
            f"for {PLACE} raises KeyError: 'output' (k.py:LINE), in adopt(arguments=...)",
        ),
        "wrong tensor": (
            '"out_ptr": t["out"]', '"out_ptr": t["x"]',
            f"launches() for {PLACE} passes the output out to no launch",
        ),
        "reference's shape": (
            "2 * t[\"x\"],\n", "2 * t[\"x\"][1:],\n",
            "reference() for 'n=389 dtype=float32' returns out of shape (388,), outputs() declares",
        ),
        "reference raises": (
            "2 * t[\"x\"],\n", "2 * t[\"z\"],\n",
            "reference() for 'n=389 dtype=float32' raises KeyError: 'z' (k.py:LINE)",
        ),
        "grid": (
            'meta["n"]', 'meta["M"]',
            f"launches() for {PLACE} raises KeyError: 'M' (k.py:LINE), in adopt(grid=...)",
        ),
        "grid of floats": ('triton.cdiv(meta["n"], meta["BLOCK"])', 'meta["n"] / 64', "the grid"),
        "small": ('{"n": 389}', '{"rows": 3}', f"small_workload() for {PLACE} gives"),
        "heuristic": ('args["n"] %', 'args["N"] %', "raises KeyError: 'N' (k.py:LINE), in a heur"),
        "pruner": ('kwargs}["n"]', 'kwargs}["N"]', "prune raises KeyError: 'N' (k.py:LINE)"),
    },
    "declared": {
        "unknown argument": (
            '"num_warps": 2', '"num_wraps": 2',
            "launches() for 'n=67108864' passes double_kernel an unknown argument num_wraps",
        ),
        "missing argument": (
            'tensors["out"], n)', 'tensors["out"])',
            "launches() for 'n=67108864' raises KeyError: 'n' (k.py:",
        ),
        "missing block": ('{"BLOCK": config["BLOCK"], "num', '{"num', "raises KeyError: 'BLOCK'"),
        "tensor name": (
            'tensors["out"]', 'tensors["output"]',
            "launches() for 'n=67108864' raises KeyError: 'output' (k.py:LINE)",
        ),
        "reference's shape": (
            '["x"].double() * 2', '["x"].double()[None] * 2',
            "reference() for 'n=389' returns out of shape (1, 389)",
        ),
        "reference's name": ('return {"out": inputs', 'return {"y": inputs', "the outputs are out"),
        "reference's dtype": (".double() * 2", ".long() * 2", "returns out as int64"),
        "small": ("with_dims(n=389)", "with_dims(rows=389)", "unknown dim rows"),
        "constraint": ('config["BLOCK"] <= 4', 'config["B"] <= 4', "KeyError: 'B' (k.py:LINE)"),
    },
    "cpu": {
        "callable": ('[config["way"]]', '[config["wya"]]', "cpu_callable() for 'n=100' raises K"),
        "no callable": ('[config["way"]]', "", "cpu_callable() for 'n=100' returns {'a'"),
        "reference's shape": ("torch.ones(100", "torch.ones(10", "returns out of shape (10,)"),
    },
}  # fmt: skip
SOURCES = {"adopted": ADOPTED, "declared": DECLARED, "cpu": CPU}
CASES = [(source, mistake) for source, found in MISTAKES.items() for mistake in found]


def prepare(folder, text, target):
    (folder / "k.py").write_text(text)
    campaign_file(folder, "k.py:example", f"targets: ['{target}']")


def line_of(text, part):
    return str(text[: text.index(part)].count("\n") + 1)


def target(source):
    return "cpu" if source == "cpu" else "cuda:90"


@pytest.mark.parametrize(("source", "mistake"), CASES)
def test_a_mistake_is_reported_before_anything_is_built(tuner, folder, source, mistake):
    right, wrong, message = MISTAKES[source][mistake]
    assert right in SOURCES[source]
    message = message.replace("LINE", line_of(SOURCES[source], right))
    prepare(folder, SOURCES[source].replace(right, wrong), target(source))
    result = tuner("run", "c", "--quiet")
    assert result.code == 2
    assert message in result.error
    assert result.hint
    assert not (folder / "results").exists()
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", target(source))
    assert shown.code == 1
    assert message in shown.out
    assert "Traceback" not in shown.out + shown.err


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_right_passes(tuner, folder, source):
    prepare(folder, SOURCES[source], target(source))
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", target(source))
    assert (shown.code, shown.out) == (0, "")
    planned = tuner("run", "c", "--dry-run", "--format", "json")
    assert planned.code == 0, planned.err
    assert len(json.loads(planned.out)) == (1 if source == "cpu" else 2)


def test_every_workload_is_tried(tuner, folder):
    wrong = ADOPTED.replace('t["out"],', 't["out"] if w["n"] > 1000 else t[w["n"]],')
    prepare(folder, wrong, "cuda")
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", "cuda:90")
    assert shown.code == 1
    (line,) = shown.out.splitlines()
    assert "n=1000 dtype=float16" in line
    assert f"KeyError: 1000 (k.py:{line_of(wrong, 't[w')})" in line


def test_a_reference_too_large_to_be_computed_is_tried_without_values(tuner, folder):
    prepare(folder, ADOPTED.replace("389", "1 << 28").replace('2 * t["x"],', 't["x"][:7],'), "cuda")
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", "cuda:90")
    assert shown.code == 1
    assert "reference() for 'n=1000 dtype=float16' returns out of shape (7,)" in shown.out


@pytest.mark.parametrize("small", ["389", "1 << 28"], ids=["on the CPU", "without values"])
def test_a_reference_of_a_check_reaches_no_device(tuner, folder, small):
    """A launch on such tensors would read illegal addresses in the caller's own process."""
    noting = ADOPTED.replace("389", small).replace('2 * t["x"],', "noted(t),")
    noting += """
def noted(t):
    open("driver.txt", "w").write(type(triton.runtime.driver.active).__name__)
    return 2 * t["x"]
"""
    prepare(folder, noting, "cuda")
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", "cuda:90")
    assert shown.code == 0, shown.out
    assert (folder / "driver.txt").read_text() == "NoDriver"


@pytest.mark.parametrize("wrong", ['2 * t["x"].cuda(),', '2 * torch.ones(7, device="cuda")[0],'])
def test_a_reference_that_needs_a_gpu_is_no_mistake(tuner, folder, wrong):
    prepare(folder, ADOPTED.replace('2 * t["x"],', wrong), "cuda:90")
    shown = tuner("spaces", "show", "k.py:example", "--validate", "--target", "cuda:90")
    if not torch.cuda.is_available():
        assert shown.code == 0, shown.out


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_families_are_declared_well(tuner, folder, name):
    shown = tuner("spaces", "show", name, "--validate")
    assert shown.code == 0, shown.out
    assert "workloads are fine" in shown.err


def test_a_process_without_torch_checks_built_in_families():
    command = [sys.executable, "-m", "tuner", "spaces", "show", "embedding", "--validate"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
