"""A kernel of cut-cross-entropy, adopted as it is in the package."""

# mypy: ignore-errors
import os

import triton

# Read when the package is imported: without it there is no autotuner.
os.environ["CCE_AUTOTUNE"] = "1"

from cut_cross_entropy.indexed_dot import _indexed_neg_dot_forward_kernel
from cut_cross_entropy.tl_utils import b_bin_fn

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost, Tolerance
from search_spaces.records import TensorSpec, Workload

indexed_dot = adopt(
    _indexed_neg_dot_forward_kernel,
    name="cce_indexed_dot",
    dims=["B", "D", "V", "SHIFT", "dtype"],
    workloads=[Workload.of(B=8192, D=2304, V=32000, SHIFT=False, dtype="bfloat16")],
    inputs=lambda w: {
        "e": TensorSpec((w["B"], w["D"]), w["dtype"]),
        "c": TensorSpec((w["V"], w["D"]), w["dtype"]),
        "index": TensorSpec((w["B"] + 1,), "int64"),
    },
    ranges=lambda w: {"index": (0, w["V"])},
    outputs=lambda w: {"out": TensorSpec((w["B"],), "float32")},
    arguments=lambda w, t: {
        **{name.capitalize(): t[name] for name in ("e", "c", "out")},
        "Inds": t["index"],
        "Valids": None,
        **{name: w[name] for name in ("B", "D", "SHIFT")},
        **dict.fromkeys(("stride_eb", "stride_cv"), w["D"]),
        **dict.fromkeys(("stride_ed", "stride_cd", "stride_ib", "stride_vb"), 1),
        "B_BIN": b_bin_fn(w["B"]),
    },
    keywords=["B_BIN"],
    grid=lambda meta: (
        triton.cdiv(meta["B"], meta["BLOCK_B"]) * triton.cdiv(meta["D"], meta["BLOCK_D"]),
    ),
    reference=lambda w, t: -(t["e"] * t["c"][t["index"][int(w["SHIFT"]) :][: w["B"]]]).sum(1),
    # The kernel multiplies in the inputs' precision.
    tolerance=Tolerance(1e-2, 0.5),
    cost=lambda w: Cost(2.0 * w["B"] * w["D"], 4.0 * w["B"] * w["D"]),
    small={"B": 70, "D": 150, "V": 50},
)

#: Arguments of `tuner.runtime.autotune` in addition to the decorator's own.
SWAP = {
    "indexed_dot": {
        "key_map": lambda args: {
            **{name: args[name] for name in ("B", "D", "SHIFT")},
            "V": args["C"].shape[0],
            "dtype": args["E"].dtype,
        }
    }
}
