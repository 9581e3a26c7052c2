"""The router of a mixture-of-experts layer: softmax of its logits and the largest few.

Memory-bound: the least traffic is one read of the logits. For few tokens the latency of a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.dims import Dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
    programs_at_once,
)
from search_spaces.kernels.topk_routing.triton_kernels import topk_routing_kernel
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

#: Logits that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 1
_MOST_EXPERTS, _MOST_CHOICES = 1024, 64
_MOST_STEPS = 8
#: Exponential, sum and a comparison of one logit.
_FLOPS = 4.0
#: Bits of a 16-bit number but its sign.
_MAGNITUDE = 0x7FFF


class TopkRouting(Kernel):
    """weights[tokens, top_k] and ids[tokens, top_k] of logits[tokens, experts]; dims tokens,
    experts, top_k, renormalize and dtype.

    The weights are the largest of the softmax of each row, in order, in float32; with renormalize
    they are divided by their sum. ids are their experts, in int32, of equal logits the first. The
    inputs have no equal logits in a row, because torch leaves the order of these open.
    """

    name = "topk_routing"
    edges = (
        "half -inf",
        "half lowest",
    )
    dims = Dims(
        tokens=2**24, experts=_MOST_EXPERTS, top_k=_MOST_CHOICES, renormalize=bool, dtype=DTYPES
    )
    elementwise = 1
    output = ("weights", "ids")

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 128, 8, True, "bfloat16"),  # Qwen3 30B-A3B and 235B-A22B
            (32, 128, 8, True, "bfloat16"),  # the same, decoding 32 requests
            (4096, 8, 2, True, "float32"),  # Mixtral 8x7B
            (4096, 128, 4, True, "bfloat16"),  # GPT-OSS 120B
            (16384, 160, 6, False, "float32"),  # DeepSeek-V2
            (65536, 64, 6, False, "float32"),  # DeepSeek-V2 Lite
            (8192, 256, 8, True, "float32"),  # sizes of DeepSeek-V3
            (4099, 384, 8, True, "float32"),  # sizes of Kimi K2
            (777, 60, 4, False, "float16"),  # Qwen1.5-MoE
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        if workload.size("top_k") > workload.size("experts"):
            raise WorkloadError(
                f"{self.name} [{workload.key}]: top_k is {workload['top_k']}, more than the "
                f"{workload['experts']} experts",
                f"give top_k of at most {workload['experts']}",
            )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(tokens=13, experts=29, top_k=min(5, workload.size("top_k")))

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        dtype, shape = workload.text("dtype"), (workload.size("tokens"), workload.size("experts"))
        if device == "meta":
            return {"logits": random_tensor(workload.spec(*shape), None, device)}
        # In float32, logits are those of float16: neighbours have weights that differ in float32.
        coarse = "bfloat16" if dtype == "bfloat16" else "float16"
        drawn = random_tensor(
            workload.spec(*shape, dtype=coarse), generator(seed, device), device, scale=2.0
        )
        distinct = _distinct(drawn)
        return {"logits": distinct.float() if dtype == "float32" else distinct}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("tokens"), workload.size("top_k"))
        return {
            "weights": workload.spec(*shape, dtype="float32"),
            "ids": workload.spec(*shape, dtype="int32"),
        }

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        weights, ids = _chosen(inputs["logits"].double(), workload)
        return {"weights": weights, "ids": ids}

    def flops(self, workload: Workload) -> float:
        tokens = workload.size("tokens")
        logits = tokens * workload.size("experts")
        return _FLOPS * logits

    def space(self, workload: Workload) -> SearchSpace:
        tokens = next_power_of_two(workload.size("tokens"))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_T", 1, min(128, tokens)),
            PowerOfTwo("num_warps", 1, 8),
            PowerOfTwo("steps", 1, _MOST_STEPS),
            Choice("method", ("argmax", "packed", "sort")),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_T",))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """Rows of 512 logits together by one warp, each maximum with its place."""
        most = max(1, 512 // next_power_of_two(workload.size("experts")))
        block = min(most, next_power_of_two(workload.size("tokens")))
        return {"BLOCK_T": block, "num_warps": 1, "steps": 1, "method": "argmax"}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        experts, top_k = workload.sizes("experts", "top_k")
        choices = next_power_of_two(top_k)
        constants = {
            "EXPERTS": experts,
            "BLOCK_E": _row(workload),
            "TOP_K": top_k,
            "BLOCK_K": choices,
            "BLOCK_T": config["BLOCK_T"],
            "RENORMALIZE": workload["renormalize"],
            "METHOD": config["method"],
            "LOOP": integer(config, "steps") > 1,
            "num_warps": config["num_warps"],
        }
        grid = (ceil_div(_blocks(config, workload), integer(config, "steps")),)
        arguments = (*(tensors[n] for n in ("logits", "weights", "ids")), workload.size("tokens"))
        return [Launch(topk_routing_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights, ids = _chosen(logits.float(), workload)
            return weights, ids.int()

        return eager


def _distinct(logits: torch.Tensor) -> torch.Tensor:
    """16-bit logits, of which those that equal another one of their row moved to the next number.

    As integers in the order of the numbers, a sorted row minus 0, 1, 2, ... must not fall.
    """
    import torch

    bits = logits.view(torch.int16).int()
    ordered = torch.where(bits < 0, bits ^ _MAGNITUDE, bits)
    row, place = ordered.sort(dim=1)
    least = torch.arange(row.shape[1], dtype=row.dtype, device=row.device)
    rising = (row - least).cummax(dim=1).values + least
    ordered = torch.empty_like(rising).scatter_(1, place, rising)
    bits = torch.where(ordered < 0, ordered ^ _MAGNITUDE, ordered)
    return bits.to(torch.int16).view(logits.dtype)


def _chosen(logits: torch.Tensor, workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts by plain torch."""
    weights, ids = logits.softmax(dim=-1).topk(workload.size("top_k"), dim=-1)
    if workload["renormalize"]:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, ids


def _row(workload: Workload) -> int:
    """Elements of a row in registers; a row has at least as many as there are choices."""
    return next_power_of_two(workload.size("experts"))


def _blocks(config: Config, workload: Workload) -> int:
    return ceil_div(workload.size("tokens"), integer(config, "BLOCK_T"))


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_T") * _row(workload)


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    steps, blocks = integer(config, "steps"), _blocks(config, workload)
    return steps == 1 or ceil_div(blocks, steps) >= programs_at_once(device)


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
    Preference("fill", _fills_device, "programs would be fewer than multiprocessors"),
)
