"""The products of mixture-of-experts layers in Triton, as vLLM's fused_moe kernel poses them.

The order of the slots depends on BLOCK_SIZE_M. It is an input for every BLOCK_SIZE_M, and the
baselines get theirs as an input too: a layer makes it once, in a kernel of its own, for both of its
products. Bound by the traffic of the matrices for few tokens and by arithmetic for many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.kernels.moe_matmul.baselines import by_expert, gathered, grouped, require_grouped
from search_spaces.kernels.moe_matmul.quantized import (
    operand_bytes,
    operand_specs,
    random_operands,
    scaled_by_expert,
)
from search_spaces.kernels.moe_matmul.routing import (
    active_experts,
    block_order,
    most_blocks,
    routed,
    slot_count,
    slots_by_expert,
)
from search_spaces.kernels.moe_matmul.space import (
    BLOCKS,
    GEMMS,
    QUANTIZED,
    default_point,
    moe_space,
    quantization,
    slot_product,
)
from search_spaces.kernels.moe_matmul.triton_kernels import moe_matmul_kernel
from search_spaces.kernels.moe_matmul.triton_scaled import scaled_moe_matmul_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, empty_tensors, generator, named, random_tensor

DTYPES = ("float16", "bfloat16")
#: Rounding to float8 is ten times as large as what sums in tensor cores lose (fp8_matmul).
_FP8_TOLERANCE = 1e-2
_SMALL_SCALED = {"hidden": 200, "intermediate": 136}
_SMALL = {"tokens": 5, "experts": 13, "hidden": 71, "intermediate": 21}
_TABLE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
_INDEX_BYTES, _WEIGHT_BYTES = 4, 4


class MoeMatmul(Kernel):
    """One product of a mixture-of-experts layer; dims tokens, experts, top_k, hidden, intermediate,
    gemm and dtype.

    gemm: `gate_up` is the first product, of x[tokens, hidden] and w[experts, 2 intermediate,
    hidden]; `gate_up_silu` ends with silu(gate) * value, which vLLM leaves to another kernel;
    `down` is the second one, of x[tokens * top_k, intermediate] and w[experts, hidden,
    intermediate], and multiplies its rows by the weights of the router. out is [tokens, top_k,
    columns]. The parameters are those of vLLM's tables, whose E, N and M are experts, intermediate
    and tokens here.

    Optionally, quantized is `fp8_block128`, `fp8_tensor` or `int8_channel`: see `quantized.py`.
    dtype is then that of the output, and with int8 of x. There is no quantized `gate_up_silu`.

    The slots in order of their experts, padded to BLOCK_SIZE_M, are inputs, as in vLLM: making
    them is not part of the time, of variants or of baselines.
    """

    name = "moe_matmul"
    edges = SPECIAL_EDGES
    dims = Dims(
        tokens=2**17,
        experts=1024,
        top_k=64,
        hidden=2**15,
        intermediate=2**14,
        gemm=GEMMS,
        dtype=DTYPES,
        quantized=(None, *QUANTIZED),
    )
    joint_dims = ("gemm",)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 256, 8, 7168, 256, "gate_up", "bfloat16"),
            (64, 256, 8, 7168, 256, "down", "bfloat16"),  # DeepSeek-V3 on 8 GPUs
            (1, 256, 8, 7168, 256, "gate_up", "bfloat16"),
            (4096, 256, 8, 7168, 256, "down", "bfloat16"),
            (16, 128, 8, 2048, 768, "down", "bfloat16"),  # Qwen3 30B-A3B
            (256, 128, 8, 2048, 768, "gate_up_silu", "bfloat16"),
            (4096, 128, 8, 2048, 768, "gate_up", "bfloat16"),
            (4096, 128, 8, 2048, 768, "down", "bfloat16"),
            (512, 128, 8, 4096, 384, "gate_up", "bfloat16"),  # Qwen3 235B-A22B on 4 GPUs
            (32, 128, 4, 2880, 2880, "gate_up", "bfloat16"),  # GPT-OSS 120B
            (1024, 128, 4, 2880, 2880, "down", "bfloat16"),
            (1, 8, 2, 4096, 7168, "down", "bfloat16"),  # Mixtral 8x7B on 2 GPUs
            (4096, 8, 2, 4096, 7168, "gate_up", "bfloat16"),
            (333, 61, 3, 1111, 517, "gate_up_silu", "float16"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        if quantization(workload) and workload.text("gemm") not in ("gate_up", "down"):
            raise WorkloadError(
                f"{self.name} [{workload.key}]: {workload['gemm']} has no quantized operands",
                "use gemm=gate_up or gemm=down",
            )
        if workload.size("top_k") > workload.size("experts"):
            raise WorkloadError(
                f"{self.name} [{workload.key}]: top_k is {workload['top_k']}, more than the "
                f"{workload['experts']} experts",
                f"give top_k of at most {workload['experts']}",
            )

    def small_workload(self, workload: Workload) -> Workload:
        sizes = {**_SMALL, **(_SMALL_SCALED if quantization(workload) else {})}
        return workload.with_dims(**sizes, top_k=min(3, workload.size("top_k")))

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        specs, source = _specs(workload), generator(seed, device)
        if device == "meta":
            return empty_tensors(specs, device)
        depth = slot_product(workload).depth
        ids = routed(workload, source, device)
        if quantization(workload):
            operands = random_operands(workload, source, device)
        else:
            operands = {
                "x": random_tensor(specs["x"], source, device),
                # Scaled so that sums are of the order of one, whatever their length.
                "w": random_tensor(specs["w"], source, device, scale=1 / sqrt(depth)),
            }
        inputs = {**operands, "ids": ids}
        if _is_weighted(workload):
            drawn = random_tensor(specs["weights"], source, device)
            inputs["weights"] = drawn.softmax(dim=1).contiguous()
        return {**inputs, **self.derive_inputs(workload, inputs)}

    def derive_inputs(self, workload: Workload, inputs: Tensors) -> Tensors:
        experts = workload.size("experts")
        ordered, ends = slots_by_expert(inputs["ids"], experts)
        found = {"sorted_slots": ordered, "ends": ends}
        for block in BLOCKS:
            blocks = most_blocks(len(ordered), experts, block)
            order, of_block = block_order(ordered, ends, block, blocks)
            found |= {f"order_{block}": order, f"experts_{block}": of_block}
        return found

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("tokens", "top_k", slot_product(workload).cols)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        loop = scaled_by_expert if quantization(workload) else by_expert
        looped = loop(workload, torch.float64)
        return {"out": looped(*(inputs[name] for name in _looped_names(workload)))}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        if quantization(workload).startswith("fp8"):
            relative = max(relative, _FP8_TOLERANCE)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def cost(self, workload: Workload) -> Cost:
        """Reading x and the matrices of active experts once, writing out once."""
        cols, depth, factors, share = slot_product(workload)
        slots = slot_count(workload)
        matrices = active_experts(workload) * factors * cols * depth
        elements = slots // share * depth + matrices + slots * cols
        index = slots * (_INDEX_BYTES + _WEIGHT_BYTES * _is_weighted(workload))
        each = ELEMENT_BYTES[workload.text("dtype")]
        if quantization(workload):
            moved = operand_bytes(workload, active_experts(workload)) + slots * cols * each
            return Cost(flops=2.0 * slots * cols * depth, bytes=moved + index)
        return Cost(
            flops=2.0 * slots * factors * cols * depth, bytes=float(elements * each + index)
        )

    def space(self, workload: Workload) -> SearchSpace:
        return moe_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        cols, depth, factors, share = slot_product(workload)
        block = integer(config, "BLOCK_SIZE_M")
        experts = tensors[f"experts_{block}"]
        blocks = experts.shape[0]
        constants = {
            **{name: config[name] for name in _TABLE},
            "SHARE": share,
            "EVEN_N": cols % integer(config, "BLOCK_SIZE_N") == 0,
            "EVEN_K": depth % integer(config, "BLOCK_SIZE_K") == 0,
            "ALIGN_N": alignment(cols),
            "ALIGN_K": alignment(depth),
            "WEIGHTED": _is_weighted(workload),
            "SILU": factors == 2,
        }
        arguments = (
            tensors["x"],
            tensors["w"],
            tensors.get("weights"),
            tensors["out"],
            tensors[f"order_{block}"],
            experts,
            blocks,
            cols,
            depth,
            slot_count(workload),
        )
        grid = (blocks * ceil_div(cols, integer(config, "BLOCK_SIZE_N")),)
        if kind := quantization(workload):
            del constants["SILU"]
            scales = (tensors.get("x_scale"), tensors["w_scale"])
            scaled = (*arguments[:2], *scales, *arguments[2:])
            return [Launch(scaled_moe_matmul_kernel, grid, scaled, {**constants, "SCALES": kind})]
        return [Launch(moe_matmul_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """`compile` has grouped products where torch has them, else gathered matrices."""
        looped, sorted_names = _looped_names(workload), _sorted_names(workload)
        if quantization(workload):
            return {"eager": named("out", scaled_by_expert(workload), *looped)}
        vendor = require_grouped(grouped(workload))
        if workload["dtype"] == "bfloat16":
            whole = named("out", compiled(grouped(workload)), *sorted_names)
        else:
            whole = named("out", compiled(gathered(workload)), *looped)
        return {
            "eager": named("out", by_expert(workload), *looped),
            "compile": whole,
            "grouped_mm": named("out", vendor, *sorted_names),
        }


def _is_weighted(workload: Workload) -> bool:
    return workload.text("gemm") == "down"


def _specs(workload: Workload) -> dict[str, TensorSpec]:
    """All inputs."""
    cols, depth, factors, share = slot_product(workload)
    tokens, experts, top_k = workload.sizes("tokens", "experts", "top_k")
    slots = slot_count(workload)
    operands = {
        "x": workload.spec(slots // share, depth),
        "w": workload.spec(experts, factors * cols, depth),
    }
    specs = {
        **(operand_specs(workload) if quantization(workload) else operands),
        "ids": workload.spec(tokens, top_k, dtype="int32"),
        "sorted_slots": workload.spec(slots, dtype="int32"),
        "ends": workload.spec(experts, dtype="int32"),
    }
    if _is_weighted(workload):
        specs["weights"] = workload.spec(tokens, top_k, dtype="float32")
    for block in BLOCKS:
        blocks = most_blocks(slots, experts, block)
        specs[f"order_{block}"] = workload.spec(blocks * block, dtype="int32")
        specs[f"experts_{block}"] = workload.spec(blocks, dtype="int32")
    return specs


def _looped_names(workload: Workload) -> tuple[str, ...]:
    names = ("x", "w", "ids", *_scale_names(workload))
    return (*names, "weights") if _is_weighted(workload) else names


def _scale_names(workload: Workload) -> tuple[str, ...]:
    if not quantization(workload):
        return ()
    return ("w_scale", "x_scale") if "x_scale" in operand_specs(workload) else ("w_scale",)


def _sorted_names(workload: Workload) -> tuple[str, ...]:
    names = ("x", "w", "sorted_slots", "ends")
    return (*names, "weights") if _is_weighted(workload) else names
