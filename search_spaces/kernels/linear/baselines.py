"""Linear layers as users of torch write them, and by the epilogues that cuBLASLt has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from search_spaces.records import Workload
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

    Layer: TypeAlias = Callable[..., torch.Tensor]


def baselines_of(workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
    """eager, compile and, where cuBLASLt has such an epilogue, vendor."""
    eager, names = layer(workload), _names(workload)
    found = {
        "eager": named("out", eager, *names),
        "compile": named("out", compiled(eager), *names),
    }
    library = library_layer(workload)
    if library is not None:
        found["vendor"] = named("out", _on_cuda(library), *names)
    return found


def exact_layer(workload: Workload, inputs: Tensors) -> Tensors:
    """The layer in float64."""
    exact = {name: tensor.double() for name, tensor in inputs.items()}
    return named("out", layer(workload), *_names(workload))(exact)


def layer(workload: Workload) -> Layer:
    """The layer by torch's functions; its arguments are those inputs that the workload has."""
    epilogue, has_bias = workload.text("epilogue"), bool(workload["bias"])

    def linear(a: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        import torch

        sums = torch.nn.functional.linear(a, w, rest[0] if has_bias else None)
        if epilogue == "relu1":
            return torch.nn.functional.hardtanh(sums, 0.0, 1.0)
        if epilogue == "gelu":
            return torch.nn.functional.gelu(sums)
        if epilogue == "silu":
            return torch.nn.functional.silu(sums)
        if epilogue == "swiglu":
            gate, up = sums.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up
        return sums + rest[-1] if epilogue == "residual" else sums

    return linear


def library_layer(workload: Workload) -> Layer | None:
    """The layer by cuBLASLt's epilogues; None where it has none that computes most of it.

    `relu1` is cuBLASLt's relu and a second kernel. cuBLASLt's gelu is the tanh form, whose
    difference is within the tolerance of 16-bit outputs only.
    """
    epilogue, has_bias = workload.text("epilogue"), bool(workload["bias"])
    single = workload["dtype"] == "float32"

    def biased(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.addmm(bias, a, w.t())

    def activated(a: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        gelu = epilogue == "gelu"
        out: torch.Tensor = torch.ops.aten._addmm_activation(bias, a, w.t(), use_gelu=gelu)
        return out if gelu else out.clamp_(max=1.0)

    def added(a: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        import torch

        out = torch.addmm(rest[-1], a, w.t())
        return out.add_(rest[0]) if has_bias else out

    if epilogue == "residual":
        return added
    if epilogue == "none":
        return biased
    if epilogue == "relu1" or (epilogue == "gelu" and not single):
        return activated if has_bias else None
    return None


def _names(workload: Workload) -> tuple[str, ...]:
    """The inputs of a workload, in the order of a layer's arguments."""
    bias = ("bias",) if workload["bias"] else ()
    residual = ("residual",) if workload["epilogue"] == "residual" else ()
    return ("a", "w", *bias, *residual)


def _on_cuda(function: Layer) -> Layer:
    def run(a: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if a.device.type != "cuda":
            raise RuntimeError(f"cuBLASLt needs CUDA tensors, got one on {a.device.type}")
        return function(a, *rest)

    return run
