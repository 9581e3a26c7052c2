"""Kernels as users have them under `@triton.autotune`, adopted; imported by tests as a module."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost
from search_spaces.records import TensorSpec, Workload


def keep_small(configs, named_args, **kwargs):
    limit = 2 * triton.next_power_of_2(named_args["n"])
    return [item for item in configs if item.kwargs["BLOCK"] <= limit]


CONFIGS = [
    triton.Config({"BLOCK": 128}, num_warps=2),
    triton.Config({"BLOCK": 256, "UNROLL": 2}, num_warps=4),
    triton.Config({"BLOCK": 1024}, num_warps=8, num_stages=2),
    triton.Config({"BLOCK": 65536}, num_warps=8),
]


@triton.autotune(configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": keep_small})
@triton.heuristics({"EVEN": lambda args: args["n"] % (args["BLOCK"]) == 0})
@triton.jit
def scale_add_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    n,
    alpha,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    UNROLL: tl.constexpr = 1,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + at, alpha * tl.load(x_ptr + at) + tl.load(y_ptr + at))
    else:
        mask = at < n
        x = tl.load(x_ptr + at, mask)
        tl.store(out_ptr + at, alpha * x + tl.load(y_ptr + at, mask), mask)


def vector(workload):
    return TensorSpec((workload.size("n"),), workload.text("dtype"))


def scale_add(widen=False):
    return adopt(
        scale_add_kernel,
        name="scale_add",
        workloads=[Workload.of(n=4096, dtype="float32"), Workload.of(n=1000, dtype="float16")],
        inputs=lambda w: {"x": vector(w), "y": vector(w)},
        outputs=lambda w: {"out": vector(w)},
        arguments=lambda w, t: {
            "x_ptr": t["x"],
            "y_ptr": t["y"],
            "out_ptr": t["out"],
            "n": w.size("n"),
            "alpha": 2.0,
        },
        grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
        reference=lambda w, t: 2.0 * t["x"] + t["y"],
        cost=lambda w: Cost(flops=2.0 * w.size("n"), bytes=12.0 * w.size("n")),
        small={"n": 389},
        widen=widen,
    )


adopted = scale_add()


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["cols"])})
@triton.autotune(
    configs=[triton.Config({}, num_warps=warps) for warps in (1, 4)],
    key=["rows", "cols"],
    reset_to_zero=["total_ptr"],
    restore_value=["state_ptr"],
)
@triton.jit
def accumulate_kernel(x_ptr, state_ptr, total_ptr, rows, cols, BLOCK: tl.constexpr):
    """state += x in place, total += the column sums of x by atomics."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < cols
    x = tl.load(x_ptr + row * cols + at, mask, 0.0)
    state = tl.load(state_ptr + row * cols + at, mask, 0.0)
    tl.store(state_ptr + row * cols + at, state + x, mask)
    tl.atomic_add(total_ptr + at, x, mask)


def matrix(workload):
    return TensorSpec((workload.size("rows"), workload.size("cols")), "float32")


in_place = adopt(
    accumulate_kernel,
    name="accumulate",
    workloads=[Workload.of(rows=64, cols=100)],
    dims=["rows", "cols"],
    inputs=lambda w: {"x": matrix(w), "state": matrix(w)},
    outputs=lambda w: {
        "new_state": matrix(w),
        "total": TensorSpec((w.size("cols"),), "float32"),
    },
    arguments=lambda w, t: {
        "x_ptr": t["x"],
        "state_ptr": t["new_state"],
        "total_ptr": t["total"],
        "rows": w.size("rows"),
        "cols": w.size("cols"),
    },
    grid=lambda meta: (meta["rows"],),
    reference=lambda w, t: {"new_state": t["state"] + t["x"], "total": torch.sum(t["x"], 0)},
    cost=lambda w: Cost(flops=2.0, bytes=12.0 * w.size("rows") * w.size("cols")),
    initial={"new_state": "state"},
    small={"rows": 5, "cols": 37},
)
