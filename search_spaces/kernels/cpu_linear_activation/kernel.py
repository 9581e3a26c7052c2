"""A linear layer with bias and activation on a CPU: in one kernel, or in two.

oneDNN applies activations to a tile of the product before it is stored, and so does Inductor's C++
template. In two kernels, the product goes through memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.dims import Dims
from search_spaces.kernel import Tolerance
from search_spaces.kernels.cpu_activation.forms import FORMS
from search_spaces.kernels.cpu_forms import ATEN, FLOATS, form_space, rounding
from search_spaces.kernels.cpu_products import (
    DIVIDED,
    HAS_ONEDNN,
    HAS_TEMPLATE,
    ONEDNN,
    TEMPLATE,
    CpuProduct,
    batched,
    template_parameters,
)
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

#: oneDNN's name of each function, its limits and its algorithm.
_POST_OPERATIONS: dict[str, tuple[str, list[float], str]] = {
    "relu": ("relu", [], ""),
    "relu1": ("hardtanh", [0.0, 1.0], ""),
    "gelu": ("gelu", [], "none"),
    "silu": ("swish", [], ""),
}


class CpuLinearActivation(CpuProduct):
    """function(x[M, K] @ w[N, K].T + bias[N]) on a CPU; dims M, N, K, function and dtype.

    function: relu, relu1 (clamped to 0 and 1), gelu or silu. The form is `library` (torch's
    product, then a compiled loop), `aten` (without Inductor), `aten_onednn` (oneDNN's product with
    the activation in it) or `template` (Inductor's C++ template with the activation in it).
    """

    name = "cpu_linear_activation"
    dims = Dims(M=int, N=int, K=int, function=tuple(_POST_OPERATIONS), dtype=FLOATS)
    small = {"M": 37, "N": 71, "K": 130}
    arguments = ("x", "w", "bias")

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (128, 3072, 768, "gelu", "float32"),  # BERT-base: the feed-forward layer
            (1500, 1536, 384, "gelu", "float32"),  # Whisper tiny: the encoder
            (256, 3072, 1024, "silu", "bfloat16"),  # Qwen3 0.6B: the gate, 256 tokens
            (16, 3072, 1024, "silu", "bfloat16"),  # the same, decoding 16 requests
            (2048, 512, 256, "relu", "float32"),  # DLRM: the bottom network
            (2048, 512, 256, "relu1", "float32"),
            (333, 501, 259, "gelu", "bfloat16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, k = workload.sizes("M", "N", "K")
        return {
            "x": workload.spec(m, k),
            # Scaled so that outputs are of the order of one, whatever K.
            "w": workload.spec(n, k, scale=1 / sqrt(k)),
            "bias": workload.spec(n),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        x, w, bias = (inputs[name].double() for name in self.arguments)
        return {"out": FORMS[workload.text("function")]["library"](x @ w.t() + bias)}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the product and the output, or of K sums in float32."""
        relative = sqrt(2) * rounding(workload)
        if workload["dtype"] == "float32":
            relative = max(1e-6 * sqrt(workload.size("K")), relative)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        forms = ("library", ATEN, ONEDNN, TEMPLATE)
        parameters = template_parameters(workload.size("M"), workload.size("N"), packed=True)
        return form_space(self.name, forms, parameters, [HAS_TEMPLATE, HAS_ONEDNN, DIVIDED])

    def eager(self, workload: Workload) -> Form:
        return _in_two_kernels(workload.text("function"))

    def form(self, workload: Workload, config: Config) -> Form:
        function, form = workload.text("function"), config["form"]
        if form == ONEDNN:
            return _by_onednn(function)
        return _by_template(function) if form == TEMPLATE else _in_two_kernels(function)


def _in_two_kernels(function: str) -> Form:
    activation = FORMS[function]["library"]

    def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        return activation(torch.nn.functional.linear(x, w, bias))

    return linear


def _by_onednn(function: str) -> Form:
    name, limits, algorithm = _POST_OPERATIONS[function]

    def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        fused = torch.ops.mkldnn._linear_pointwise
        out: torch.Tensor = fused(x, w, bias, name, limits, algorithm)
        return out

    return linear


def _by_template(function: str) -> Form:
    activation = FORMS[function]["library"]

    def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return activation(batched(x, w.t()) + bias)

    return linear
