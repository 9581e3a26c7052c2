"""Implementations of other packages as baselines of tuner's kernels.

tuner measures and verifies them beside a kernel's own baselines (entry point group
`tuner.baselines`), and an operator of `tuner.ops` may run one where it is the fastest.

`liger`: norms and softmax of Liger-Kernel 0.8.5 (BSD-2-Clause).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from tuner import Workload

Tensors = Mapping[str, Any]
Baseline = Callable[[Tensors], Tensors]

#: What tuner's norms add to the variance where a workload does not say it.
_EPS = 1e-5


def liger(kernel: str, workload: Workload) -> Baseline | None:
    """Liger's kernel for the problem; None where it has none or is not installed."""
    if find_spec("liger_kernel") is None:
        return None
    eps = workload.get("eps", _EPS)

    def softmax(t: Tensors) -> Tensors:
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        return {"out": LigerSoftmaxFunction.apply(t["x"])}

    def rms_norm(t: Tensors) -> Tensors:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        return {"out": LigerRMSNormFunction.apply(t["x"], t["weight"], eps, 0.0, "llama", False)}

    def layer_norm(t: Tensors) -> Tensors:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return {"out": LigerLayerNormFunction.apply(t["x"], t["weight"], t["bias"], eps)}

    def add_norm(t: Tensors) -> Tensors:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        out, total = LigerFusedAddRMSNormFunction.apply(
            t["x"], t["residual"], t["weight"], eps, 0.0, "llama", False
        )
        return {"residual_out": total, "out": out}

    if kernel == "add_norm" and (workload["kind"], workload["to"]) != ("rms_norm", "same"):
        return None
    known = {
        "softmax": softmax,
        "rms_norm": rms_norm,
        "layer_norm": layer_norm,
        "add_norm": add_norm,
    }
    return known.get(kernel)
