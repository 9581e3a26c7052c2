# mypy: ignore-errors
"""The declaration of a kernel that lives in another file."""

import checking
import triton
from device import double_kernel

from search_spaces.adoption.adopt import adopt
from search_spaces.kernel import Cost
from search_spaces.records import TensorSpec, Workload

DTYPE = "float32"
PAD = 1


def vector(workload):
    return TensorSpec((workload.size("n"),), DTYPE)


def arguments(workload, tensors):
    return {"x_ptr": tensors["x"], "y_ptr": tensors["y"], "n": workload.size("n")}


double = adopt(
    double_kernel,
    name="double",
    workloads=[Workload.of(n=1000), Workload.of(n=4096)],
    dims=["n"],
    inputs=lambda w: {"x": vector(w)},
    outputs=lambda w: {"y": vector(w)},
    arguments=arguments,
    grid=lambda meta: (PAD * triton.cdiv(meta["n"], meta["BLOCK"]),),
    reference=lambda w, t: 2.0 * (t["x"] + 0.25),
    tolerance=lambda w: checking.TOLERANCE,
    cost=lambda w: Cost(1.0, 8.0 * w.size("n")),
    small={"n": 389},
)
