"""The kernel library as functions of tensors, with the signatures of torch where it has one.

    from tuner import ops

    y = ops.rms_norm(x, weight, 1e-6)
    print(ops.report())

Each call runs the implementation that was measured fastest for its shapes on this device: a
kernel with a config from a table, or a vendor's library; and torch where nothing is known. Results,
gradients and errors are those of torch within the tolerance of the dtype.
"""

from __future__ import annotations

import os

from tuner.ops.attention import attention, paged_attention, rotary, varlen_attention
from tuner.ops.call_counts import record_misses
from tuner.ops.choosing import prefer_tuned
from tuner.ops.compiling import warm
from tuner.ops.cross_entropies import cross_entropy, fused_linear_cross_entropy
from tuner.ops.elements import activation, group_norm, nearest_center, swiglu
from tuner.ops.experts import moe
from tuner.ops.patching import patch, unpatch
from tuner.ops.products import conv2d, fp8_linear, linear, matmul, quantize
from tuner.ops.replacing import numerics, replaced
from tuner.ops.rows import add_rms_norm, layer_norm, log_softmax, rms_norm, softmax
from tuner.ops.tokens import embedding, topk_routing
from tuner.ops.usage import report

__all__ = [
    "activation",
    "add_rms_norm",
    "attention",
    "conv2d",
    "cross_entropy",
    "embedding",
    "fp8_linear",
    "fused_linear_cross_entropy",
    "group_norm",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "moe",
    "nearest_center",
    "numerics",
    "paged_attention",
    "patch",
    "prefer_tuned",
    "quantize",
    "replaced",
    "report",
    "rms_norm",
    "rotary",
    "softmax",
    "swiglu",
    "topk_routing",
    "unpatch",
    "varlen_attention",
    "warm",
]


def __dir__() -> list[str]:
    return __all__


record_misses(os.environ)
