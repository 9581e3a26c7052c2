"""Row softmax on a CPU: Inductor's loops over algebraically equal forms, or torch's own kernel.

Where rows fit into a cache, arithmetic counts: a division per element, one or two exponentials per
element, and how many independent sums are in flight. Where they do not, passes over memory count.
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

    from search_spaces.kernels.cpu_forms import Form

#: Elements of a part that is reduced while it is in the first-level cache.
_LEAST_PART, _MOST_PART = 256, 8192


def library(x: torch.Tensor) -> torch.Tensor:
    """torch's softmax of each row."""
    return x.softmax(dim=-1)


class CpuSoftmax(CpuRows):
    """`softmax(x, -1)` of x[rows, cols] on a CPU; dims rows, cols and dtype.

    The form is `library` (torch's function, compiled), `reciprocal` (one division per row),
    `log_sum_exp` (the exponential twice, nothing stored between passes), `parts` (maxima and sums
    of parts that stay in the first-level cache; Milakov and Gimelshein, 2018) or `aten` (torch's
    own kernel).
    """

    name = "cpu_softmax"
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1536, 128, "float32"),  # BERT-base: 12 heads, 128 tokens
            (1500, 1500, "float32"),  # Whisper: one head of the encoder
            (256, 1000, "float32"),  # ResNet-50: classes of 256 images
            (4096, 128, "bfloat16"),  # Qwen3-30B-A3B: the router of 4,096 tokens
            (8, 128256, "bfloat16"),  # Llama-3: logits of 8 requests
            (64, 32000, "float32"),  # Mixtral: logits of 64 requests
            (1024, 4096, "bfloat16"),
            (333, 1001, "float32"),
            (333, 1001, "bfloat16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols", scale=2.0)}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return 4.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        forms = ["library", "reciprocal", "log_sum_exp", ATEN]
        parameters: list[Parameter] = [
            PowerOfTwo("fold", 1, 4, when={"form": ("reciprocal", "log_sum_exp")})
        ]
        if parts := _part_sizes(workload.size("cols")):
            forms.append("parts")
            parameters.append(PowerOfTwo("part", parts[0], parts[-1], when={"form": ("parts",)}))
        return form_space(self.name, forms, parameters)

    def eager(self, workload: Workload) -> Form:
        return library

    def form(self, workload: Workload, config: Config) -> Form:
        fold, part = integer(config, "fold"), integer(config, "part")
        forms: Mapping[str, Form] = {
            "library": library,
            "reciprocal": _reciprocal(fold),
            "log_sum_exp": _log_sum_exp(fold),
            "parts": _in_parts(part),
            ATEN: library,
        }
        return forms[str(config["form"])]


def _reciprocal(fold: int) -> Form:
    def reciprocal(x: torch.Tensor) -> torch.Tensor:
        import torch

        wide = x.float()
        powers = torch.exp(wide - folded_max(wide, fold))
        return (powers * powers.sum(-1, keepdim=True).reciprocal()).to(x.dtype)

    return reciprocal


def _log_sum_exp(fold: int) -> Form:
    def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
        import torch

        wide = x.float()
        most = folded_max(wide, fold)
        total = folded_sum(torch.exp(wide - most), fold)
        return torch.exp(wide - (most + torch.log(total))).to(x.dtype)

    return log_sum_exp


def _in_parts(part: int) -> Form:
    def parts(x: torch.Tensor) -> torch.Tensor:
        import torch

        rows, cols = x.shape
        wide = x.float().view(rows, cols // part, part)
        most = wide.amax(-1, keepdim=True)
        powers = torch.exp(wide - most)
        scale = torch.exp(most - most.amax(1, keepdim=True))
        total = (powers.sum(-1, keepdim=True) * scale).sum(1, keepdim=True)
        return (powers * (scale / total)).view(rows, cols).to(x.dtype)

    return parts


def _part_sizes(cols: int) -> list[int]:
    """Sizes that divide a row into two parts or more; none for short and for odd rows."""
    sizes = [1 << exponent for exponent in range(_LEAST_PART.bit_length() - 1, 31)]
    return [size for size in sizes if size <= min(_MOST_PART, cols // 2) and cols % size == 0]
