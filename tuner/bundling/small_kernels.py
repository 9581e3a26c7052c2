"""Kernels that operators launch and that have no table of their own, as declarations."""

from __future__ import annotations

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernel import Launch
from search_spaces.kernels.limits import integer
from search_spaces.kernels.moe_matmul.kernel import MoeMatmul
from search_spaces.kernels.moe_matmul.routing import slot_count
from search_spaces.kernels.moe_matmul.triton_order import order_slots_kernel
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


class OrderedSlots(MoeMatmul):
    """What makes blocks of one expert before a product of experts (`tuner/ops/experts.py`)."""

    name = "ordered_slots"

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        block, experts = integer(config, "BLOCK_SIZE_M"), workload.size("experts")
        slots = tensors[f"order_{block}"]  # of the type of all of them
        given = (slots, slots, slots, slots, slot_count(workload), experts)
        constants = {"BLOCK_SIZE_M": block, "EXPERTS": next_power_of_two(experts)}
        return [Launch(order_slots_kernel, (1,), given, constants)]
