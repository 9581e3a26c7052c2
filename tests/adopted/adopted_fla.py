"""Kernels of flash-linear-attention, adopted as they are in the package.

The library passes all arguments by keyword.
"""

# mypy: ignore-errors
import torch
import torch.nn.functional as F
import triton
from fla.modules.causal_conv1d.ops import causal_conv1d_update_kernel
from fla.ops.common.chunk_o import chunk_fwd_kernel_o
from fla.ops.gla.chunk import chunk_gla_bwd_kernel_dv
from fla.ops.utils.cumsum import chunk_local_cumsum_scalar_kernel

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost, Tolerance
from search_spaces.records import TensorSpec, Workload
from search_spaces.tensors import generator, random_tensor

BT = 64
#: Products of 64 terms are rounded to the inputs' precision on the way.
ROUNDED = Tolerance(1e-2, 0.3)


def pick(source, *names):
    return {name: source[name] for name in names}


def heads(w, *sizes, dtype=None):
    return TensorSpec((w["B"], w["T"], w["H"], *sizes), dtype or w["dtype"])


def states(w):
    """One state per chunk, with its dims in the order that STATE_V_FIRST asks for."""
    sizes = (w["V"], w["K"]) if w["STATE_V_FIRST"] else (w["K"], w["V"])
    return TensorSpec((w["B"], triton.cdiv(w["T"], BT), w["H"], *sizes), w["dtype"])


def chunks(x, w):
    """[B, T, H, ...] as [B, chunks, H, BT, ...], padded with zeros."""
    x = x.flatten(3) if x.dim() > 3 else x.unsqueeze(-1)
    return F.pad(x, (0, 0, 0, 0, 0, -w["T"] % BT)).unflatten(1, (-1, BT)).transpose(2, 3)


def unchunked(x, w):
    """The inverse of `chunks`."""
    return x.transpose(2, 3).flatten(1, 2)[:, : w["T"]]


def state(x, w):
    return x.transpose(-1, -2) if w["STATE_V_FIRST"] else x


def with_small_gates(specs):
    """Inputs of a kernel, with the gates of its argument `g` near 0: they are exponents."""

    def make_inputs(w, seed, device):
        source = generator(seed, device)
        return {
            name: random_tensor(spec, source, device, scale=0.1 if name == "g" else 1.0)
            for name, spec in specs(w).items()
        }

    return make_inputs


def chunk_cost(w):
    size = w["B"] * w["T"] * w["H"]
    return Cost(2.0 * size * w["K"] * w["V"], 2.0 * size * (w["K"] + 2 * w["V"]))


#: What every launch over whole chunks passes, and the sizes at which it is verified.
CHUNKS = {"cu_seqlens": None, "chunk_indices": None, "BT": BT}
CHUNK_DIMS = ("T", "H", "K", "V", "STATE_V_FIRST")
SMALL = {"B": 1, "T": 100, "H": 2, "K": 64, "V": 64}


def chunk_grid(first):
    """A program for every block of values and chunk of each head of `first`, [B, T, H, ...]."""
    return lambda meta: (
        triton.cdiv(meta["V"], meta["BV"]) * triton.cdiv(meta["T"], BT),
        meta[first].shape[0] * meta["H"],
    )


def output_reference(w, t):
    q, k, v = (chunks(t[name], w) for name in "qkv")
    found, scores = q @ state(t["h"], w), q @ k.transpose(-1, -2)
    if w["gated"]:
        g = chunks(t["g"], w)
        found, scores = found * torch.exp2(g), scores * torch.exp2(g - g.transpose(-1, -2))
    return unchunked(found + torch.tril(scores) @ v.to(scores.dtype), w) * w["K"] ** -0.5


chunk_output = adopt(
    chunk_fwd_kernel_o,
    name="fla_chunk_output",
    dims=["B", "T", "H", "K", "V", "STATE_V_FIRST", "gated", "dtype"],
    workloads=[
        Workload.of(
            B=2, T=4096, H=8, K=128, V=256, STATE_V_FIRST=flag, gated=flag, dtype="bfloat16"
        )
        for flag in (True, False)
    ],
    make_inputs=with_small_gates(
        lambda w: {
            **{name: heads(w, w[size]) for name, size in (("q", "K"), ("k", "K"), ("v", "V"))},
            "h": states(w),
            "g": heads(w, dtype="float32"),
        }
    ),
    outputs=lambda w: {"o": heads(w, w["V"])},
    arguments=lambda w, t: {
        **pick(t, "q", "k", "v", "h", "o"),
        **pick(w, *CHUNK_DIMS),
        **CHUNKS,
        "g": t["g"] if w["gated"] else None,
        "g_gamma": None,
        "scale": w["K"] ** -0.5,
        "HV": w["H"],
    },
    keywords=["q"],
    grid=chunk_grid("q"),
    reference=output_reference,
    tolerance=ROUNDED,
    cost=chunk_cost,
    small=SMALL,
)


def dv_reference(w, t):
    k, g, do, a = (chunks(t[name], w) for name in ("k", "g", "do", "A"))
    last = [min(BT * (at + 1), w["T"]) - 1 for at in range(g.shape[1])]
    ends = t["g"][:, last].unsqueeze(3)
    inside = torch.triu(a.transpose(-1, -2)) @ do
    return unchunked(inside + (k * torch.exp2(ends - g)) @ state(t["dh"], w).to(g.dtype), w)


gla_dv = adopt(
    chunk_gla_bwd_kernel_dv,
    name="fla_gla_dv",
    dims=["B", "T", "H", "K", "V", "STATE_V_FIRST", "dtype"],
    workloads=[Workload.of(B=2, T=4096, H=8, K=128, V=256, STATE_V_FIRST=False, dtype="bfloat16")],
    make_inputs=with_small_gates(
        lambda w: {
            "k": heads(w, w["K"]),
            "g": heads(w, w["K"], dtype="float32"),
            "A": heads(w, BT),
            "do": heads(w, w["V"]),
            "dh": states(w),
        }
    ),
    outputs=lambda w: {"dv": heads(w, w["V"])},
    arguments=lambda w, t: {
        **pick(t, "k", "g", "A", "do", "dh", "dv"),
        **pick(w, *CHUNK_DIMS),
        **CHUNKS,
    },
    keywords=["k"],
    grid=chunk_grid("k"),
    reference=dv_reference,
    tolerance=ROUNDED,
    cost=chunk_cost,
    small=SMALL,
)


def update_reference(w, t):
    cache = torch.cat([t["cache"][..., 1:], t["x"].unsqueeze(-1)], -1)
    y = (cache * t["weight"]).sum(-1)
    return {"y": F.silu(y) if w["ACTIVATION"] == "silu" else y, "new_cache": cache}


conv_update = adopt(
    causal_conv1d_update_kernel,
    name="fla_conv_update",
    dims=["N", "D", "W", "ACTIVATION", "dtype"],
    workloads=[
        Workload.of(N=256, D=4096, W=4, ACTIVATION=activation, dtype="bfloat16")
        for activation in ("silu", None)
    ],
    inputs=lambda w: {
        "x": TensorSpec((w["N"], w["D"]), w["dtype"]),
        "cache": TensorSpec((w["N"], w["D"], w["W"]), w["dtype"]),
        "weight": TensorSpec((w["D"], w["W"]), w["dtype"]),
    },
    outputs=lambda w: {
        "y": TensorSpec((w["N"], w["D"]), w["dtype"]),
        "new_cache": TensorSpec((w["N"], w["D"], w["W"]), w["dtype"]),
    },
    initial={"new_cache": "cache"},
    arguments=lambda w, t: {
        **pick(t, "x", "y", "weight"),
        **pick(w, "D", "W", "ACTIVATION"),
        **dict.fromkeys(("residual", "bias")),
        **dict.fromkeys(("stride_x_n", "stride_y_n"), w["D"]),
        **dict.fromkeys(("stride_x_d", "stride_y_d"), 1),
        "cache": t["new_cache"],
        "BW": triton.next_power_of_2(w["W"]),
    },
    keywords=["x"],
    grid=lambda meta: (triton.cdiv(meta["D"], meta["BD"]) * meta["x"].shape[0],),
    reference=update_reference,
    cost=lambda w: Cost(2.0 * w["N"] * w["D"] * w["W"], 4.0 * w["N"] * w["D"] * (1 + w["W"])),
    small={"N": 3, "D": 70},
)


def cumsum_reference(w, t):
    s = chunks(t["s"], w)
    o = s.flip(3).cumsum(3).flip(3) if w["REVERSE"] else s.cumsum(3)
    return unchunked(o * (1.0 if w["scale"] is None else w["scale"]), w).squeeze(-1)


local_cumsum = adopt(
    chunk_local_cumsum_scalar_kernel,
    name="fla_local_cumsum",
    dims=["B", "T", "H", "REVERSE", "scale", "dtype"],
    workloads=[
        Workload.of(B=8, T=8192, H=32, REVERSE=reverse, scale=scale, dtype="float32")
        for reverse, scale in ((False, None), (True, 0.5))
    ],
    inputs=lambda w: {"s": heads(w)},
    outputs=lambda w: {"o": heads(w)},
    arguments=lambda w, t: {
        **pick(t, "s", "o"),
        **pick(w, "scale", "T", "B", "H", "REVERSE"),
        **CHUNKS,
        "USE_GRAPH": False,
    },
    keywords=["s"],
    grid=lambda meta: (triton.cdiv(meta["T"], BT) * meta["B"] * meta["H"],),
    reference=cumsum_reference,
    cost=lambda w: Cost(1.0 * w["B"] * w["T"] * w["H"], 8.0 * w["B"] * w["T"] * w["H"]),
    small={"B": 1, "T": 100, "H": 3},
)


def chunk_key(first, *more):
    """The workload of a launch whose first tensor is `first`, [B, T, H, ...]."""

    def key_map(args):
        key = {"B": args[first].shape[0], "dtype": args[first].dtype}
        return key | {name: args[name] for name in ("T", "H", *more)}

    return key_map


#: Arguments of `tuner.runtime.autotune` in addition to the decorator's own.
SWAP = {
    "chunk_output": {
        "key_map": lambda args: {
            **chunk_key("q", "K", "V", "STATE_V_FIRST")(args),
            "gated": args["g"] is not None,
        }
    },
    "gla_dv": {"key_map": chunk_key("k", "K", "V", "STATE_V_FIRST")},
    "conv_update": {"dims": {"N": lambda args: args["x"].shape[0]}},
    "local_cumsum": {"key_map": chunk_key("s", "REVERSE", "scale")},
}
