"""Kernels without a table that operators launch beside those of tables, as the farm builds them."""

from __future__ import annotations

from search_spaces.kernel import Launch
from search_spaces.kernels.rotary.kernel import Rotary
from search_spaces.kernels.rotary.triton_strided import strided_rotary_kernel
from search_spaces.records import Config, Workload
from search_spaces.tensors import Tensors

#: Elements that divide the distances between heads and between tokens in models.
_ALIGN = 16


class StridedRotary(Rotary):
    """What runs for heads that are not contiguous, both ways (`tuner/ops/strided_rotary.py`)."""

    name = "strided_rotary"

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        q_heads, k_heads, dim = workload.sizes("q_heads", "k_heads", "head_dim")
        names = ("q", "k", "cos", "sin", "q_out", "k_out")
        given = (*(tensors[name] for name in names), workload.size("tokens"), *[_ALIGN] * 6)
        constants = {
            "Q_HEADS": q_heads, "K_HEADS": k_heads, "HALF": dim // 2, "BLOCK_T": 8,
            "ALIGN": _ALIGN, "INTERLEAVED": workload["interleaved"], "num_warps": 2,
        }  # fmt: skip
        fn = strided_rotary_kernel
        return [Launch(fn, (1,), given, {**constants, "BACK": b}) for b in (False, True)]
