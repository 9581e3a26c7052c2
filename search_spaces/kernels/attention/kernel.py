"""Attention, softmax(q @ k.T / sqrt(head_dim)) @ v, forward, fused in Triton as FlashAttention is.

Bound by arithmetic for long sequences: two products of sequence x sequence x head_dim per head,
half of that where queries only see earlier keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e as euler
from math import log2, sqrt
from typing import TYPE_CHECKING

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.declaration.dimensions import check_dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.attention.space import attention_space, default_point, in_gluon
from search_spaces.kernels.attention.triton_kernels import attention_kernel
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import integer
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 128)
#: Relative error in bfloat16, where the rounding of the weights adds to that of the output.
_BFLOAT16_ROUNDING = 6e-3
#: Scores the reference holds at a time, in float64.
_SCORES = 2**24
_NAMES = ("q", "k", "v")


class Attention(Kernel):
    """Self-attention of q, k and v[batch, heads, sequence, head_dim], without dropout.

    Dims batch, heads, sequence, head_dim (64 or 128), causal (whether query i sees keys 0 to i
    only) and dtype (float16 or bfloat16).
    """

    name = "attention"

    def workloads(self) -> Sequence[Workload]:
        shapes: list[tuple[Value, ...]] = [
            (4, 16, 4096, 128, True, "bfloat16"),
            (4, 16, 4096, 128, False, "bfloat16"),
            (4, 32, 2048, 64, True, "bfloat16"),
            (1, 16, 16384, 64, False, "float16"),
            (32, 16, 512, 64, False, "bfloat16"),
            (8, 12, 1000, 64, True, "float16"),
            (2, 32, 8192, 128, True, "bfloat16"),
        ]
        names = ("batch", "heads", "sequence", "head_dim", "causal", "dtype")
        return [Workload.of(**dict(zip(names, shape, strict=True))) for shape in shapes]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"batch": 2**15, "heads": 2**15, "sequence": 2**20, "head_dim": max(HEAD_DIMS)}
        where = f"{self.name} [{workload.key}]"
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, flags=("causal",))
        if workload["head_dim"] not in HEAD_DIMS:
            raise WorkloadError(
                f"{where}: head_dim is {workload['head_dim']}, not one of 64 and 128",
                "pad heads to 64 or 128, or use another kernel",
            )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(batch=1, heads=3, sequence=203)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec, source = TensorSpec(_shape(workload), workload.text("dtype")), generator(seed, device)
        # Scores of a standard deviation of 2: some keys matter more, and the largest so far moves.
        scales = {"q": 2.0, "k": 1.0, "v": 1.0}
        return {name: random_tensor(spec, source, device, scales[name]) for name in _NAMES}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": TensorSpec(_shape(workload), workload.text("dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, a head and some queries at a time: at most 2**24 scores are held."""
        import torch

        size, dim = workload.size("sequence"), workload.size("head_dim")
        q, k, v = (inputs[name].reshape(-1, size, dim) for name in _NAMES)
        out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        rows = max(_SCORES // size, 1)
        for head in range(q.shape[0]):
            keys, values = k[head].double(), v[head].double()
            for first in range(0, size, rows):
                some = q[head, first : first + rows].double()
                scores = (some @ keys.T).mul_(1 / sqrt(dim))
                if workload["causal"]:
                    later = torch.ones_like(scores, dtype=torch.bool).triu_(first + 1)
                    scores.masked_fill_(later, float("-inf"))
                out[head, first : first + rows] = torch.softmax(scores, -1) @ values
        return {"out": out.reshape(_shape(workload))}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the weights to the dtype, and then the output."""
        dtype = workload.text("dtype")
        relative = _BFLOAT16_ROUNDING if dtype == "bfloat16" else ROUNDING[dtype]
        return Tolerance(relative, 2 * relative)

    def cost(self, workload: Workload) -> Cost:
        batch, heads, size, dim = _shape(workload)
        pairs = size * (size + 1) / 2 if workload["causal"] else size * size
        tensors = 4.0 * batch * heads * size * dim
        moved = tensors * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=4.0 * batch * heads * pairs * dim, bytes=moved)

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
        causal = bool(workload["causal"])

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return {
            "eager": named("out", _Sdpa("MATH", causal), *_NAMES),
            "compile": named("out", compiled(attention), *_NAMES),
            "vendor": named("out", _Sdpa("CUDNN_ATTENTION", causal), *_NAMES),
            "flash": named("out", _Sdpa("FLASH_ATTENTION", causal), *_NAMES),
        }


class _Sdpa:
    """torch's scaled_dot_product_attention by one of its backends, or a `RuntimeError`."""

    def __init__(self, backend: str, causal: bool) -> None:
        self._backend = backend
        self._causal = causal

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if self._backend != "MATH" and q.device.type != "cuda":
            raise RuntimeError(f"{self._backend} needs CUDA tensors, got one on {q.device.type}")
        with sdpa_kernel(getattr(SDPBackend, self._backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self._causal)


def _shape(workload: Workload) -> tuple[int, int, int, int]:
    batch, heads, size, dim = (
        workload.size(name) for name in ("batch", "heads", "sequence", "head_dim")
    )
    return batch, heads, size, dim
