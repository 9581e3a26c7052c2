"""Kernels of torchao, adopted as they are in the package."""

# mypy: ignore-errors
import torch
import triton
from torchao.prototype.blockwise_fp8_training.kernels import (
    triton_fp8_gemm_1x128_128x128_kernel,
)
from torchao.prototype.quantized_training.int8_mm import _scaled_int8_mm_kernel

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost, Tolerance
from search_spaces.records import TensorSpec, Workload

BLOCK = 128


def gemm_cost(width):
    return lambda w: Cost(
        2.0 * w["M"] * w["N"] * w["K"],
        1.0 * (w["M"] + w["N"]) * w["K"] + width * w["M"] * w["N"],
    )


def spec(w, *dims, dtype):
    return TensorSpec(tuple(w[dim] for dim in dims), dtype)


def sizes(w):
    return {name: w[name] for name in "MNK"}


int8_mm = adopt(
    _scaled_int8_mm_kernel,
    name="torchao_int8_mm",
    dims=["M", "N", "K", "dtype"],
    workloads=[Workload.of(M=1024, N=4096, K=4096, dtype="bfloat16")],
    # B is a weight as linear layers store it; the kernel gets it transposed.
    inputs=lambda w: {
        **{name: spec(w, side, "K", dtype="int8") for name, side in zip("ab", "MN", strict=True)},
        "row": spec(w, "M", dtype=w["dtype"]),
        "column": spec(w, "N", dtype=w["dtype"]),
    },
    ranges=lambda w: {"a": (-128, 128), "b": (-128, 128)},
    outputs=lambda w: {"c": spec(w, "M", "N", dtype=w["dtype"])},
    arguments=lambda w, t: {
        **{f"{name.upper()}_ptr": t[name] for name in "abc"},
        "row_scale_ptr": t["row"],
        "col_scale_ptr": t["column"],
        **sizes(w),
        **dict.fromkeys(("stride_am", "stride_bn"), w["K"]),
        "stride_cm": w["N"],
        **dict.fromkeys(("stride_ak", "stride_bk", "stride_cn"), 1),
        "COL_SCALE_SCALAR": False,
    },
    grid=lambda meta: (
        triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),
    ),
    reference=lambda w, t: (
        (t["a"].to(t["row"].dtype) @ t["b"].to(t["row"].dtype).T) * t["row"][:, None] * t["column"]
    ),
    cost=gemm_cost(2.0),
    small={"M": 37, "N": 70, "K": 200},
)


def fp8_reference(w, t):
    """Both sides scaled up, in the precision of the scales, before they are multiplied."""
    a = t["a"].to(t["a_scale"].dtype) * t["a_scale"].T.repeat_interleave(BLOCK, 1)
    b = t["b"].to(t["b_scale"].dtype)
    return a @ (b * t["b_scale"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)).T


def strided(name, tensor, *strides):
    return {f"{name}_ptr": tensor} | {f"{name}_stride_dim_{i}": n for i, n in enumerate(strides)}


fp8_gemm = adopt(
    triton_fp8_gemm_1x128_128x128_kernel,
    name="torchao_fp8_gemm",
    dims=["M", "N", "K"],
    workloads=[Workload.of(M=1024, N=4096, K=4096)],
    # As the package has them: b and the scales of a column-major, those of b per block.
    inputs=lambda w: {
        "a": spec(w, "M", "K", dtype="float8_e4m3fn"),
        "b": spec(w, "N", "K", dtype="float8_e4m3fn"),
        "a_scale": TensorSpec((w["K"] // BLOCK, w["M"]), "float32"),
        "b_scale": TensorSpec((w["N"] // BLOCK, w["K"] // BLOCK), "float32"),
    },
    outputs=lambda w: {"c": spec(w, "M", "N", dtype="bfloat16")},
    arguments=lambda w, t: {
        **strided("a", t["a"], w["K"], 1),
        **strided("b", t["b"], 1, w["K"]),
        **strided("c", t["c"], w["N"], 1),
        **strided("a_s", t["a_scale"], 1, w["M"]),
        **strided("b_s", t["b_scale"], 1, w["K"] // BLOCK),
        **sizes(w),
        "out_dtype": torch.bfloat16,
        "BLOCK_SIZE_K": BLOCK,
    },
    keywords=["out_dtype"],
    grid=lambda meta: (
        triton.cdiv(meta["M"], meta["BLOCK_SIZE_M"]),
        triton.cdiv(meta["N"], meta["BLOCK_SIZE_N"]),
    ),
    reference=fp8_reference,
    # Sums of products of 8-bit numbers are kept in fewer bits than float32 has.
    tolerance=Tolerance(1e-2, 1.0),
    cost=gemm_cost(2.0),
    small={"M": 256, "N": 256, "K": 384},
)

#: Arguments of `tuner.runtime.autotune` in addition to the decorator's own.
SWAP = {
    "int8_mm": {"key_map": lambda args: sizes(args) | {"dtype": args["row_scale_ptr"].dtype}},
    "fp8_gemm": {"key_map": sizes},
}
