"""The kernel as the farm sees it. Only tuning imports this module; users of the library do not."""

from collections.abc import Mapping, Sequence

import torch
from tuner import (
    Config,
    Constraint,
    Cost,
    Device,
    Kernel,
    Launch,
    PowerOfTwo,
    SearchSpace,
    TensorSpec,
    Tolerance,
    Workload,
    WorkloadError,
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

    def workloads(self) -> Sequence[Workload]:
        shapes = [(1, 4096), (32, 4096), (4096, 4096), (4096, 8192), (16384, 2048), (2048, 16384)]
        return [
            Workload.of(rows=rows, cols=cols, dtype=dtype)
            for dtype in ("bfloat16", "float16")
            for rows, cols in shapes
        ]

    def check_workload(self, workload: Workload) -> None:
        if workload.get("dtype") not in RELATIVE or set(workload) != {"rows", "cols", "dtype"}:
            raise WorkloadError(
                f"rms_norm cannot take {workload.key}",
                f"give rows, cols and dtype, one of {', '.join(RELATIVE)}",
            )
        if workload.size("rows") < 1 or workload.size("cols") < 1:
            raise WorkloadError("rms_norm needs at least one row and column", "enlarge the dims")

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=3, cols=1537)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Mapping[str, torch.Tensor]:
        rows, cols = workload.size("rows"), workload.size("cols")
        dtype = getattr(torch, workload.text("dtype"))
        if device == "meta":
            return {
                "x": torch.empty(rows, cols, dtype=dtype, device=device),
                "weight": torch.empty(cols, dtype=dtype, device=device),
            }
        source = torch.Generator(device=device).manual_seed(seed)
        return {
            "x": torch.randn(rows, cols, generator=source, device=device).to(dtype),
            "weight": torch.randn(cols, generator=source, device=device).to(dtype),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(
        self, workload: Workload, inputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        x, weight = inputs["x"].double(), inputs["weight"].double()
        return {"out": x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * weight}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = RELATIVE[workload.text("dtype")]
        return Tolerance(relative, 4 * relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        itemsize = getattr(torch, workload.text("dtype")).itemsize
        moved = (2 * elements + workload.size("cols")) * itemsize
        return Cost(flops=4.0 * elements, bytes=float(moved))

    def space(self, workload: Workload) -> SearchSpace:
        """Any BLOCK is right for any shape, so tables may be looked up by nearness."""
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
        rows, cols = workload.size("rows"), workload.size("cols")
        args = (tensors["x"], tensors["weight"], tensors["out"], rows, cols, EPS)
        return [Launch(rms_norm_kernel.fn, (rows,), args, dict(config))]

    def baselines(self, workload: Workload) -> Mapping[str, object]:
        def eager(inputs):
            x, weight = inputs["x"], inputs["weight"]
            return {"out": torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)}

        compiled = torch.compile(eager)
        return {"eager": eager, "compile": compiled}
