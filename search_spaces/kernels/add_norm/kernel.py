"""A residual addition fused with the norm that follows it, as in every block of a transformer.

Memory-bound: the least traffic is one read of both matrices and one write of sum and result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import alignment
from search_spaces.dims import Dims, number_of
from search_spaces.edges import NORM_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.add_norm.space import MAX_COLS, add_norm_space, default_point
from search_spaces.kernels.add_norm.triton_kernels import add_norm_kernel
from search_spaces.kernels.codes import FLOAT8, LARGEST_CODE
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE
from search_spaces.kernels.rows import step_constants, step_grid
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.shape_tensor import as_bytes
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

KINDS_OF_NORM = ("rms_norm", "layer_norm")
#: The dtypes of the result: that of the workload, or codes with a scale for each row.
RESULTS = ("same", *LARGEST_CODE)
DEFAULT_EPS = 1e-5
_LEAST_AMAX = 1e-12
#: A quotient near a tie between two codes may be rounded to either: a step of float8 is at most an
#: eighth of the number, one of int8 is 1.
_QUANTIZED = {FLOAT8: Tolerance(1e-2, 1 / 8), "int8": Tolerance(5e-3, 1.0)}


class AddNorm(Kernel):
    """residual_out = x + residual and out = norm(residual_out) of matrices [rows, cols]; dims rows,
    cols (at most 16384), kind, to, dtype and, optionally, eps (1e-5).

    kind: rms_norm with weight[cols], or layer_norm with weight and bias. The sum is rounded to the
    dtype before it is normalised, so that both outputs belong together, as in the blocks of Llama.

    to: same for a result of the dtype; float8_e4m3fn or int8 for codes of it with a scale[rows], as
    the kernel `quantize` gives them for rows. The result is quantized as it is in float32.
    """

    name = "add_norm"
    edges = NORM_EDGES
    dims = Dims(
        rows=LARGEST_SIDE, cols=MAX_COLS, kind=KINDS_OF_NORM, to=RESULTS, dtype=DTYPES, eps=float
    )
    small = {"rows": 13, "cols": 509}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, "rms_norm", "same", "bfloat16"),  # Llama-3 8B
            (4096, 8192, "rms_norm", "same", "bfloat16"),  # Llama-3 70B
            (64, 8192, "rms_norm", "same", "bfloat16"),  # Llama-3 70B, decoding 64 sequences
            (8192, 5120, "rms_norm", "same", "bfloat16"),  # Qwen3 32B
            (8192, 2880, "rms_norm", "same", "bfloat16"),  # GPT-OSS 20B
            (4096, 7168, "rms_norm", "same", "bfloat16"),  # DeepSeek-V3
            (8192, 4096, "rms_norm", FLOAT8, "bfloat16"),  # Llama-3 8B in float8
            (4096, 7168, "rms_norm", FLOAT8, "bfloat16"),  # DeepSeek-V3 by rows
            (64, 8192, "rms_norm", FLOAT8, "bfloat16"),  # Llama-3 70B, decoding
            (8192, 5120, "rms_norm", "int8", "bfloat16"),  # Qwen3 32B in int8
            (16384, 1024, "layer_norm", "same", "bfloat16"),  # BERT-large
            (12000, 1280, "layer_norm", "same", "float16"),  # Whisper large-v3, 8 segments
            (4096, 16384, "rms_norm", "same", "float32"),  # Llama-3 405B
            (4099, 1003, "layer_norm", "same", "float32"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        found = {
            # Not centred at zero, so that a variant without the subtraction of the mean fails.
            "x": workload.spec("rows", "cols", mean=1.0),
            "residual": workload.spec("rows", "cols", scale=2.0),
            "weight": workload.spec("cols", mean=1.0, scale=0.25),
        }
        return {**found, "bias": workload.spec("cols")} if _is_centred(workload) else found

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        rows, to = workload.size("rows"), workload.text("to")
        matrix = workload.spec(rows, "cols")
        if to == "same":
            return {"residual_out": matrix, "out": matrix}
        codes = {
            "out": workload.spec(*matrix.shape, dtype=to),
            "scale": workload.spec(rows, dtype="float32"),
        }
        return {"residual_out": matrix, **codes}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = {name: tensor.double() for name, tensor in inputs.items()}
        total = (exact["x"] + exact["residual"]).to(inputs["x"].dtype).double()
        vectors = [exact[name] for name in _vectors(workload)]
        normalised = _norm(workload)(total, *vectors)
        if workload["to"] == "same":
            return {"residual_out": total, "out": normalised}
        codes, scale = _quantized(normalised, workload)
        return {"residual_out": total, "out": codes.double(), "scale": scale.double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        if workload["to"] != "same":
            return _QUANTIZED[workload.text("to")]
        relative = ROUNDING[workload.text("dtype")]
        # The rounding error of one element may be twice that of the whole output.
        return Tolerance(relative, 2 * relative)

    def flops(self, workload: Workload) -> float:
        rows, cols = workload.sizes("rows", "cols")
        return (8.0 if _is_centred(workload) else 5.0) * rows * cols

    def space(self, workload: Workload) -> SearchSpace:
        return add_norm_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, cols = workload.sizes("rows", "cols")
        steps = step_constants(workload, config)
        even_rows = steps.pop("EVEN_ROWS")
        constants = {
            **steps,
            "COLS": cols,
            "EVEN": even_rows and steps["BLOCK"] == cols,
            "ALIGN": alignment(cols),
            "STREAM": config["stream"],
            "CENTRED": _is_centred(workload),
            "EPS": number_of(workload, "eps", DEFAULT_EPS),
            "LARGEST": LARGEST_CODE.get(workload.text("to"), 0.0),
            "num_warps": config["num_warps"],
        }
        known = [tensors[name] for name in ("x", "residual", "weight")]
        out = as_bytes(tensors["out"]) if config.get("convert") == "bits" else tensors["out"]
        written = (tensors["residual_out"], out, tensors.get("scale"))
        arguments = (*known, tensors.get("bias"), *written, rows)
        return [Launch(add_norm_kernel, step_grid(workload, config), arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        norm = _norm(workload)

        def eager(
            x: torch.Tensor, residual: torch.Tensor, *vectors: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            total = x + residual
            return total, norm(total, *vectors)

        def quantized(
            x: torch.Tensor, residual: torch.Tensor, *vectors: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            total = x + residual
            normalised = norm(total.float(), *(vector.float() for vector in vectors))
            return total, *_quantized(normalised, workload)

        outputs, run = tuple(self.outputs(workload)), eager
        if workload["to"] != "same":
            run = quantized
        names = ("x", "residual", *_vectors(workload))
        return {
            "eager": named(outputs, run, *names),
            "compile": named(outputs, compiled(run), *names),
        }


def _quantized(x: torch.Tensor, workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rows by plain torch; the quotients are rounded to float32 first."""
    import torch

    to = workload.text("to")
    scale = (x.abs().amax(1).clamp_min(_LEAST_AMAX) / LARGEST_CODE[to]).float()
    quotient = (x / scale[:, None]).float()
    if to == "int8":
        return quotient.round().to(torch.int8), scale
    return quotient.to(torch.float8_e4m3fn), scale


def _is_centred(workload: Workload) -> bool:
    return workload.text("kind") == "layer_norm"


def _vectors(workload: Workload) -> tuple[str, ...]:
    return ("weight", "bias") if _is_centred(workload) else ("weight",)


def _norm(workload: Workload) -> Callable[..., torch.Tensor]:
    """torch's norm of a matrix, weight and, for a layer norm, bias."""
    shape, eps = [workload.size("cols")], number_of(workload, "eps", DEFAULT_EPS)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.rms_norm(x, shape, weight, eps)

    return layer_norm if _is_centred(workload) else rms_norm
