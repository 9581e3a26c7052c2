"""Attention of packed sequences of different lengths, by the kernel of grouped attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.grouped_attention.launch import HEAD_DIMS, grouped_launch
from search_spaces.kernels.grouped_attention.space import default_point, grouped_space, longest
from search_spaces.kernels.grouped_attention.torch_varlen import packed_baselines
from search_spaces.kernels.masked_attention import (
    DTYPES,
    MOST_HEADS,
    MOST_TOKENS,
    SCALES,
    attention_tolerance,
    check_groups,
    check_window,
    exact_attention,
    group_of,
    mask_of,
    shuffled,
    spread_lengths,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

_MOST_SEQUENCES = 4096
#: Sequences of the small workload: of their bounds, only the first is 0.
_SMALL_SEQUENCES = 11


class VarlenAttention(Kernel):
    """Attention of packed q[tokens, q_heads, head_dim] to k and v[tokens, kv_heads, head_dim], a
    sequence to itself; dims tokens, sequences, q_heads, kv_heads, head_dim, causal, window and
    dtype.

    cu_seqlens[sequences + 1] are the bounds of the sequences, in int32. Their lengths lie on a
    straight line from 1 to about twice the mean, in an order drawn from the seed. The other dims
    are those of grouped_attention.
    """

    name = "varlen_attention"
    edges = SPECIAL_EDGES
    dims = Dims(
        tokens=MOST_TOKENS,
        sequences=_MOST_SEQUENCES,
        q_heads=MOST_HEADS,
        kv_heads=MOST_HEADS,
        head_dim=HEAD_DIMS,
        causal=bool,
        window=range(MOST_TOKENS + 1),
        dtype=DTYPES,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (16384, 16, 32, 8, 128, True, 0, "bfloat16"),  # Llama-3 8B, prefill of 16 requests
            (16384, 8, 64, 8, 128, True, 0, "bfloat16"),  # Llama-3 70B
            (8192, 64, 64, 4, 128, True, 0, "bfloat16"),  # Qwen3 235B, short prompts
            (16384, 16, 64, 8, 64, True, 128, "bfloat16"),  # GPT-OSS 120B
            (16384, 4, 16, 8, 256, True, 1024, "bfloat16"),  # Gemma-3 12B
            (32768, 256, 12, 12, 64, False, 0, "float16"),  # BERT base, no padding
            (9999, 7, 32, 32, 96, True, 0, "bfloat16"),  # Phi-3 mini
        )

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        super().check_workload(workload)
        check_groups(where, workload)
        check_window(where, workload)
        if workload.size("tokens") < workload.size("sequences"):
            raise WorkloadError(
                f"{where}: fewer tokens than sequences", "give each sequence a token"
            )

    def small_workload(self, workload: Workload) -> Workload:
        group = min(group_of(workload), 3)
        return workload.with_dims(
            tokens=101,
            sequences=_SMALL_SEQUENCES,
            kv_heads=1 if group > 1 else 2,
            q_heads=group if group > 1 else 2,
            window=min(workload.size("window"), 13),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source, shapes = generator(seed, device), _shapes(workload)
        inputs = {
            name: random_tensor(workload.spec(*shapes[name]), source, device, scale)
            for name, scale in SCALES.items()
        }
        sequences = workload.size("sequences")
        bounds = random_tensor(workload.spec(sequences + 1, dtype="int32"), None, device)
        if device != "meta":
            lengths = shuffled(_lengths(workload), source, device)
            bounds[0] = 0
            bounds[1:] = lengths.cumsum(0)
        return inputs | {"cu_seqlens": bounds}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*_shapes(workload)["q"])}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, a sequence after the other."""
        import torch

        lengths = inputs["cu_seqlens"].diff().tolist()
        parts = (torch.split(inputs[name].transpose(0, 1), lengths, dim=1) for name in SCALES)
        found = [
            exact_attention(*each, mask=mask_of(workload))[0].transpose(0, 1)
            for each in zip(*parts, strict=True)
        ]
        return {"out": torch.cat(found)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return attention_tolerance(workload.text("dtype"))

    def cost(self, workload: Workload) -> Cost:
        mask, shapes = mask_of(workload), _shapes(workload)
        pairs = sum(mask.pairs(length, length) for length in _lengths(workload))
        heads, dim = workload.sizes("q_heads", "head_dim")
        elements = 2 * prod(shapes["q"]) + 2 * prod(shapes["k"])
        moved = float(elements * ELEMENT_BYTES[workload.text("dtype")])
        return Cost(flops=4.0 * heads * pairs * dim, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        return grouped_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        return [grouped_launch(workload, config, tensors)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        return packed_baselines(mask_of(workload), longest(workload))


def _lengths(workload: Workload) -> list[int]:
    return spread_lengths(workload.size("tokens"), workload.size("sequences"))


def _shapes(workload: Workload) -> dict[str, tuple[int, int, int]]:
    tokens, dim = workload.sizes("tokens", "head_dim")
    q, k = ((tokens, workload.size(name), dim) for name in ("q_heads", "kv_heads"))
    return {"q": q, "k": k, "v": k}
