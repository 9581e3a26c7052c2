"""Run variants on given inputs in Triton's interpreter, and return what they write.

Usage: TRITON_INTERPRET=1 python spaces_values.py < jobs.json, where a job is as for
`spaces_interpret.py` and has `inputs` as nested lists by name; others are drawn.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from spaces_forks import Forks, serve

from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype
from workers.backends.interpreter.arithmetic import extend

_ROOT = Path(__file__).parent.parent.parent
_FORKS = Forks(__file__, TRITON_INTERPRET="1", OMP_NUM_THREADS="1", PYTHONPATH=str(_ROOT))

Job = tuple[str, Workload, Config, Mapping[str, torch.Tensor]]


def outputs(jobs: Sequence[Job]) -> list[dict[str, torch.Tensor]]:
    """The outputs of variants in float64, by name."""
    payload = [
        {
            "spec": spec,
            "workload": workload.as_dict(),
            "config": dict(config),
            "inputs": {name: given.double().tolist() for name, given in inputs.items()},
        }
        for spec, workload, config, inputs in jobs
    ]
    lines = _FORKS.run(json.dumps(payload)).splitlines()
    return [
        {
            name: torch.tensor(values, dtype=torch.float64)
            for name, values in json.loads(line).items()
        }
        for line in lines
    ]


def differing(
    found: torch.Tensor, expected: torch.Tensor, relative: float, least: float = 1e-37
) -> list[int]:
    """Places, of the first axis, where infinities or NaN are elsewhere or values are farther off
    than `relative`; below `least` any value is right."""
    exact = expected.double()
    same = torch.isclose(found, exact, rtol=relative, atol=least, equal_nan=True)
    return (~same).reshape(len(same), -1).any(1).nonzero().flatten().tolist()


def run(
    kernel: Kernel, workload: Workload, config: Config, given: Mapping[str, list[object]]
) -> dict[str, list[object]]:
    tensors = dict(kernel.make_inputs(workload, 1, "cpu"))
    for name, values in given.items():
        of_type = torch.tensor(values, dtype=torch.float64).to(tensors[name].dtype)
        tensors[name] = of_type.reshape(tensors[name].shape)
    specs = kernel.outputs(workload)
    for name, spec in {**specs, **kernel.scratch(workload, config)}.items():
        tensors[name] = torch.full(spec.shape, 77.0).to(torch_dtype(spec.dtype))
    for launch in kernel.launches(workload, config, tensors):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
    return {name: tensors[name].double().tolist() for name in specs}


def main() -> None:
    extend()
    # Infinities and NaN, which numpy warns of, are what these inputs are about.
    warnings.simplefilter("ignore")
    for job in json.load(sys.stdin):
        workload = Workload.from_mapping(job["workload"])
        found = run(load(job["spec"]), workload, job["config"], job["inputs"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve(main)
