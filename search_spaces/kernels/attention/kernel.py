"""Attention, softmax(q @ k.T / sqrt(head_dim)) @ v, forward, fused in Triton as FlashAttention is.

Bound by arithmetic for long sequences: two products of sequence x sequence x head_dim per head,
half of that where queries only see earlier keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e as euler
from math import log2, sqrt

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.attention.space import attention_space, default_point, in_gluon
from search_spaces.kernels.attention.triton_kernels import attention_kernel
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.kernels.masked_attention import Mask, exact_attention
from search_spaces.kernels.torch_attention import attention_baselines
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 128)
#: Relative error in bfloat16, where the rounding of the weights adds to that of the output.
_BFLOAT16_ROUNDING = 6e-3
_NAMES = ("q", "k", "v")


class Attention(Kernel):
    """Self-attention of q, k and v[batch, heads, sequence, head_dim], without dropout.

    Dims batch, heads, sequence, head_dim (64 or 128), causal (whether query i sees keys 0 to i
    only) and dtype (float16 or bfloat16).
    """

    name = "attention"
    edges = SPECIAL_EDGES
    dims = Dims(
        batch=2**15, heads=2**15, sequence=2**20, head_dim=max(HEAD_DIMS), causal=bool, dtype=DTYPES
    )
    small = {"batch": 1, "heads": 3, "sequence": 203}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4, 16, 4096, 128, True, "bfloat16"),
            (4, 16, 4096, 128, False, "bfloat16"),
            (4, 32, 2048, 64, True, "bfloat16"),
            (1, 16, 16384, 64, False, "float16"),
            (32, 16, 512, 64, False, "bfloat16"),
            (8, 12, 1000, 64, True, "float16"),
            (2, 32, 8192, 128, True, "bfloat16"),
        )

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        super().check_workload(workload)
        if workload["head_dim"] not in HEAD_DIMS:
            raise WorkloadError(
                f"{where}: head_dim is {workload['head_dim']}, not one of 64 and 128",
                "pad heads to 64 or 128, or use another kernel",
            )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scores of a standard deviation of 2: some keys matter more, and the largest so far moves.
        scales = {"q": 2.0, "k": 1.0, "v": 1.0}
        return {name: workload.spec(*_shape(workload), scale=scales[name]) for name in _NAMES}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*_shape(workload))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, a head and some queries at a time."""
        import torch

        mask = Mask(bool(workload["causal"]))
        each = zip(*(inputs[name] for name in _NAMES), strict=True)
        return {"out": torch.stack([exact_attention(*one, mask=mask)[0] for one in each])}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the weights to the dtype, and then the output."""
        dtype = workload.text("dtype")
        relative = _BFLOAT16_ROUNDING if dtype == "bfloat16" else ROUNDING[dtype]
        return Tolerance(relative, 2 * relative)

    def flops(self, workload: Workload) -> float:
        batch, heads, size, dim = _shape(workload)
        pairs = size * (size + 1) / 2 if workload["causal"] else size * size
        return 4.0 * batch * heads * pairs * dim

    def space(self, workload: Workload) -> SearchSpace:
        return attention_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if in_gluon(config):
            from search_spaces.kernels.attention.gluon_launch import gluon_launch

            return [gluon_launch(workload, config, tensors)]
        batch, heads, size, dim = _shape(workload)
        block_m, block_n = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
        flat = [tensors[name].view(batch * heads, size, dim) for name in _NAMES]
        described = config["loads"] == "descriptor"
        if described:
            blocks = (block_m, block_n, block_n)
            flat = [
                TensorDescriptor.from_tensor(tensor, [1, block, dim])
                for tensor, block in zip(flat, blocks, strict=True)
            ]
        constants = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "HEAD_DIM": dim,
            "CAUSAL": bool(workload["causal"]),
            "SPLIT": bool(config.get("split", False)),
            "HEAD_MAJOR": config["order"] == "head",
            "EVEN_M": size % block_m == 0,
            "EVEN_N": size % block_n == 0,
            "DESCRIBED": described,
            "INTERPRETED": bool(triton.knobs.runtime.interpret),
            "num_warps": config["num_warps"],
            "num_stages": config["num_stages"],
        }
        grid = (ceil_div(size, block_m) * batch * heads,)
        arguments = (*flat, tensors["out"], batch * heads, size, log2(euler) / sqrt(dim))
        return [Launch(attention_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        size = workload.size("sequence")
        found = attention_baselines(Mask(bool(workload["causal"])), size, size)
        # Compiling flex_attention takes seconds, and the result is slower than flash.
        return {name: found[name] for name in ("eager", "compile", "vendor", "flash")}


def _shape(workload: Workload) -> tuple[int, int, int, int]:
    batch, heads, size, dim = workload.sizes("batch", "heads", "sequence", "head_dim")
    return batch, heads, size, dim
