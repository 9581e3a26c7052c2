# mypy: ignore-errors
"""Normalisation of rows in Triton, LayerNorm and RMSNorm: held in registers, or read twice.

Bound by memory: the least traffic is one read and one write of the matrix. A row that is read twice
comes the second time from a cache, if all goes well.
"""

from collections.abc import Mapping, Sequence

import torch

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.normalisation.triton_kernels import (
    held_norm_kernel,
    streamed_norm_kernel,
)
from search_spaces.params import Boolean, Choice, Integer, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import Constraint, SearchSpace
from search_spaces.tensors import (
    alignment,
    ceil_div,
    compiled,
    element_bytes,
    generator,
    named,
    next_power_of_two,
    random_tensor,
)

DTYPES = ("float32", "float16", "bfloat16")
MAX_COLS = 2**20
MAX_HELD_COLS = 32768
DEFAULT_EPS = 1e-5
_MAX_THREADS = 1024
#: float32 values a thread may hold of a row, and of a block whose running moments are beside it.
_MAX_HELD, _MAX_STREAMED = 128, 32
_RELATIVE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}


def _tile(config: Config, workload: Workload) -> int:
    """Elements a program works on at a time."""
    if config["passes"] == 2:
        return int(config["BLOCK"])
    return int(config["rows_per_step"]) * next_power_of_two(workload.size("cols"))


def _threads(config: Config, device: Device) -> int:
    return int(config["num_warps"]) * (device.warp_size or 32)


def _block_exists(config: Config, workload: Workload, device: Device) -> bool:
    return _threads(config, device) <= _MAX_THREADS


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    most = _MAX_HELD if config["passes"] == 1 else _MAX_STREAMED
    return _tile(config, workload) <= _threads(config, device) * most


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    return config["num_warps"] == 1 or _tile(config, workload) >= 2 * _threads(config, device)


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    steps = int(config.get("steps", 1))
    groups = ceil_div(workload.size("rows"), int(config.get("rows_per_step", 1)))
    return steps == 1 or ceil_div(groups, steps) >= min(groups, device.sm_count)


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    in_flight = int(config.get("stages", 1)) - 1
    needed = in_flight * _tile(config, workload) * element_bytes(workload.text("dtype"))
    return in_flight == 0 or device.shared_bytes == 0 or needed <= device.shared_bytes


def _needs_streaming(config: Config, workload: Workload, device: Device) -> bool:
    blocks = ceil_div(workload.size("cols"), int(config.get("BLOCK", 1)))
    held = workload.size("cols") <= MAX_HELD_COLS
    return config["passes"] == 1 or blocks >= 2 or not held


def _pipelines_blocks(config: Config, workload: Workload, device: Device) -> bool:
    ahead = int(config.get("block_stages", 1)) - 1
    return ahead == 0 or ceil_div(workload.size("cols"), int(config["BLOCK"])) > ahead


CONSTRAINTS = (
    Constraint("block", _block_exists, "a block has at most 1024 threads"),
    Constraint("registers", _fits_registers, "a thread would hold too many elements"),
    Constraint("busy", _keeps_threads_busy, "threads would hold fewer than two elements"),
    Constraint("fill", _fills_device, "programs would be fewer than multiprocessors"),
    Constraint("shared", _fits_shared, "the rows in flight do not fit into shared memory"),
    Constraint("streaming", _needs_streaming, "a row of one block need not be read twice"),
    Constraint("pipeline", _pipelines_blocks, "a row has too few blocks to load so far ahead"),
)


class LayerNorm(Kernel):
    """(x - mean) / sqrt(var + eps) * weight + bias over the rows of x[rows, cols].

    Dims rows, cols (at most 2**20), dtype and, optionally, eps (1e-5). All tensors have the dtype;
    weight and bias are vectors of cols.
    """

    name = "layer_norm"
    centred = True

    def workloads(self) -> Sequence[Workload]:
        shapes = [
            (8192, 4096, "bfloat16"),
            (8192, 1024, "bfloat16"),
            (16384, 768, "float16"),
            (4096, 16384, "bfloat16"),
            (8192, 5120, "float32"),
            (65536, 250, "bfloat16"),
            (512, 100003, "bfloat16"),
        ]
        return [Workload.of(rows=rows, cols=cols, dtype=dtype) for rows, cols, dtype in shapes]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": 2**31 - 1, "cols": MAX_COLS}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, optional=("eps",))

    def small_workload(self, workload: Workload) -> Workload:
        cols = 509 if workload.size("cols") > 509 else max(workload.size("cols") - 1, 1) | 1
        return workload.with_dims(rows=13, cols=cols)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Mapping[str, torch.Tensor]:
        rows, cols = workload.size("rows"), workload.size("cols")
        dtype, source = workload.text("dtype"), generator(seed, device)
        vector = TensorSpec((cols,), dtype)
        inputs = {
            # Not around zero: a variant that forgets the mean must be seen to.
            "x": random_tensor(TensorSpec((rows, cols), dtype), source, device, scale=2.0).add_(1),
            "weight": random_tensor(vector, source, device, scale=0.25).add_(1),
        }
        if self.centred:
            inputs["bias"] = random_tensor(vector, source, device)
        return inputs

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(
        self, workload: Workload, inputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        exact = [tensor.double() for tensor in inputs.values()]
        return {"out": self._torch(workload)(*exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = _RELATIVE[workload.text("dtype")]
        # Rounding one element may be off by twice what it comes to over all of them.
        return Tolerance(relative, 2 * relative)

    def cost(self, workload: Workload) -> Cost:
        rows, cols = workload.size("rows"), workload.size("cols")
        vectors = 2 if self.centred else 1
        moved = (2.0 * rows + vectors) * cols * element_bytes(workload.text("dtype"))
        return Cost(flops=(7.0 if self.centred else 4.0) * rows * cols, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        rows, cols = workload.size("rows"), workload.size("cols")
        block = next_power_of_two(cols)
        warps = PowerOfTwo("num_warps", 1, 32)
        one, two = {"passes": (1,)}, {"passes": (2,)}
        blocks = [
            PowerOfTwo("BLOCK", min(1024, block), min(16384, block), when=two),
            Integer("block_stages", 1, 3, when=two),
        ]
        if cols > MAX_HELD_COLS:
            parameters = [Choice("passes", (2,)), warps, *blocks, Boolean("stream")]
            return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)
        tallest = min(4, max(8192 // block, 1), next_power_of_two(rows))
        longest = min(8, next_power_of_two(rows))
        parameters = [
            Choice("passes", (1, 2)),
            warps,
            PowerOfTwo("rows_per_step", 1, tallest, when=one),
            PowerOfTwo("steps", 1, longest, when=one),
        ]
        if longest > 1:
            looping = PowerOfTwo("steps", 2, longest).values()
            parameters.append(Integer("stages", 1, 3, when={"steps": looping}))
        return SearchSpace([*parameters, *blocks, Boolean("stream")], CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """One program per row, warps by the size of the row, as Triton's own tutorial has it."""
        block = next_power_of_two(workload.size("cols"))
        warps = min(max(block // 256, 1), 8)
        if workload.size("cols") > MAX_HELD_COLS:
            streamed = {"passes": 2, "num_warps": warps, "BLOCK": 4096, "block_stages": 1}
            return {**streamed, "stream": False}
        held = {"passes": 1, "num_warps": warps, "rows_per_step": 1, "steps": 1}
        return {**held, "stream": False}

    def launches(
        self, workload: Workload, config: Config, tensors: Mapping[str, torch.Tensor]
    ) -> list[Launch]:
        x, out, weight = tensors["x"], tensors["out"], tensors["weight"]
        bias = tensors["bias"] if self.centred else weight
        rows, cols = workload.size("rows"), workload.size("cols")
        constants = {
            "COLS": cols,
            "ALIGN": min(alignment(x.stride(0)), alignment(out.stride(0))),
            "STREAM": config["stream"],
            "CENTRED": self.centred,
            "EPS": float(workload.get("eps", DEFAULT_EPS)),
            "num_warps": config["num_warps"],
        }
        strides = (x.stride(0), out.stride(0))
        if config["passes"] == 2:
            streamed = {"BLOCK": config["BLOCK"], "LOAD_STAGES": config["block_stages"]}
            arguments = (x, weight, bias, out, *strides)
            return [Launch(streamed_norm_kernel, (rows,), arguments, {**constants, **streamed})]
        per_step, steps = int(config["rows_per_step"]), int(config["steps"])
        held = {
            "BLOCK": next_power_of_two(cols),
            "ROWS_PER_STEP": per_step,
            "EVEN_ROWS": rows % per_step == 0,
            "LOOP": steps > 1,
            "LOAD_STAGES": config.get("stages", 1),
        }
        grid = (ceil_div(ceil_div(rows, per_step), steps),)
        arguments = (x, weight, bias, out, rows, *strides)
        return [Launch(held_norm_kernel, grid, arguments, {**constants, **held})]

    def baselines(self, workload: Workload) -> Mapping[str, object]:
        eager = self._torch(workload)
        names = ("x", "weight", "bias") if self.centred else ("x", "weight")
        return {
            "eager": named("out", eager, *names),
            "compile": named("out", compiled(eager), *names),
        }

    def _torch(self, workload: Workload):  # noqa: ANN202
        shape, eps = [workload.size("cols")], float(workload.get("eps", DEFAULT_EPS))

        def layer_norm(x, weight, bias):  # noqa: ANN001, ANN202
            return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)

        return layer_norm


class RmsNorm(LayerNorm):
    """x / sqrt(mean(x**2) + eps) * weight: LayerNorm without mean and bias; the same dims."""

    name = "rms_norm"
    centred = False

    def _torch(self, workload: Workload):  # noqa: ANN202
        shape, eps = [workload.size("cols")], float(workload.get("eps", DEFAULT_EPS))

        def rms_norm(x, weight):  # noqa: ANN001, ANN202
            return torch.nn.functional.rms_norm(x, shape, weight, eps)

        return rms_norm
