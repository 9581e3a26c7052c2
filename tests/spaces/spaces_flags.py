"""Kernels with keys that are no sizes, pruners of all sorts and work space; imported by tests."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost
from search_spaces.records import TensorSpec, Workload


def vector(name="n"):
    return lambda w: TensorSpec((w.size(name),), "float32")


def cost(w):
    return Cost(flops=w.size("n"), bytes=8.0 * w.size("n"))


def rewritten(configs, nargs, n, FLAG, **kwargs):
    """Takes `n` by keyword, changes the given configs and adds another."""
    assert "x_ptr" in nargs
    assert kwargs["SHIFTED"] is (nargs["shift_ptr"] is not None)
    for config in configs:
        config.kwargs["BLOCK"] = min(config.kwargs["BLOCK"], triton.next_power_of_2(n))
    return [*configs, triton.Config({"BLOCK": 32}, num_warps=1)]


@triton.heuristics({"SHIFTED": lambda args: args["shift_ptr"] is not None})
@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=2) for block in (128, 512, 4096)],
    key=["FLAG", "MODE", "shift_ptr", "offset"],
    prune_configs_by={"early_config_prune": rewritten},
    restore_value=["x_ptr", "shift_ptr"],
)
@triton.jit
def moded_kernel(
    x_ptr,
    out_ptr,
    shift_ptr,
    n,
    offset,
    FLAG: tl.constexpr,
    MODE: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n, 0.0) + offset
    if SHIFTED:
        x += tl.load(shift_ptr + at, at < n, 0.0)
    if FLAG:
        x = -x
    if MODE == "square":
        x = x * x
    tl.store(out_ptr + at, x, at < n)


def moded_reference(w, t):
    x = t["x"] + w["offset"] + (t["shift"] if w["shift"] is not None else 0.0)
    x = -x if w["FLAG"] else x
    return x * x if w["MODE"] == "square" else x


moded = adopt(
    moded_kernel,
    name="moded",
    workloads=[
        Workload.of(n=300, FLAG=True, MODE="square", shift=None, offset=0),
        Workload.of(n=1000, FLAG=False, MODE="None", shift="full", offset=3),
    ],
    dims=["n", "FLAG", "MODE", "shift", "offset"],
    make_inputs=lambda w, seed, device: {
        name: torch.empty(w.size("n"), device=device)
        if device == "meta"
        else torch.randn(w.size("n"), generator=torch.Generator(device).manual_seed(seed + at))
        for at, name in enumerate(("x", "shift"))
    },
    outputs=lambda w: {"out": vector()(w)},
    arguments=lambda w, t: {
        "x_ptr": t["x"],
        "out_ptr": t["out"],
        "shift_ptr": t["shift"] if w["shift"] is not None else None,
        "n": w["n"],
        "offset": w["offset"],
        "FLAG": w["FLAG"],
        "MODE": w["MODE"],
    },
    grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
    reference=moded_reference,
    cost=cost,
    keywords=["n"],
    small={"n": 77},
)


@triton.jit
def partial_sums_kernel(x_ptr, order_ptr, part_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(order_ptr + at, at < n, 0)
    part = tl.sum(tl.load(x_ptr + order, at < n, 0.0))
    tl.store(part_ptr + tl.program_id(0), part)
    tl.atomic_add(out_ptr, part)


plain = adopt(
    partial_sums_kernel,
    name="partial_sums",
    configs=[triton.Config({"BLOCK": block}) for block in (64, 256)],
    key=["n"],
    workloads=[Workload.of(n=1000)],
    dims=["n"],
    inputs=lambda w: {
        "x": vector()(w),
        "order_64": TensorSpec((w.size("n"),), "int32"),
        "order_256": TensorSpec((w.size("n"),), "int64"),
    },
    ranges=lambda w: {"order_64": (0, 7), "order_256": (7, w.size("n"))},
    outputs=lambda w: {"out": TensorSpec((1,), "float32")},
    scratch=lambda w, config: {
        "part": TensorSpec((triton.cdiv(w.size("n"), config["BLOCK"]),), "float32")
    },
    arguments=lambda w, t, config: {
        "x_ptr": t["x"],
        "order_ptr": t[f"order_{config['BLOCK']}"],
        "part_ptr": t["part"],
        "out_ptr": t["out"],
        "n": w["n"],
    },
    grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
    # Both orders are of the same input, so that one reference serves all configs.
    reference=lambda w, t: t["x"][t["order_64"]].sum().reshape(1),
    cost=cost,
    initial={"out": 0.0, "part": 0},
)
