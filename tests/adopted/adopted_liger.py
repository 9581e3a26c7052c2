"""Kernels of Liger-Kernel, adopted as they are in the package."""

# mypy: ignore-errors
import torch
import torch.nn.functional as F
import triton
from liger_kernel.ops.dyt import _dyt_bwd_kernel, _dyt_fwd_kernel
from liger_kernel.ops.fused_moe_kernels import _token_gather_weighted_sum_kernel

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost
from search_spaces.records import TensorSpec, Workload

PROGRAMS = 132


def rows(w):
    return TensorSpec((w["M"], w["N"]), w["dtype"])


def row(w):
    return TensorSpec((w["N"],), w["dtype"])


def scale(w):
    return TensorSpec((1,), w["dtype"])


def pick(source, *names):
    return {name: source[name] for name in names}


def given(t):
    """The inputs of both directions under the names of the kernels' parameters."""
    return {"X": t["x"], "Alpha": t["alpha"], "Gamma": t["gamma"]}


def dyt_reference(w, t):
    y = torch.tanh(t["alpha"] * t["x"]) * t["gamma"]
    return y + t["beta"] if w["HAVE_BETA"] else y


dyt_forward = adopt(
    _dyt_fwd_kernel,
    name="liger_dyt_forward",
    dims=["M", "N", "HAVE_BETA", "dtype"],
    workloads=[
        Workload.of(M=8192, N=4096, HAVE_BETA=flag, dtype="bfloat16") for flag in (True, False)
    ],
    inputs=lambda w: {"x": rows(w), "alpha": scale(w), "gamma": row(w), "beta": row(w)},
    outputs=lambda w: {"y": rows(w)},
    arguments=lambda w, t: {
        **given(t),
        **pick(w, "HAVE_BETA", "N"),
        "Y": t["y"],
        "Beta": t["beta"] if w["HAVE_BETA"] else None,
    },
    grid=lambda meta: (triton.cdiv(meta["N"], meta["BLOCK_N"]), meta["X"].shape[0]),
    reference=dyt_reference,
    cost=lambda w: Cost(4.0 * w["M"] * w["N"], 4.0 * w["M"] * w["N"]),
    small={"M": 5, "N": 1300},
)


def dyt_gradients(w, t):
    tanh = torch.tanh(t["alpha"] * t["x"])
    dx = t["alpha"] * (1 - tanh * tanh) * t["dy"] * t["gamma"]
    # A program sums up every 132nd row.
    spare = (0, 0, 0, -w["M"] % PROGRAMS)
    parts = {"dx": dx, "dg": F.pad(t["dy"] * tanh, spare).view(-1, PROGRAMS, w["N"]).sum(0)}
    if w["HAVE_BETA"]:
        parts["db"] = F.pad(t["dy"], spare).view(-1, PROGRAMS, w["N"]).sum(0)
    return parts


def partial_sums(w):
    names = ["dg", "db"] if w["HAVE_BETA"] else ["dg"]
    return {name: TensorSpec((PROGRAMS, w["N"]), "float32") for name in names}


dyt_backward = adopt(
    _dyt_bwd_kernel,
    name="liger_dyt_backward",
    dims=["M", "N", "HAVE_BETA", "dtype"],
    workloads=[Workload.of(M=8192, N=4096, HAVE_BETA=True, dtype="bfloat16")],
    inputs=lambda w: {"x": rows(w), "dy": rows(w), "alpha": scale(w), "gamma": row(w)},
    outputs=lambda w: {"dx": rows(w), **partial_sums(w)},
    # Where a config puts its sums depends on its block: what it leaves there is not compared.
    scratch=lambda w, config: {"da": TensorSpec((PROGRAMS, triton.cdiv(w["N"], 512)), "float32")},
    arguments=lambda w, t: {
        **{name.upper(): t.get(name) for name in ("dy", "dx", "da", "dg", "db")},
        **given(t),
        **pick(w, "HAVE_BETA", "M", "N"),
    },
    grid=lambda meta: (triton.cdiv(meta["N"], meta["BLOCK_N"]), PROGRAMS),
    reference=dyt_gradients,
    cost=lambda w: Cost(10.0 * w["M"] * w["N"], 6.0 * w["M"] * w["N"]),
    small={"M": 150, "N": 1300},
)


def gathered(w, t):
    found = t["y"][t["order"].long()].view(w["T"], w["K_dim"], w["H_dim"])
    return (found if w["w_is_None"] else found * t["weights"].view(w["T"], -1, 1)).sum(1)


token_gather = adopt(
    _token_gather_weighted_sum_kernel,
    name="liger_token_gather",
    dims=["T", "H_dim", "K_dim", "w_is_None", "dtype"],
    workloads=[
        Workload.of(T=4096, H_dim=2048, K_dim=8, w_is_None=flag, dtype="bfloat16")
        for flag in (False, True)
    ],
    inputs=lambda w: {
        "y": TensorSpec((w["T"] * w["K_dim"], w["H_dim"]), w["dtype"]),
        "weights": TensorSpec((w["T"] * w["K_dim"],), w["dtype"]),
        "order": TensorSpec((w["T"] * w["K_dim"],), "int32"),
    },
    ranges=lambda w: {"order": (0, w["T"] * w["K_dim"])},
    outputs=lambda w: {"out": TensorSpec((w["T"], w["H_dim"]), w["dtype"])},
    arguments=lambda w, t: {
        "Y_ptr": t["y"],
        "w_ptr": None if w["w_is_None"] else t["weights"],
        "s_rev_ptr": t["order"],
        "out_ptr": t["out"],
        **pick(w, "H_dim", "K_dim", "w_is_None"),
        **dict.fromkeys(("stride_Y_TK", "stride_out_T"), w["H_dim"]),
        **dict.fromkeys(("stride_Y_H", "stride_out_H"), 1),
    },
    keywords=["H_dim"],
    grid=lambda meta: (meta["out_ptr"].shape[0],),
    reference=gathered,
    cost=lambda w: Cost(
        2.0 * w["T"] * w["K_dim"] * w["H_dim"], 2.0 * w["T"] * (w["K_dim"] + 1) * w["H_dim"]
    ),
    small={"T": 7, "H_dim": 200, "K_dim": 3},
)

#: Arguments of `tuner.runtime.autotune` in addition to the decorator's own.
SWAP = {
    "dyt_forward": {"dims": {"M": lambda args: args["X"].shape[0]}},
    "dyt_backward": {},
    "token_gather": {"dims": {"T": lambda args: args["out_ptr"].shape[0]}},
}
