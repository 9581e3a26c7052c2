"""Run CPU variants: their forms without Inductor, or compiled in a process of their own.

`python spaces_cpu.py < jobs.json` prints each outcome as JSON; a job is {"spec": ...,
"workload": {...}, "config": {...}}, or has the name of a baseline in place of a config.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from spaces_forks import Forks, serve

from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from workers.host import cpu_device

ROOT = Path(__file__).parent.parent.parent
_FORKS = Forks(__file__, PYTHONPATH=str(ROOT))
#: The threads of variants here, by default.
PLAIN = {"threads": 1, "simdlen": None}


def compiled_outcomes(
    jobs: Sequence[tuple[str, Workload, Config | str]],
) -> list[dict[str, object]]:
    """The outcome of every job: `passed`, `error` and the generated `code`.

    In a process of its own. As in a builder, Inductor's probes are replaced by shorter ones, its
    precompiled headers are those of the user, and kernels are linked without reading torch. No
    other cache is shared with other tests.
    """
    payload = [
        {"spec": spec, "workload": workload.as_dict(), "config": config}
        for spec, workload, config in jobs
    ]
    with tempfile.TemporaryDirectory() as folder:
        printed = _FORKS.run(json.dumps(payload), TORCHINDUCTOR_CACHE_DIR=folder)
    return [json.loads(line) for line in printed.splitlines()]


def wrong_compiled(jobs: Sequence[tuple[str, Workload, Config | str]]) -> list[object]:
    """The jobs that do not pass, each with its outcome."""
    outcomes = compiled_outcomes(jobs)
    return [
        (job, {**got, "code": ""})
        for job, got in zip(jobs, outcomes, strict=True)
        if not got["passed"]
    ]


def wrong_forms(spec: str, workload: Workload, without: Sequence[str] = ()) -> list[object]:
    """This processor's configs whose form is wrong, without Inductor and its parameters."""
    kernel = load(spec)
    space = kernel.space(workload)
    of_inductor = {"threads": [1], "simdlen": [None], "divide": ["auto"]}
    of_inductor |= {"blocking": ["auto"], "M_BLOCKS": [1], "K_BLOCKS": [8]}
    names = {parameter.name for parameter in space.parameters}
    narrowed = {name: allowed for name, allowed in of_inductor.items() if name in names}
    inputs = dict(kernel.make_inputs(workload, 1, "cpu"))
    found = []
    for config in space.bind(workload, cpu_device()).restrict(narrowed).enumerate():
        if config["form"] in without:
            continue
        form = kernel.form(workload, config)
        out = form(*(inputs[name] for name in kernel.arguments or inputs))
        error, right = _compared(kernel, workload, inputs, {kernel.output: out})
        if not right:
            found.append((workload.key, config, error))
    return found


def run(kernel: Kernel, workload: Workload, config: Config | str) -> dict[str, object]:
    """Run a variant or a baseline on two sets of inputs; its largest error on both."""
    from torch._inductor.utils import run_and_get_code

    from workers.compiling.inductor import cpu_conditions

    if isinstance(config, str):
        threads, variant = 1, kernel.baselines(workload)[config]
    else:
        threads = kernel.cpu_threads(workload, config)
        variant = kernel.cpu_callable(workload, config)
    passed, error, codes = True, 0.0, list[str]()
    with cpu_conditions(threads):
        for seed in (1, 2):
            inputs = dict(kernel.make_inputs(workload, seed, "cpu"))
            before = {name: tensor.clone() for name, tensor in inputs.items()}
            if seed == 1:
                outputs, codes = run_and_get_code(variant, inputs)
            else:
                outputs = variant(inputs)
            off, right = _compared(kernel, workload, inputs, outputs)
            error = max(error, off)
            intact = all(torch.equal(before[name], inputs[name]) for name in inputs)
            passed = passed and right and intact
    return {"passed": passed, "error": error, "code": "\n".join(codes)}


def _compared(
    kernel: Kernel,
    workload: Workload,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
) -> tuple[float, bool]:
    tolerance, error, right = kernel.tolerance(workload), 0.0, True
    reference = kernel.reference(workload, inputs)
    for name, spec in kernel.outputs(workload).items():
        got, exact = outputs[name].double(), reference[name].double()
        error = max(error, float((got - exact).norm() / exact.norm()))
        off = float(((got - exact).abs() / (1 + exact.abs())).max())
        same = (tuple(outputs[name].shape), f"{outputs[name].dtype}") == (
            spec.shape,
            f"torch.{spec.dtype}",
        )
        finite = bool(torch.isfinite(got).all()) and outputs[name].is_contiguous()
        right = right and same and finite and off <= tolerance.elementwise
    return error, right and error <= tolerance.relative


def prepare() -> None:
    """What a fork would do before its first compilation, done once for all forks."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    from workers.compiling import isa
    from workers.compiling.cache import compile_in_this_thread

    for module in ("torch._dynamo.backends.inductor", "torch._inductor.compile_fx"):
        importlib.import_module(module)
    compile_in_this_thread()
    with tempfile.TemporaryDirectory() as folder:
        isa.remember(Path(folder))
        valid_vec_isa_list()


def main() -> None:
    from workers.compiling import headers, isa, linking

    own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    if isa.headers_precompilable():
        headers.share(own / "headers")
    else:
        isa.without_header_precompilation()
    linking.without_reading_torch(own / "empty")
    for job in json.load(sys.stdin):
        workload = Workload.from_mapping(job["workload"])
        print(json.dumps(run(load(job["spec"]), workload, job["config"])), flush=True)


if __name__ == "__main__":
    serve(main, prepare)
