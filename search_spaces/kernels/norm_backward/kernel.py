"""The backward pass of layer norm and RMS norm over rows.

Memory-bound: the least traffic is one read of x and dy and one write of dx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import alignment, ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import NORM_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.norm_backward.space import backward_space, default_point, tile_rows
from search_spaces.kernels.norm_backward.triton_kernels import (
    add_parts_kernel,
    held_backward_kernel,
    row_means_kernel,
    tile_backward_kernel,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

KINDS_OF_NORM = ("layer_norm", "rms_norm")
_MOST_COLS = 2**20
_EPS = 1e-5
#: The blocks of the launch that finds the means of long rows, and its warps.
_MEANS_BLOCK, _MEANS_WARPS = 4096, 8
#: The tile of the launch that adds the sums of all programs.
_ADDED_COLS, _ADDED_PARTS = 32, 64


class NormBackward(Kernel):
    """dx[rows, cols], dweight[cols] and, of layer norm, dbias[cols]; dims rows, cols, kind and
    dtype.

    kind: layer_norm or rms_norm. Inputs are x, weight, the gradient dy of the output and, in
    float32, what the forward pass has saved of each row: rstd[rows] and, of layer norm, mean[rows].

    Rows of up to 8,192 elements can be held in registers (passes 1). Others are read twice, in
    tiles (passes 2). Each of `programs` programs, for each column, adds up the gradients of weight
    and bias of its own rows; a last launch adds these sums.
    """

    name = "norm_backward"
    edges = NORM_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=_MOST_COLS, kind=KINDS_OF_NORM, dtype=DTYPES)
    small = {"rows": 21, "cols": 261}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, "rms_norm", "bfloat16"),  # Llama-3 8B
            (4096, 8192, "rms_norm", "bfloat16"),  # Llama-3 70B
            (2048, 16384, "rms_norm", "bfloat16"),  # Llama-3 405B
            (8192, 2880, "rms_norm", "bfloat16"),  # GPT-OSS 20B
            (16384, 1024, "layer_norm", "bfloat16"),  # BERT-large
            (32768, 768, "layer_norm", "float16"),  # GPT-2
            (12000, 1280, "layer_norm", "float32"),  # Whisper large-v3, 8 segments
            (2048, 12288, "layer_norm", "bfloat16"),  # GPT-3
            (4099, 1003, "layer_norm", "float32"),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, cols = workload.sizes("rows", "cols")
        source = generator(seed, device)
        matrix, statistic = workload.spec(rows, cols), workload.spec(rows, dtype="float32")
        x = random_tensor(matrix, source, device, scale=2.0).add_(1)
        inputs = {
            "x": x,
            "dy": random_tensor(matrix, source, device),
            "weight": random_tensor(workload.spec(cols), source, device, 0.25).add_(1),
        }
        names = ("mean", "rstd") if _is_centred(workload) else ("rstd",)
        if device == "meta":
            return inputs | {name: random_tensor(statistic, source, device) for name in names}
        wide = x.float()
        if _is_centred(workload):
            inputs["mean"] = wide.mean(dim=1)
            wide = wide - inputs["mean"][:, None]
        inputs["rstd"] = (wide.square().mean(dim=1) + _EPS).rsqrt()
        return inputs

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        vector = (workload.size("cols"),)
        found = {"dx": workload.spec("rows", *vector)}
        found |= {"dweight": workload.spec(*vector)}
        return found | ({"dbias": workload.spec(*vector)} if _is_centred(workload) else {})

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        rows, parts = workload.size("rows"), integer(config, "programs")
        sums = workload.spec(parts, "cols", dtype="float32")
        means = workload.spec(rows, dtype="float32")
        found = {"weight_part": sums, "product": means}
        if _is_centred(workload):
            found |= {"bias_part": sums, "gradient": means}
        held = config["passes"] == 1
        return {name: spec for name, spec in found.items() if not held or spec == sums}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = {name: tensor.double() for name, tensor in inputs.items()}
        names = ("dx", "dweight", "dbias")
        return dict(zip(names, _gradients(workload)(*_ordered(workload, exact)), strict=False))

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        # The rounding error of one element may be twice that of the whole output. A sum over rows
        # may be close to zero, where its error is that of its summands.
        # After n rows, a running sum in float32 is off by about n * 2^-24.
        return Tolerance(relative, 4 * relative + workload.size("rows") * 2.0**-24)

    def flops(self, workload: Workload) -> float:
        rows, cols = workload.sizes("rows", "cols")
        centred = _is_centred(workload)
        return (11.0 if centred else 8.0) * rows * cols

    def space(self, workload: Workload) -> SearchSpace:
        return backward_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, cols = workload.sizes("rows", "cols")
        parts, per_step = integer(config, "programs"), tile_rows(config)
        width = integer(config, "BLOCK_C", next_power_of_two(cols))
        shared = {"COLS": cols, "CENTRED": _is_centred(workload)}
        tiled = {
            **shared,
            "EVEN": rows % per_step == 0 and cols % width == 0,
            "ALIGN": alignment(cols),
            "LOAD_STAGES": config["stages"],
            "num_warps": config["num_warps"],
        }
        known = [tensors.get(name) for name in ("x", "dy", "weight", "mean", "rstd")]
        means = [tensors.get("product"), tensors.get("gradient")]
        sums = [tensors["weight_part"], tensors.get("bias_part")]
        added = Launch(
            add_parts_kernel,
            (ceil_div(cols, _ADDED_COLS),),
            (*sums, tensors["dweight"], tensors.get("dbias"), parts),
            {**shared, "BLOCK_P": _ADDED_PARTS, "BLOCK_C": _ADDED_COLS, "num_warps": 4},
        )
        if config["passes"] == 1:
            held = {**tiled, "BLOCK": width, "ROWS_PER_STEP": per_step}
            arguments = (*known, tensors["dx"], *sums, rows)
            return [Launch(held_backward_kernel, (parts,), arguments, held), added]
        blocks = {"BLOCK": min(_MEANS_BLOCK, next_power_of_two(cols)), "ALIGN": tiled["ALIGN"]}
        found = {**shared, **blocks, "LOAD_STAGES": 2, "num_warps": _MEANS_WARPS}
        tiles = {**tiled, "BLOCK_R": per_step, "BLOCK_C": width}
        grid, arguments = (ceil_div(cols, width), parts), (*known, *means, tensors["dx"], *sums)
        return [
            Launch(row_means_kernel, (rows,), (*known, *means), found),
            Launch(tile_backward_kernel, grid, (*arguments, rows), tiles),
            added,
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        names = ("x", "dy", "weight", "rstd", *(("mean",) if _is_centred(workload) else ()))
        outputs = tuple(self.outputs(workload))
        return {
            "eager": named(outputs, _autograd(workload), *names),
            "compile": named(outputs, compiled(_gradients(workload)), *names),
        }


def _is_centred(workload: Workload) -> bool:
    return workload.text("kind") == "layer_norm"


def _ordered(workload: Workload, tensors: Tensors) -> list[torch.Tensor]:
    """The inputs as arguments of `_gradients`."""
    names = ("x", "dy", "weight", "rstd", *(("mean",) if _is_centred(workload) else ()))
    return [tensors[name] for name in names]


def _gradients(workload: Workload) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The gradients as a formula, in float32 or in float64."""

    def rms_norm(
        x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        dtype, wide = x.dtype, rstd.dtype
        z, dy = x.to(wide) * rstd[:, None], dy.to(wide)
        g = dy * weight.to(wide)
        dx = (g - z * (z * g).mean(dim=1, keepdim=True)) * rstd[:, None]
        return dx.to(dtype), (dy * z).sum(dim=0).to(dtype)

    def layer_norm(
        x: torch.Tensor,
        dy: torch.Tensor,
        weight: torch.Tensor,
        rstd: torch.Tensor,
        mean: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        dtype, wide = x.dtype, rstd.dtype
        z, dy = (x.to(wide) - mean[:, None]) * rstd[:, None], dy.to(wide)
        g = dy * weight.to(wide)
        dx = g - z * (z * g).mean(dim=1, keepdim=True) - g.mean(dim=1, keepdim=True)
        sums = ((dy * z).sum(dim=0).to(dtype), dy.sum(dim=0).to(dtype))
        return (dx * rstd[:, None]).to(dtype), *sums

    return layer_norm if _is_centred(workload) else rms_norm


def _autograd(workload: Workload) -> Callable[..., tuple[torch.Tensor, ...]]:
    """What autograd calls: torch's own kernels. On a CPU it is the formula where torch has none, or
    saves the statistics of a row in the dtype of x."""
    shape, formula = [workload.size("cols")], _gradients(workload)

    def rms_norm(
        x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        import torch

        if not x.is_cuda:
            return formula(x, dy, weight, rstd)
        backward = torch.ops.aten._fused_rms_norm_backward
        return tuple(backward(dy, x, shape, rstd[:, None], weight, [True, True]))

    def layer_norm(
        x: torch.Tensor,
        dy: torch.Tensor,
        weight: torch.Tensor,
        rstd: torch.Tensor,
        mean: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        import torch

        if not x.is_cuda and x.dtype != mean.dtype:
            return formula(x, dy, weight, rstd, mean)
        backward, statistics = torch.ops.aten.native_layer_norm_backward, (mean, rstd)
        # Of the bias torch needs the shape alone, which is that of the weight.
        saved = (each[:, None] for each in statistics)
        return tuple(backward(dy, x, shape, *saved, weight, weight, [True, True, True]))

    return layer_norm if _is_centred(workload) else rms_norm
