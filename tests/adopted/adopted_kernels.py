"""Which kernels of which packages are adopted here, and how they are launched from a table."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype
from tuner import runtime

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Adopted:
    """One kernel. package: what is installed from PyPI. file: where its declaration is."""

    package: str
    file: str
    attribute: str

    @property
    def spec(self) -> str:
        return f"{FOLDER / self.file}:{self.attribute}"

    def load(self) -> Kernel:
        """The kernel; what its package warns of on import is its own affair."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load(self.spec)

    def options(self) -> Mapping[str, Any]:
        """Arguments of the runtime's decorator in addition to the library's own."""
        module = next(
            module
            for module in list(sys.modules.values())
            if getattr(module, "__file__", None) == str(FOLDER / self.file)
        )
        return module.SWAP[self.attribute]


KERNELS = {
    f"{file}_{attribute}": Adopted(package, f"adopted_{file}.py", attribute)
    for package, file, attributes in (
        ("fla-core", "fla", ("chunk_output", "gla_dv", "conv_update", "local_cumsum")),
        ("liger-kernel", "liger", ("dyt_forward", "dyt_backward", "token_gather")),
        ("torchao", "torchao", ("int8_mm", "fp8_gemm")),
        ("cut-cross-entropy", "cce", ("indexed_dot",)),
        ("xformers", "xformers", ("rms_norm_add",)),
    )
    for attribute in attributes
}


def swapped(adopted: Adopted, kernel: Kernel, folder: Path) -> tuple[Any, Any]:
    """A kernel under the runtime's decorator, and the same under its outer heuristics.

    folder: where its tables are. The first answers lookups, the second is launched.
    """
    parts = kernel._parts
    prune = {
        "early_config_prune": parts.tuner.early_config_prune,
        "perf_model": parts.tuner.perf_model,
        "top_k": parts.tuner.configs_top_k,
    }
    tuned = runtime.autotune(
        parts.tuner.configs,
        parts.tuner.keys,
        prune_configs_by=prune if parts.pruner or parts.model else None,
        reset_to_zero=list(parts.reset_to_zero),
        restore_value=list(parts.restore_value),
        table=folder,
        kernel=kernel.name,
        **adopted.options(),
    )(parts.tuner.fn)
    launched = tuned
    for rules in reversed(parts.outer):
        launched = triton.heuristics(rules)(launched)
    return tuned, launched


def call(
    kernel: Kernel, workload: Workload, tensors: Mapping[str, Any], config: Config
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a launch as the library passes them."""
    values = kernel._parts.launch_values(config)
    return kernel._parts.split(kernel._given.arguments_of(workload, tensors, values))


def filled(
    kernel: Kernel, workload: Workload, config: Config, device: str
) -> dict[str, torch.Tensor]:
    """Inputs, outputs and work space of a launch; in-place outputs hold what they start with."""
    tensors = dict(kernel.make_inputs(workload, 1, device))
    specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    for name, spec in specs.items():
        tensors[name] = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device)
    if device != "meta":
        for launch in kernel.launches(workload, config, tensors)[:-1]:
            launch.fn[launch.grid](*launch.args, **launch.kwargs)
    return tensors


def launch_from_table(
    adopted: Adopted, kernel: Kernel, workload: Workload, config: Config, folder: Path
) -> tuple[Any, float]:
    """Launch the package's kernel on a GPU with the table in `folder`.

    Returns the hit, None for a miss, and the largest relative error of an output.
    """
    tuned, launched = swapped(adopted, kernel, folder)
    tensors = filled(kernel, workload, config, "cuda")
    args, kwargs = call(kernel, workload, tensors, config)
    hit = tuned.hit(*args, **kwargs)
    given = kernel._given.arguments_of(workload, tensors, kernel._parts.launch_values(config))
    launched[lambda meta: tuple(kernel._given.grid({**meta, **given}))](*args, **kwargs)
    expected = kernel.reference(workload, kernel.make_inputs(workload, 1, "cuda"))
    errors = [
        float((tensors[name].double() - exact).norm() / exact.norm())
        for name, exact in expected.items()
    ]
    return hit, max(errors)
