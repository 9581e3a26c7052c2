"""The kernel as the farm sees it. Only tuning imports this module; users of the library do not."""

from collections.abc import Callable, Mapping, Sequence

import torch
from tuner import (
    Config,
    Constraint,
    Device,
    Dims,
    Kernel,
    Launch,
    PowerOfTwo,
    SearchSpace,
    TensorSpec,
    Tolerance,
    Workload,
)

from kernel_library.rmsnorm import rms_norm_kernel

EPS = 1e-6
RELATIVE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3}


def _worth_its_threads(config: Config, workload: Workload, device: Device) -> bool:
    return config["BLOCK"] >= 32 * config["num_warps"]


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    return config["BLOCK"] <= 128 * 32 * config["num_warps"]


class RmsNorm(Kernel):
    """RMS norm; dims rows, cols and dtype: the kernel's `key`, and the dtype of its first tensor.

    So the tables' keys are those that `tuner.runtime.autotune` asks for.
    """

    name = "rms_norm"

    dims = Dims(rows=int, cols=int, dtype=tuple(RELATIVE))
    small = {"rows": 3, "cols": 1537}

    def workloads(self) -> Sequence[Workload]:
        shapes = [(1, 4096), (32, 4096), (4096, 4096), (4096, 8192), (16384, 2048), (2048, 16384)]
        dtypes = ("bfloat16", "float16")
        return self.dims.workloads(*((*shape, dtype) for dtype in dtypes for shape in shapes))

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols"), "weight": workload.spec("cols")}

    def eager(self, workload: Workload) -> Callable[..., torch.Tensor]:
        def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)

        return rms_norm

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = RELATIVE[workload.text("dtype")]
        return Tolerance(relative, 4 * relative)

    def space(self, workload: Workload) -> SearchSpace:
        """Any BLOCK is right for any shape, so that a table serves every size."""
        parameters = [PowerOfTwo("BLOCK", 256, 16384), PowerOfTwo("num_warps", 1, 16)]
        constraints = (
            Constraint("threads", _worth_its_threads, "threads would have no element"),
            Constraint("registers", _fits_registers, "a thread would hold over 128 elements"),
        )
        return SearchSpace(parameters, constraints, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return {"BLOCK": 1024, "num_warps": 4}

    def launches(
        self, workload: Workload, config: Config, tensors: Mapping[str, torch.Tensor]
    ) -> list[Launch]:
        rows, cols = workload.sizes("rows", "cols")
        args = (tensors["x"], tensors["weight"], tensors["out"], rows, cols, EPS)
        return [Launch(rms_norm_kernel.fn, (rows,), args, dict(config))]
