# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Row softmax fused into one Triton kernel: each row is read once, kept in registers, written once.

Bound by memory: the least traffic is one read and one write of the matrix. The exponential is
taken in base 2, as the hardware does, in float32 whatever the dtype.
"""

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.cudnn import softmax_forward
from search_spaces.params import Boolean, Integer, PowerOfTwo
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

LOG2E = tl.constexpr(1.4426950408889634)
MAX_COLS = 32768
DTYPES = ("float32", "float16", "bfloat16")
_MAX_THREADS = 1024
_MAX_PER_THREAD = 128
_RELATIVE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}


@triton.jit
def _softmax_rows(
    x_ptr,
    out_ptr,
    group,
    rows,
    x_stride,
    out_stride,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    STREAM: tl.constexpr,
):
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    cols = tl.arange(0, BLOCK)
    row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
    # Rows beyond the last read the last one: what they compute is sound, and is not stored.
    x_row = row if EVEN_ROWS else tl.minimum(row, rows - 1)
    # A large matrix has more than 2**31 elements; the alignment of its rows is only known here.
    x_at = tl.multiple_of(x_row.to(tl.int64) * x_stride, ALIGN)[:, None] + cols[None, :]
    out_at = tl.multiple_of(row.to(tl.int64) * out_stride, ALIGN)[:, None] + cols[None, :]
    if COLS == BLOCK:
        x = tl.load(x_ptr + x_at, eviction_policy=load_policy)
    else:
        x = tl.load(
            x_ptr + x_at, (cols < COLS)[None, :], float("-inf"), eviction_policy=load_policy
        )
    scaled = x.to(tl.float32) * LOG2E
    powers = tl.exp2(scaled - tl.max(scaled, 1)[:, None])
    out = (powers * (1.0 / tl.sum(powers, 1))[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN_ROWS and COLS == BLOCK:
        tl.store(out_ptr + out_at, out, cache_modifier=store_policy)
    else:
        mask = (row < rows)[:, None] & (cols < COLS)[None, :]
        tl.store(out_ptr + out_at, out, mask, cache_modifier=store_policy)


@triton.jit
def softmax_kernel(
    x_ptr,
    out_ptr,
    rows,
    x_stride,
    out_stride,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS_PER_STEP: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    STREAM: tl.constexpr,
    LOOP: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):
    """One group of ROWS_PER_STEP rows per program or, with LOOP, every group the grid apart.

    BLOCK is the power of two that holds a row of COLS. x_stride and out_stride are elements between
    rows, multiples of ALIGN. With STREAM, lines are marked to leave the caches first. LOAD_STAGES
    groups are in flight through shared memory where the loop is pipelined.
    """
    # fmt: off
    if LOOP:
        groups = tl.cdiv(rows, ROWS_PER_STEP)
        for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
            _softmax_rows(x_ptr, out_ptr, group, rows, x_stride, out_stride,
                          COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM)
    else:
        _softmax_rows(x_ptr, out_ptr, tl.program_id(0), rows, x_stride, out_stride,
                      COLS, BLOCK, ROWS_PER_STEP, EVEN_ROWS, ALIGN, STREAM)
    # fmt: on


def _tile(config: Config, workload: Workload) -> int:
    return int(config["rows_per_step"]) * next_power_of_two(workload.size("cols"))


def _threads(config: Config, device: Device) -> int:
    return int(config["num_warps"]) * (device.warp_size or 32)


def _block_exists(config: Config, workload: Workload, device: Device) -> bool:
    return _threads(config, device) <= _MAX_THREADS


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    return _tile(config, workload) <= _threads(config, device) * _MAX_PER_THREAD


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    return config["num_warps"] == 1 or _tile(config, workload) >= 2 * _threads(config, device)


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    groups = ceil_div(workload.size("rows"), int(config["rows_per_step"]))
    enough = min(groups, device.sm_count)
    return config["steps"] == 1 or ceil_div(groups, int(config["steps"])) >= enough


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    in_flight = int(config.get("stages", 1)) - 1
    needed = in_flight * _tile(config, workload) * element_bytes(workload.text("dtype"))
    return in_flight == 0 or device.shared_bytes == 0 or needed <= device.shared_bytes


CONSTRAINTS = (
    Constraint("block", _block_exists, "a block has at most 1024 threads"),
    Constraint("registers", _fits_registers, "a thread would hold more than 128 elements"),
    Constraint("busy", _keeps_threads_busy, "threads would hold fewer than two elements"),
    Constraint("fill", _fills_device, "programs would be fewer than multiprocessors"),
    Constraint("shared", _fits_shared, "the rows in flight do not fit into shared memory"),
)


class Softmax(Kernel):
    """`softmax(x, -1)` of x[rows, cols]; dims rows, cols (at most 32768) and dtype."""

    name = "softmax"

    def workloads(self) -> Sequence[Workload]:
        shapes = [
            (8192, 8192, "bfloat16"),
            (8192, 8192, "float16"),
            (4096, 32768, "float32"),
            (65536, 1024, "bfloat16"),
            (32768, 1000, "float32"),
            (16384, 5003, "bfloat16"),
            (131072, 128, "float16"),
            (128, 16384, "float32"),
        ]
        return [Workload.of(rows=rows, cols=cols, dtype=dtype) for rows, cols, dtype in shapes]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": 2**31 - 1, "cols": MAX_COLS}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES)

    def small_workload(self, workload: Workload) -> Workload:
        cols = 509 if workload.size("cols") > 509 else max(workload.size("cols") - 1, 1) | 1
        return workload.with_dims(rows=13, cols=cols)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Mapping[str, torch.Tensor]:
        spec = TensorSpec((workload.size("rows"), workload.size("cols")), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device, scale=2.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(
        self, workload: Workload, inputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        return {"out": torch.softmax(inputs["x"].double(), dim=-1)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = _RELATIVE[workload.text("dtype")]
        # A single probability may be near one, where rounding to the output's dtype alone may be
        # off by half of `relative`.
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        moved = 2.0 * elements * element_bytes(workload.text("dtype"))
        return Cost(flops=4.0 * elements, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        rows, block = workload.size("rows"), next_power_of_two(workload.size("cols"))
        tallest = min(8, max(8192 // block, 1), next_power_of_two(rows))
        longest = min(16, next_power_of_two(rows))
        parameters = [
            PowerOfTwo("num_warps", 1, 32),
            PowerOfTwo("rows_per_step", 1, tallest),
            PowerOfTwo("steps", 1, longest),
            Boolean("stream"),
        ]
        if longest > 1:
            looping = PowerOfTwo("steps", 2, longest).values()
            parameters.append(Integer("stages", 1, 4, when={"steps": looping}))
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """One program per row, warps by the size of the row, as Triton's own tutorial has it."""
        block = next_power_of_two(workload.size("cols"))
        usual = 4 if block < 2048 else 8 if block < 4096 else 16
        busy = max(block // (2 * (device.warp_size or 32)), 1)
        return {"num_warps": min(usual, busy), "rows_per_step": 1, "steps": 1, "stream": False}

    def launches(
        self, workload: Workload, config: Config, tensors: Mapping[str, torch.Tensor]
    ) -> list[Launch]:
        x, out = tensors["x"], tensors["out"]
        rows, cols = workload.size("rows"), workload.size("cols")
        per_step, steps = int(config["rows_per_step"]), int(config["steps"])
        constants = {
            "COLS": cols,
            "BLOCK": next_power_of_two(cols),
            "ROWS_PER_STEP": per_step,
            "EVEN_ROWS": rows % per_step == 0,
            "ALIGN": min(alignment(x.stride(0)), alignment(out.stride(0))),
            "STREAM": config["stream"],
            "LOOP": steps > 1,
            "LOAD_STAGES": config.get("stages", 1),
            "num_warps": config["num_warps"],
        }
        grid = (ceil_div(ceil_div(rows, per_step), steps),)
        arguments = (x, out, rows, x.stride(0), out.stride(0))
        return [Launch(softmax_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, object]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, dim=-1)

        return {
            "eager": named("out", eager, "x"),
            "compile": named("out", compiled(eager), "x"),
            "vendor": named("out", softmax_forward, "x"),
        }
