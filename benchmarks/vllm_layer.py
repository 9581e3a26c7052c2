"""vLLM's own fused_moe kernel on both products of a layer, as a kernel that can be tuned.

One row of vLLM's table configures both products, so a variant is the two launches. They get the
arguments that `invoke_fused_moe_triton_kernel` of vLLM 0.33.0 passes for 16-bit weights, with the
experts of few tokens assigned as `_prepare_expert_assignment` does. Inputs and routing are those of
`moe_matmul`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from library_code import found_on_path, functions_of

from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.moe_matmul import kernel as moe
from search_spaces.kernels.moe_matmul.space import BLOCKS
from search_spaces.params import Choice
from search_spaces.records import Config, Device, Workload
from search_spaces.space import Constraint, SearchSpace

FILE = "vllm/model_executor/layers/fused_moe/fused_moe.py"
PATH = found_on_path(FILE)
_HEAD = '"""Kernels of vLLM."""\nimport triton\nimport triton.language as tl\n'
CODE = functions_of(PATH, ("write_zeros_to_output", "fused_moe_kernel"), _HEAD)
GEMMS = ("gate_up", "down")
DTYPES = {"bfloat16": tl.bfloat16, "float16": tl.float16}
#: vLLM's margin below which each slot is a block of its own.
_SPARSITY = 4
_SHARED_BYTES = 227 << 10


class VllmLayer(Kernel):
    """Both products of a mixture-of-experts layer; dims of `moe_matmul` without gemm."""

    name = "vllm_fused_moe"

    def workloads(self) -> Sequence[Workload]:
        return [layer(tokens, 128, 8, 2048, 768) for tokens in (1, 64, 1024)]

    def check_workload(self, workload: Workload) -> None:
        for each in products(workload).values():
            moe.MoeMatmul().check_workload(each)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(tokens=5, experts=13, hidden=71, intermediate=21, top_k=3)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Any:
        import torch

        found = {}
        for gemm, each in products(workload).items():
            made = moe.MoeMatmul().make_inputs(each, seed, device)
            found |= {f"{gemm}_{name}": tensor for name, tensor in made.items()}
        for block in BLOCKS:
            for name in ("order", "experts"):  # both products have one routing
                del found[f"down_{name}_{block}"]
            used = (found[f"gate_up_experts_{block}"] >= 0).sum() * block
            if is_naive(workload):
                used = torch.tensor(slots(workload) * block)
            if device == "meta":
                used = torch.zeros((), device=device)
            found[f"used_{block}"] = used.to(torch.int32).reshape(1).to(device)
        for name in ("ids", "sorted_slots", "ends"):
            found[f"down_{name}"] = found[f"gate_up_{name}"]
        return found

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        kernel = moe.MoeMatmul()
        return {gemm: kernel.outputs(each)["out"] for gemm, each in products(workload).items()}

    def reference(self, workload: Workload, inputs: Any) -> Any:
        found = {}
        for gemm, each in products(workload).items():
            own = {
                name.removeprefix(f"{gemm}_"): tensor
                for name, tensor in inputs.items()
                if name.startswith(f"{gemm}_")
            }
            found[gemm] = moe.MoeMatmul().reference(each, own)["out"]
        return found

    def tolerance(self, workload: Workload) -> Tolerance:
        return moe.MoeMatmul().tolerance(products(workload)["down"])

    def cost(self, workload: Workload) -> Cost:
        costs = [moe.MoeMatmul().cost(each) for each in products(workload).values()]
        return Cost(sum(c.flops for c in costs), sum(c.bytes for c in costs))

    def space(self, workload: Workload) -> SearchSpace:
        return SearchSpace(
            [
                Choice("BLOCK_SIZE_M", BLOCKS[:4]),
                Choice("BLOCK_SIZE_N", (32, 64, 128, 256)),
                Choice("BLOCK_SIZE_K", (32, 64, 128, 256)),
                Choice("GROUP_SIZE_M", (1, 4, 8, 16, 32, 64)),
                Choice("num_warps", (2, 4, 8)),
                Choice("num_stages", (2, 3, 4, 5, 6)),
            ],
            [Constraint("shared", fits, "tiles x stages do not fit into shared memory")],
            kernel=self.name,
        )

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The row of the table that vLLM ships for an H200, else vLLM's default."""
        row = shipped_row(workload.size("experts"), workload.size("intermediate"),
                          workload.size("tokens"))  # fmt: skip
        own = row or default_row(workload)
        return {p.name: own[p.name] for p in self.space(workload).bind(workload, device).parameters}

    def launches(self, workload: Workload, config: Config, tensors: Any) -> list[Launch]:
        return [
            launch_of(workload, gemm, each, config, tensors)
            for gemm, each in products(workload).items()
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Any], Any]]:
        return {}


def launch_of(
    workload: Workload, gemm: str, product: Workload, config: Config, tensors: Any
) -> Launch:
    block = int(f"{config['BLOCK_SIZE_M']}")
    a, b, out = tensors[f"{gemm}_x"], tensors[f"{gemm}_w"], tensors[gemm]
    top_k = workload.size("top_k") if gemm == "gate_up" else 1
    naive, rows, count = is_naive(workload), a.shape[0], slots(workload)
    padded = count * block
    if not naive:
        padded = min(count + workload.size("experts") * (block - 1), padded)
        if rows < block:
            padded = min(padded, rows * top_k * block)
    assigned = tensors["gate_up_ids"].view(-1) if naive else tensors[f"gate_up_experts_{block}"]
    columns = b.shape[1]
    arguments = (
        *(a, b, out, None, None, None, tensors.get(f"{gemm}_weights")),
        *(None if naive else tensors[f"gate_up_order_{block}"], assigned, tensors[f"used_{block}"]),
        *(columns, b.shape[2], padded, count, *a.stride()),
        *(b.stride(0), b.stride(2), b.stride(1), out.stride(1), out.stride(2)),
        *(0, 0, 0, 0, 0, 0, 0, 0, 0, naive),
    )
    constants = {
        **{name: config[name] for name in config},
        "SPLIT_K": 1,
        "MUL_ROUTED_WEIGHT": gemm == "down",
        "top_k": top_k,
        "compute_type": DTYPES[workload.text("dtype")],
        **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16"), False),
        **dict.fromkeys(("per_channel_quant", "HAS_BIAS", "SWAP_AB", "USE_TD"), False),
    }
    grid = (triton.cdiv(padded, block) * triton.cdiv(columns, int(f"{config['BLOCK_SIZE_N']}")),)
    return Launch(CODE.fused_moe_kernel, grid, arguments, constants)


def layer(
    tokens: int, experts: int, top_k: int, hidden: int, inner: int, dtype: str = "bfloat16"
) -> Workload:
    return Workload.of(
        tokens=tokens, experts=experts, top_k=top_k, hidden=hidden, intermediate=inner, dtype=dtype
    )


def products(workload: Workload) -> dict[str, Workload]:
    """Workloads of `moe_matmul`, one per product."""
    return {gemm: Workload.of(**workload.as_dict(), gemm=gemm) for gemm in GEMMS}


def slots(workload: Workload) -> int:
    return workload.size("tokens") * workload.size("top_k")


def is_naive(workload: Workload) -> bool:
    return slots(workload) * _SPARSITY <= workload.size("experts")


def fits(config: Config, workload: Workload, device: Device) -> bool:
    sides = int(f"{config['BLOCK_SIZE_M']}") + int(f"{config['BLOCK_SIZE_N']}")
    step, stages = int(f"{config['BLOCK_SIZE_K']}"), int(f"{config['num_stages']}")
    return sides * step * 2 * (stages - 1) <= _SHARED_BYTES


def shipped_row(experts: int, inner: int, tokens: int) -> Config | None:
    """The row that vLLM takes from the table of its package for an H200."""
    name = f"E={experts},N={inner},device_name=NVIDIA_H200.json"
    file = PATH.parent / "configs" / name
    if not file.is_file():
        return None
    rows = {int(key): row for key, row in json.loads(file.read_text()).items() if key.isdigit()}
    found: Config = rows[min(rows, key=lambda size: abs(size - tokens))]
    return found


def default_row(workload: Workload) -> Config:
    """What vLLM launches without a table, by its own function."""
    from vllm_lookup import LOOKUP

    found: Config = LOOKUP.get_default_config(
        workload.size("tokens"), workload.size("experts"), workload.size("intermediate"),
        workload.size("hidden"), workload.size("top_k"), None,
    )  # fmt: skip
    return found


kernel = VllmLayer()
