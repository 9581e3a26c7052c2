"""Gradients of attention from its inputs, its output and the sums of its softmax.

Bound by arithmetic: five products of sequence x sequence x head_dim per head, half of that where
queries only see earlier keys; the two launches make seven of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e as euler
from math import log2, prod, sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.attention_backward.space import backward_space, default_point
from search_spaces.kernels.attention_backward.torch_gradients import gradient_baselines
from search_spaces.kernels.attention_backward.triton_kernels import (
    delta_kernel,
    key_gradients_kernel,
    query_gradients_kernel,
)
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.masked_attention import (
    DTYPES,
    MOST_HEADS,
    SCALES,
    Mask,
    check_groups,
    exact_attention,
    exact_gradients,
    group_of,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

HEAD_DIMS = (64, 128, 256)
#: Rows of a program that computes delta.
_DELTA_ROWS = 32


class AttentionBackward(Kernel):
    """dq, dk and dv of attention of q[batch, q_heads, sequence, head_dim] to k and v[batch,
    kv_heads, sequence, head_dim]; dims batch, q_heads, kv_heads, sequence, head_dim, causal and
    dtype.

    Inputs are q, k, v, the attention's output `out`, its gradient `dout`, and lse[batch, q_heads,
    sequence], the natural logarithms of the softmax's sums in float32. Each head of k and v serves
    a group of q_heads / kv_heads heads of q. causal: query i sees keys 0 to i only.
    """

    name = "attention_backward"
    edges = (
        "inf",
        "-inf",
        "nan",
        "half inf",
        "half -inf",
        "half nan",
    )
    dims = Dims(
        batch=2**15,
        q_heads=MOST_HEADS,
        kv_heads=MOST_HEADS,
        sequence=2**20,
        head_dim=HEAD_DIMS,
        causal=bool,
        dtype=DTYPES,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 32, 8, 8192, 128, True, "bfloat16"),  # Llama-3 8B
            (1, 64, 8, 4096, 128, True, "bfloat16"),  # Llama-3 70B, Qwen3 32B
            (4, 32, 8, 2048, 128, True, "bfloat16"),  # Mistral 7B, Mixtral
            (2, 16, 16, 4096, 256, True, "bfloat16"),  # Gemma 7B
            (16, 12, 12, 1024, 64, True, "float16"),  # GPT-2
            (32, 16, 16, 512, 64, False, "bfloat16"),  # BERT large
            (16, 16, 16, 577, 64, False, "bfloat16"),  # ViT-L/14 of 336 x 336 pixels
        )

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        super().check_workload(workload)
        check_groups(where, workload)
        if workload["sequence"] == 1:
            raise WorkloadError(
                f"{where}: with a single key, the gradients of q and k are 0",
                "give a sequence of at least 2",
            )
        if prod(_shapes(workload)["lse"]) > MAX_SIZE:
            raise WorkloadError(
                f"{where}: there are more than {MAX_SIZE} queries", "give a smaller batch"
            )

    def small_workload(self, workload: Workload) -> Workload:
        group = min(group_of(workload), 2)
        return workload.with_dims(batch=1, kv_heads=1, q_heads=group, sequence=139)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source, shapes = generator(seed, device), _shapes(workload)
        scales = {**SCALES, "dout": 1.0}
        inputs = {
            name: random_tensor(workload.spec(*shapes[name]), source, device, scale)
            for name, scale in scales.items()
        }
        if device == "meta":
            out = random_tensor(workload.spec(*shapes["q"]), None, device)
            lse = random_tensor(workload.spec(*shapes["lse"], dtype="float32"), None, device)
        else:
            import torch

            mask = Mask(bool(workload["causal"]))
            found = [exact_attention(q, k, v, mask=mask) for q, k, v in _batches(inputs, *SCALES)]
            out = torch.stack([each for each, _ in found]).to(inputs["q"].dtype)
            lse = torch.stack([sums for _, sums in found]).float()
        return inputs | {"out": out, "lse": lse}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shapes = _shapes(workload)
        return {f"d{name}": workload.spec(*shapes[name]) for name in SCALES}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return {"delta": workload.spec(*_shapes(workload)["lse"], dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64 from q, k, v and dout, a head and some queries at a time."""
        import torch

        mask = Mask(bool(workload["causal"]))
        each = _batches(inputs, *SCALES, "dout")
        found = zip(*(exact_gradients(*one, mask=mask) for one in each), strict=True)
        return dict(zip(("dq", "dk", "dv"), map(torch.stack, map(list, found)), strict=True))

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the weights, the slopes of the scores and the result."""
        relative = 2 * ROUNDING[workload.text("dtype")]
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        size = workload.size("sequence")
        pairs = Mask(bool(workload["causal"])).pairs(size, size)
        heads = workload.size("batch") * workload.size("q_heads")
        return 10.0 * heads * pairs * workload.size("head_dim")

    def space(self, workload: Workload) -> SearchSpace:
        return backward_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows = prod(_shapes(workload)["lse"])
        constants = {"HEAD_DIM": workload.size("head_dim"), "BLOCK": _DELTA_ROWS, "num_warps": 4}
        arguments = (tensors["out"], tensors["dout"], tensors["delta"], rows)
        return [
            Launch(delta_kernel, (ceil_div(rows, _DELTA_ROWS),), arguments, constants),
            _gradient_launch(workload, config, tensors, "kv"),
            _gradient_launch(workload, config, tensors, "q"),
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        return gradient_baselines(bool(workload["causal"]))


def _gradient_launch(workload: Workload, config: Config, tensors: Tensors, launch: str) -> Launch:
    """The launch for dk and dv (`kv`), over blocks of keys, or for dq (`q`), over queries."""
    size, dim = workload.sizes("sequence", "head_dim")
    block_m, block_n = (integer(config, f"{launch}_BLOCK_{side}") for side in "MN")
    keys = launch == "kv"
    blocks = ceil_div(size, block_n if keys else block_m)
    heads = workload.size("batch") * workload.size("kv_heads" if keys else "q_heads")
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "HEAD_DIM": dim,
        "GROUP": group_of(workload),
        "CAUSAL": bool(workload["causal"]),
        "EVEN_M": size % block_m == 0,
        "EVEN_N": size % block_n == 0,
        "num_warps": config[f"{launch}_warps"],
        "num_stages": config[f"{launch}_stages"],
    }
    names = ("q", "k", "v", "dout", "lse", "delta", *(("dk", "dv") if keys else ("dq",)))
    scales = (log2(euler) / sqrt(dim), 1 / sqrt(dim))
    arguments = (*(tensors[name] for name in names), size, blocks, *scales)
    fn = key_gradients_kernel if keys else query_gradients_kernel
    return Launch(fn, (heads * blocks,), arguments, constants)


def _shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    batch, size, dim = workload.sizes("batch", "sequence", "head_dim")
    q = (batch, workload.size("q_heads"), size, dim)
    k = (batch, workload.size("kv_heads"), size, dim)
    return {"q": q, "k": k, "v": k, "dout": q, "lse": q[:3]}


def _batches(inputs: Tensors, *names: str) -> list[tuple[torch.Tensor, ...]]:
    """The named tensors of each batch."""
    return list(zip(*(inputs[name] for name in names), strict=True))
