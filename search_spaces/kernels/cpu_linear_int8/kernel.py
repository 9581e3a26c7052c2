"""A linear layer of int8 activations and int8 weights on a CPU, scaled per row and per channel.

oneDNN multiplies int8 by VNNI or AMX where the processor has them. The scales are applied to the
int32 product, which Inductor fuses into one loop. Weights are inputs: whatever a variant does to
their layout is part of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.dims import Dims
from search_spaces.kernels.cpu_forms import ATEN, FLOATS, CpuKernel, form_space
from search_spaces.kernels.cpu_products import EXACT_K, MOST_INT8_K
from search_spaces.kernels.limits import integer
from search_spaces.params import PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

#: The standard deviation of the int8 values.
_SPREAD = 73.0
#: The most rows for which the product is also offered as a plain sum.
_FEW_ROWS = 4


class CpuLinearInt8(CpuKernel):
    """(x[M, K] @ w[N, K].T) * x_scale[M] * w_scale[N] of int8 on a CPU; dims M, N, K and dtype.

    dtype: of the output. The scales are float32. The form is `library` (oneDNN's int8 product and a
    compiled loop for the scales), `aten` (the same without Inductor), `float32` (exact float32
    products of `block` of K), `bfloat16` (a product of bfloat16, for that output) or, for few rows,
    `summed` (a plain loop).
    """

    name = "cpu_linear_int8"
    dims = Dims(M=int, N=int, K=MOST_INT8_K, dtype=FLOATS)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (256, 1024, 1024, "bfloat16"),  # Qwen3 0.6B: a projection of 256 tokens
            (1, 4096, 4096, "bfloat16"),  # Llama-3 8B: decoding one request
            (16, 1024, 4096, "bfloat16"),  # Llama-3 8B: keys, decoding 16 requests
            (128, 3072, 768, "float32"),  # BERT-base: the feed-forward layer
            (2048, 512, 256, "float32"),  # DLRM: the bottom network
            (4, 1280, 1280, "float32"),  # Whisper large-v3: decoding 4 beams
            (333, 501, 259, "float32"),
            (333, 501, 259, "bfloat16"),
        )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(M=37 if workload.size("M") > _FEW_ROWS else 3, N=71, K=131)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        m, n, k = workload.sizes("M", "N", "K")
        source, limits = generator(seed, device), (-127, 128)
        made = {
            "x": random_tensor(workload.spec(m, k, dtype="int8"), source, device, limits=limits),
            "w": random_tensor(workload.spec(n, k, dtype="int8"), source, device, limits=limits),
            "x_scale": random_tensor(workload.spec(m, dtype="float32"), source, device, scale=0.25),
            "w_scale": random_tensor(workload.spec(n, dtype="float32"), source, device, scale=0.25),
        }
        if device != "meta":
            # Scaled so that outputs are of the order of one, whatever K.
            made["x_scale"].add_(1.0).mul_(1 / _SPREAD)
            made["w_scale"].add_(1.0).mul_(1 / (_SPREAD * sqrt(k)))
        return made

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        product = inputs["x"].double() @ inputs["w"].double().t()
        scales = inputs["x_scale"].double()[:, None] * inputs["w_scale"].double()
        return {"out": product * scales}

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        forms = ["library", ATEN, "float32"]
        if workload["dtype"] == "bfloat16":
            forms.append("bfloat16")
        if workload.size("M") <= _FEW_ROWS:
            forms.append("summed")
        most = min(EXACT_K, 1 << (workload.size("K") - 1).bit_length())
        block = PowerOfTwo("block", min(128, most), most, when={"form": ("float32",)})
        return form_space(self.name, forms, [block])

    def eager(self, workload: Workload) -> Form:
        return _scaled(_int8_product, workload.text("dtype"))

    def form(self, workload: Workload, config: Config) -> Form:
        products: Mapping[str, Form] = {
            "library": _int8_product,
            ATEN: _int8_product,
            "float32": _in_blocks(integer(config, "block")),
            "bfloat16": _bfloat16_product,
            "summed": _sums,
        }
        return _scaled(products[str(config["form"])], workload.text("dtype"))


def _scaled(product: Form, dtype: str) -> Form:
    def scaled(
        x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
    ) -> torch.Tensor:
        import torch

        out_dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        return (product(x, w).float() * x_scale[:, None] * w_scale).to(out_dtype)

    return scaled


def _int8_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    import torch

    return torch._int_mm(x, w.t())


def _in_blocks(block: int) -> Form:
    def in_blocks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Each product is exact; their sum is rounded to float32 as the output is."""
        total = x[:, :block].float() @ w[:, :block].float().t()
        for start in range(block, x.shape[1], block):
            part = slice(start, start + block)
            total = total + x[:, part].float() @ w[:, part].float().t()
        return total

    return in_blocks


def _bfloat16_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """int8 is exact in bfloat16; the product is rounded to it."""
    import torch

    return x.to(torch.bfloat16) @ w.to(torch.bfloat16).t()


def _sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    import torch

    products = x.to(torch.int32)[:, None, :] * w.to(torch.int32)[None]
    return products.sum(-1, dtype=torch.int32)
