"""Normalisation of rows on a CPU: LayerNorm and RMSNorm in algebraically equal forms.

Rows of usual widths fit into a core's second-level cache, so the passes after the first cost
arithmetic rather than memory traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from search_spaces.kernels.cpu_forms import ATEN, CpuRows, folded_sum, form_space
from search_spaces.kernels.limits import integer
from search_spaces.params import PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form

_EPS = 1e-5


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """torch's LayerNorm of each row."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, _EPS)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's RMSNorm of each row."""
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, _EPS)


class CpuLayerNorm(CpuRows):
    """(x - mean) / sqrt(var + 1e-5) * weight + bias over rows on a CPU; dims rows, cols and dtype.

    The form is `library` (torch's function, compiled), `two_pass` (the mean, then the squares of
    differences), `one_pass` (sum and squares together, which is less exact where the mean is large)
    or `aten` (torch's own kernel). All tensors have the dtype.
    """

    name = "cpu_layer_norm"
    elementwise = 2
    arguments: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    _formulas: ClassVar[tuple[str, ...]] = ("two_pass", "one_pass")
    _flops: ClassVar[float] = 7.0

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (128, 768, "float32"),  # BERT-base: 128 tokens
            (1500, 1280, "float32"),  # Whisper large-v3: the encoder
            (1024, 1024, "bfloat16"),  # GPT-2 medium
            (197, 768, "bfloat16"),  # ViT-B/16: one image
            (4096, 1024, "float32"),
            (333, 1001, "float32"),
            (333, 1001, "bfloat16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        found = {
            # Not centred at zero, so that a variant without the subtraction of the mean fails.
            "x": workload.spec("rows", "cols", mean=1.0, scale=2.0),
            "weight": workload.spec("cols", mean=1.0, scale=0.25),
            "bias": workload.spec("cols"),
        }
        return {name: found[name] for name in self.arguments}

    def flops(self, workload: Workload) -> float:
        rows, cols = workload.sizes("rows", "cols")
        return self._flops * rows * cols

    def space(self, workload: Workload) -> SearchSpace:
        fold = PowerOfTwo("fold", 1, 4, when={"form": self._formulas})
        return form_space(self.name, ("library", *self._formulas, ATEN), [fold])

    def eager(self, workload: Workload) -> Form:
        return layer_norm

    def form(self, workload: Workload, config: Config) -> Form:
        fold = integer(config, "fold")
        forms: Mapping[str, Form] = {
            "library": layer_norm,
            "two_pass": _two_pass(fold),
            "one_pass": _one_pass(fold),
            ATEN: layer_norm,
        }
        return forms[str(config["form"])]


class CpuRmsNorm(CpuLayerNorm):
    """x / sqrt(mean(x**2) + 1e-5) * weight over rows on a CPU; dims rows, cols and dtype.

    The form is `library` (torch's function, compiled), `squares` (one pass over the squares, one
    over the outputs) or `aten` (torch's own operations). All tensors have the dtype.
    """

    name = "cpu_rms_norm"
    arguments = ("x", "weight")
    _formulas = ("squares",)
    _flops = 4.0

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (16, 4096, "bfloat16"),  # Llama-3 8B: decoding 16 requests
            (512, 4096, "bfloat16"),  # Llama-3 8B: 512 tokens
            (128, 8192, "float32"),  # Llama-3 70B: 128 tokens
            (512, 1024, "float32"),  # Qwen3 0.6B: 512 tokens
            (64, 7168, "bfloat16"),  # DeepSeek-V3: 64 tokens
            (8192, 128, "float32"),  # Qwen3 8B: heads of queries, 256 tokens
            (333, 1001, "float32"),
        )

    def eager(self, workload: Workload) -> Form:
        return rms_norm

    def form(self, workload: Workload, config: Config) -> Form:
        forms: Mapping[str, Form] = {
            "library": rms_norm,
            "squares": _squares(integer(config, "fold")),
            ATEN: rms_norm,
        }
        return forms[str(config["form"])]


def _two_pass(fold: int) -> Form:
    def two_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        wide, cols = x.float(), x.shape[-1]
        mean = folded_sum(wide, fold) * (1.0 / cols)
        centred = wide - mean
        variance = folded_sum(centred * centred, fold) * (1.0 / cols)
        scaled = centred * torch.rsqrt(variance + _EPS)
        return (scaled * weight.float() + bias.float()).to(x.dtype)

    return two_pass


def _one_pass(fold: int) -> Form:
    def one_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        wide, cols = x.float(), x.shape[-1]
        mean = folded_sum(wide, fold) * (1.0 / cols)
        squares = folded_sum(wide * wide, fold) * (1.0 / cols)
        inverse = torch.rsqrt((squares - mean * mean).clamp_min(0.0) + _EPS)
        return ((wide - mean) * inverse * weight.float() + bias.float()).to(x.dtype)

    return one_pass


def _squares(fold: int) -> Form:
    def squares(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        import torch

        wide, cols = x.float(), x.shape[-1]
        mean = folded_sum(wide * wide, fold) * (1.0 / cols)
        return (wide * torch.rsqrt(mean + _EPS) * weight.float()).to(x.dtype)

    return squares
