"""A kernel of xFormers that has no autotuner, with configs of our own; it updates x in place."""

# mypy: ignore-errors
import torch
import triton
from xformers.ops._triton.rmsnorm_kernels import _rms_norm_add_kernel

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost
from search_spaces.records import TensorSpec, Workload

EPS = 1e-6


def rows(w):
    return TensorSpec((w["rows"], w["N_COLS"]), w["dtype"])


def reference(w, t):
    x = t["x"] + t["y"]
    h = x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)
    return {"h": h * t["weight"] if w["INCLUDE_WEIGHT"] else h, "new_x": x}


rms_norm_add = adopt(
    _rms_norm_add_kernel,
    name="xformers_rms_norm_add",
    # The first is what the package launches for rows of 4096.
    configs=[
        triton.Config({"BLOCK_SIZE": size}, num_warps=warps)
        for size, warps in ((4096, 8), (4096, 16), (4096, 4), (2048, 8), (2048, 4), (1024, 4))
    ],
    key=["N_COLS", "INCLUDE_WEIGHT"],
    dims=["rows", "N_COLS", "INCLUDE_WEIGHT", "dtype"],
    workloads=[
        Workload.of(rows=16384, N_COLS=4096, INCLUDE_WEIGHT=flag, dtype="bfloat16")
        for flag in (True, False)
    ],
    inputs=lambda w: {
        **dict.fromkeys("xy", rows(w)),
        "weight": TensorSpec((w["N_COLS"],), w["dtype"]),
    },
    outputs=lambda w: {"h": rows(w), "new_x": rows(w)},
    initial={"new_x": "x"},
    arguments=lambda w, t: {
        "x_ptr": t["new_x"],
        "y_ptr": t["y"],
        "h1_ptr": t["h"],
        "w_ptr": t["weight"] if w["INCLUDE_WEIGHT"] else None,
        "eps": EPS,
        "stride": w["N_COLS"],
        **{name: w[name] for name in ("N_COLS", "INCLUDE_WEIGHT")},
    },
    grid=lambda meta: (meta["x_ptr"].shape[0],),
    reference=reference,
    cost=lambda w: Cost(4.0 * w["rows"] * w["N_COLS"], 8.0 * w["rows"] * w["N_COLS"]),
    small={"rows": 3, "N_COLS": 1300},
)

#: Arguments of `tuner.runtime.autotune` in addition to the decorator's own.
SWAP = {"rms_norm_add": {"dims": {"rows": lambda args: args["x_ptr"].shape[0]}}}
