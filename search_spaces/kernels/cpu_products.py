"""What the CPU families of matrix products share: libraries, Inductor's GEMM template, its blocks.

`template` is the C++ template of Inductor, whose micro-kernels use AMX, AVX-512 or AVX2. torch
offers it for products with constant weights and for batched products; the form is a batch of one.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.constraints import Constraint
from search_spaces.kernel import Tolerance
from search_spaces.kernels.cpu_forms import ATEN, CpuKernel, inductor_options, is_aten
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.tensors import compiled, named

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

TEMPLATE = "template"
#: Forms without Inductor: oneDNN for float32, and operands of bfloat16 widened to float32.
ONEDNN, WIDENED = f"{ATEN}_onednn", f"{ATEN}_float32"
#: Sums of int8 products that float32 holds exactly: 127 * 127 * 1024 < 2**24.
EXACT_K = 1024
#: Sums of int8 products that int32 holds.
MOST_INT8_K = 2**17
_BLOCKS = ("M_BLOCKS", "N_BLOCKS", "K_BLOCKS")


class CpuProduct(CpuKernel):
    """A kernel of matrix products: forms by libraries in a precision, and by the template."""

    def options(self, workload: Workload, config: Config) -> Mapping[str, Any]:
        return template_options(config)

    def cpu_callable(
        self, workload: Workload, config: Config
    ) -> Callable[[Tensors], Mapping[str, torch.Tensor]]:
        form = self.form(workload, config)
        if is_aten(config):
            run = in_precision(form, str(config.get("precision", "ieee")))
        else:
            options = {**inductor_options(config), **self.options(workload, config)}
            run = under_settings(compiled(form, options), template_settings(config))
        return named(self.output, run, *self.arguments)


def precisions(tolerance: Tolerance) -> list[Parameter]:
    """Products of float32 with operands rounded to bfloat16, where the tolerance admits them."""
    if tolerance.relative < ROUNDING["bfloat16"]:
        return []
    return [Choice("precision", ("ieee", "bf16"), when={"form": (ATEN, ONEDNN)})]


# -- the template ----------------------------------------------------------------------------------
def template_parameters(rows: int, cols: int, *, packed: bool) -> list[Parameter]:
    """How the template divides a product of that size among threads and into blocks of a cache.

    divide: by Inductor's rule, or all threads along M or along N. packed: whether the template
    packs the second operand, which it does where that is not contiguous. Then blocking is by
    Inductor's rule from the caches' sizes, or M_BLOCKS x N_BLOCKS x K_BLOCKS tiles of the
    micro-kernel. Otherwise blocks are always given and N_BLOCKS is 1, because torch 2.13 reads the
    wrong columns of an unpacked operand in all blocks of N but the first. A product with a vector
    is a plain loop, without parameters.
    """
    if min(rows, cols) == 1:
        return []
    when = {"form": (TEMPLATE,)}
    divide = Choice("divide", ("auto", "M", "N"), when=when)
    if not packed:
        return [
            divide,
            PowerOfTwo("M_BLOCKS", 1, 16, when=when),
            PowerOfTwo("K_BLOCKS", 8, 256, when=when),
        ]
    given = {"blocking": ("given",)}
    return [
        divide,
        Choice("blocking", ("auto", "given"), when=when),
        PowerOfTwo("M_BLOCKS", 1, 16, when=given),
        PowerOfTwo("N_BLOCKS", 1, 16, when=given),
        PowerOfTwo("K_BLOCKS", 8, 256, when=given),
    ]


def _divides_threads(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("divide", "auto") == "auto" or integer(config, "threads") > 1


def _has_template(config: Config, workload: Workload, device: Device) -> bool:
    return config["form"] != TEMPLATE or "-avx" in device.target


def _has_onednn(config: Config, workload: Workload, device: Device) -> bool:
    single = workload["dtype"] == "float32"
    return config["form"] != ONEDNN or single or "avx512" in device.target


HAS_TEMPLATE = Constraint("template", _has_template, "the template needs AVX2 or AVX-512")
HAS_ONEDNN = Constraint("onednn", _has_onednn, "oneDNN multiplies bfloat16 with AVX-512 alone")
DIVIDED = Constraint("divide", _divides_threads, "a single thread has nothing to divide")


def template_options(config: Config) -> dict[str, Any]:
    """Inductor's options under which products are made by the template alone."""
    if config["form"] != TEMPLATE:
        return {}
    return {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}


def template_settings(config: Config) -> dict[str, str]:
    """Inductor's settings that `torch.compile` does not take as options: their default is None."""
    settings = {}
    if "K_BLOCKS" in config:
        blocks = ",".join(f"{integer(config, name)}" for name in _BLOCKS)
        settings["cpp.gemm_cache_blocking"] = blocks
    if config.get("divide", "auto") != "auto":
        threads = integer(config, "threads")
        along_m = config["divide"] == "M"
        settings["cpp.gemm_thread_factors"] = f"{threads},1,1" if along_m else f"1,{threads},1"
    return settings


def under_settings(run: Form, settings: dict[str, str]) -> Form:
    """A compiled function whose first call, which compiles it, is under settings of Inductor."""
    if not settings:
        return run
    called = False

    def first_under_settings(*tensors: torch.Tensor) -> torch.Tensor:
        nonlocal called
        if called:
            return run(*tensors)
        import torch._inductor.config

        with torch._inductor.config.patch(settings):
            out = run(*tensors)
        called = True
        return out

    return first_under_settings


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b as a batch of one product."""
    import torch

    return torch.bmm(a[None], b[None])[0]


# -- libraries -------------------------------------------------------------------------------------
def blas(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b by the library that torch chooses: MKL for float32, oneDNN for bfloat16."""
    return a @ b


def onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b by oneDNN's inner product."""
    import torch

    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return product


def widened(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in float32, rounded to the dtype of a; for processors without bfloat16 products."""
    return (a.float() @ b.float()).to(a.dtype)


def summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b as sums of products, a loop that Inductor vectorises; for few rows of a.

    The product of int8 is int32.
    """
    import torch

    if a.dtype == torch.int8:
        whole = a.to(torch.int32)[:, :, None] * b.to(torch.int32)[None]
        return whole.sum(1, dtype=torch.int32)
    return (a.float()[:, :, None] * b.float()[None]).sum(1).to(a.dtype)


def exact_int8(block: int) -> Form:
    """The int32 product of int8 matrices by float32 products of `block` of K, which are exact."""

    def in_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        import torch

        out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.int32)
        for start in range(0, a.shape[1], block):
            part = a[:, start : start + block].float() @ b[start : start + block].float()
            out += part.to(torch.int32)
        return out

    return in_blocks


def in_precision(run: Form, precision: str) -> Form:
    """Products of float32 by oneDNN with their operands rounded to `precision`."""
    if precision == "ieee":
        return run

    def rounded(*tensors: torch.Tensor) -> torch.Tensor:
        import torch

        backend: Any = torch.backends.mkldnn
        settings = backend.matmul
        before = settings.fp32_precision
        settings.fp32_precision = precision
        try:
            return run(*tensors)
        finally:
            settings.fp32_precision = before

    return rounded
