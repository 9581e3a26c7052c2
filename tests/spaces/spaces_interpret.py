"""Run variants through Triton's interpreter and print, per line, error and bound as JSON.

Usage: TRITON_INTERPRET=1 python spaces_interpret.py < jobs.json, where a job is
{"spec": ..., "workload": {...}, "config": {...}} and runs on the workload as given.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from spaces_forks import Forks, serve

from search_spaces.bound import BoundSpace
from search_spaces.kernel import Kernel
from search_spaces.kernels.dialects import GLUON
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype
from workers.backends.interpreter.arithmetic import extend

ROOT = Path(__file__).parent.parent.parent
#: Threads would double the processor time of arrays as small as these.
_FORKS = Forks(
    __file__, ("-W", "error"), TRITON_INTERPRET="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT)
)


def interpret(jobs: Sequence[tuple[str, Workload, Config]]) -> list[dict[str, object]]:
    """Outcomes of variants run by Triton's interpreter, which a process is or is not from its
    start; numpy's warnings are errors there."""
    payload = [
        {"spec": spec, "workload": workload.as_dict(), "config": dict(config)}
        for spec, workload, config in jobs
    ]
    return [json.loads(line) for line in _FORKS.run(json.dumps(payload)).splitlines()]


def wrong(jobs: Sequence[tuple[str, Workload, Config]]) -> list[object]:
    """The jobs that do not pass, each with its outcome."""
    outcomes = interpret(jobs)
    return [(job, got) for job, got in zip(jobs, outcomes, strict=True) if not got["passed"]]


def interpretable(bound: BoundSpace) -> BoundSpace:
    """The space without the configs in Gluon, which has no interpreter."""
    allowed = {
        item.name: [value for value in item.values() if value != GLUON]
        for item in bound.parameters
        if GLUON in item.values()
    }
    return bound.restrict(allowed)


def run(kernel: Kernel, workload: Workload, config: dict) -> dict[str, float | bool]:
    inputs = dict(kernel.make_inputs(workload, 1, "cpu"))
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    tensors = dict(inputs)
    for name, spec in {**kernel.outputs(workload), **kernel.scratch(workload, config)}.items():
        tensors[name] = torch.full(spec.shape, float("nan")).to(torch_dtype(spec.dtype))
    for launch in kernel.launches(workload, config, tensors):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
    tolerance = kernel.tolerance(workload)
    worst, off, intact = 0.0, 0.0, True
    for name, expected in kernel.reference(workload, inputs).items():
        got, exact = tensors[name].double(), expected.double()
        worst = max(worst, float((got - exact).norm() / exact.norm()))
        off = max(off, float(((got - exact).abs() / (1 + exact.abs())).max()))
        intact = intact and bool(torch.isfinite(got).all())
    intact = intact and all(torch.equal(before[name], inputs[name]) for name in inputs)
    passed = intact and worst <= tolerance.relative and off <= tolerance.elementwise
    return {"passed": passed, "error": worst, "bound": tolerance.relative}


def main() -> None:
    # As in the farm: without it, bfloat16 is truncated.
    extend()
    for job in json.load(sys.stdin):
        kernel = load(job["spec"])
        workload = Workload.from_mapping(job["workload"])
        print(json.dumps(run(kernel, workload, job["config"])), flush=True)


if __name__ == "__main__":
    serve(main)
