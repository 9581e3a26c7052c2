"""The cross-entropy of each row of logits on a CPU, forward.

A row of a large vocabulary does not fit into the first-level cache, so a pass over it costs traffic
to the second level or to memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.kernels.cpu_forms import ATEN, CpuRows, folded_max, folded_sum, form_space
from search_spaces.kernels.limits import integer
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

_FLOPS = 6.0
_LEAST_PART, _MOST_PART = 256, 8192


def library(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's cross-entropy of each row, in float32."""
    import torch

    return torch.nn.functional.cross_entropy(x.float(), target, reduction="none")


class CpuCrossEntropy(CpuRows):
    """loss[rows] of logits x[rows, cols] and target[rows] on a CPU; dims rows, cols and dtype.

    The form is `library` (torch's function, compiled), `log_sum_exp` (no logarithm per element),
    `parts` (the same in one walk over parts that stay in the first-level cache) or `aten` (torch's
    own kernels). The loss is float32; the logits are as they are, so that rounding them is no
    error.
    """

    name = "cpu_cross_entropy"
    output = "loss"
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (32, 128256, "bfloat16"),  # Llama-3
            (16, 151936, "float32"),  # Qwen3
            (64, 50257, "float32"),  # GPT-2
            (64, 32000, "bfloat16"),  # Mixtral
            (512, 30522, "float32"),  # BERT
            (1024, 1000, "float32"),  # ResNet-50: ImageNet's classes
            (333, 1001, "bfloat16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        target = workload.spec("rows", dtype="int64", limits=(0, workload.size("cols")))
        return {"x": workload.spec("rows", "cols", scale=2.0), "target": target}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"loss": workload.spec("rows", dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        x, target = inputs["x"].double(), inputs["target"]
        return {"loss": torch.nn.functional.cross_entropy(x, target, reduction="none")}

    def flops(self, workload: Workload) -> float:
        rows = workload.size("rows")
        logits = rows * workload.size("cols")
        return _FLOPS * logits

    def space(self, workload: Workload) -> SearchSpace:
        forms = ["library", "log_sum_exp", ATEN]
        parameters: list[Parameter] = [PowerOfTwo("fold", 1, 4, when={"form": ("log_sum_exp",)})]
        cols = workload.size("cols")
        if cols >= 2 * _LEAST_PART:
            largest = min(_MOST_PART, 1 << ((cols // 2).bit_length() - 1))
            forms.append("parts")
            parameters.append(PowerOfTwo("part", _LEAST_PART, largest, when={"form": ("parts",)}))
        return form_space(self.name, forms, parameters)

    def eager(self, workload: Workload) -> Form:
        return library

    def form(self, workload: Workload, config: Config) -> Form:
        forms: Mapping[str, Form] = {
            "library": library,
            "log_sum_exp": _log_sum_exp(integer(config, "fold")),
            "parts": _in_parts(integer(config, "part")),
            ATEN: library,
        }
        return forms[str(config["form"])]


def _log_sum_exp(fold: int) -> Form:
    def log_sum_exp(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        import torch

        wide = x.float()
        most = folded_max(wide, fold)
        total = folded_sum(torch.exp(wide - most), fold)
        own = x.gather(1, target[:, None]).float()
        return (most + torch.log(total) - own)[:, 0]

    return log_sum_exp


def _in_parts(part: int) -> Form:
    def parts(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Maximum and sum of each part, then of all; the last part may be shorter."""
        import torch

        rows, cols = x.shape
        whole = cols // part
        wide = x.float()
        body = wide[:, : whole * part].view(rows, whole, part)
        most = body.amax(-1)
        total = torch.exp(body - most[..., None]).sum(-1)
        if cols % part:
            rest = wide[:, whole * part :]
            last = rest.amax(-1, keepdim=True)
            most = torch.cat([most, last], 1)
            total = torch.cat([total, torch.exp(rest - last).sum(-1, keepdim=True)], 1)
        top = most.amax(1, keepdim=True)
        total = (total * torch.exp(most - top)).sum(1, keepdim=True)
        own = x.gather(1, target[:, None]).float()
        return (top + torch.log(total) - own)[:, 0]

    return parts
