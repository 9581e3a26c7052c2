"""Attention of query heads in groups, forward, fused in Triton as FlashAttention is.

Bound by arithmetic for long sequences and by reads of keys and values for few queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.grouped_attention.launch import HEAD_DIMS, grouped_launch
from search_spaces.kernels.grouped_attention.space import default_point, grouped_space
from search_spaces.kernels.limits import MAX_SIZE
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
)
from search_spaces.kernels.torch_attention import attention_baselines
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors


class GroupedAttention(Kernel):
    """Attention of q[batch, q_heads, queries, head_dim] to k and v[batch, kv_heads, keys,
    head_dim]; dims batch, q_heads, kv_heads, queries, keys, head_dim, causal, window and dtype,
    optionally value_dim.

    Each head of k and v serves a group of q_heads / kv_heads heads of q. head_dim is 64, 96, 128,
    192 or 256; value_dim, where given, is that of v and the output. causal: a query sees the keys
    up to its own place, the last query being at the last key. window: a query sees at most that
    many keys, its own included; 0 is no limit. A window needs causal.
    """

    name = "grouped_attention"
    edges = SPECIAL_EDGES
    dims = Dims(
        batch=2**15,
        q_heads=MOST_HEADS,
        kv_heads=MOST_HEADS,
        queries=MOST_TOKENS,
        keys=MOST_TOKENS,
        head_dim=HEAD_DIMS,
        causal=bool,
        window=range(MOST_TOKENS + 1),
        dtype=DTYPES,
        value_dim=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 32, 8, 8192, 8192, 128, True, 0, "bfloat16"),  # Llama-3 8B
            (1, 64, 8, 4096, 4096, 128, True, 0, "bfloat16"),  # Llama-3 70B, Qwen3 32B
            (32, 64, 8, 1, 4096, 128, False, 0, "bfloat16"),  # Llama-3 70B, decoding 32 requests
            (4, 32, 8, 512, 8192, 128, True, 0, "bfloat16"),  # Llama-3 8B, a chunk of a long prompt
            (
                16,
                32,
                8,
                4,
                4096,
                128,
                True,
                0,
                "bfloat16",
            ),  # Mixtral, verifying 4 speculated tokens
            (1, 64, 4, 4096, 4096, 128, True, 0, "bfloat16"),  # Qwen3 235B
            (1, 64, 8, 8192, 8192, 64, True, 128, "bfloat16"),  # GPT-OSS 120B
            (1, 32, 8, 8192, 8192, 128, True, 4096, "bfloat16"),  # Mistral 7B
            (1, 16, 8, 8192, 8192, 256, True, 1024, "bfloat16"),  # Gemma-3 12B
            (2, 16, 16, 4096, 4096, 256, True, 0, "bfloat16"),  # Gemma 7B
            (1, 32, 32, 4096, 4096, 96, True, 0, "bfloat16"),  # Phi-3 mini
            (1, 128, 128, 4096, 4096, 192, True, 0, "bfloat16", 128),  # DeepSeek-V3
            (8, 20, 20, 1500, 1500, 64, False, 0, "float16"),  # Whisper large-v3
        )

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        super().check_workload(workload)
        check_groups(where, workload)
        check_window(where, workload)
        queries, keys = workload.sizes("queries", "keys")
        if workload["causal"] and queries > keys:
            raise WorkloadError(
                f"{where}: {queries} causal queries stand at {keys} keys, so the first see none",
                f"give keys of at least {queries}, or causal=false",
            )
        if workload.get("value_dim", HEAD_DIMS[0]) not in HEAD_DIMS:
            raise WorkloadError(
                f"{where}: value_dim is {workload['value_dim']}",
                f"use {', '.join(map(str, HEAD_DIMS))}",
            )
        for names in (("batch", "q_heads", "queries"), ("batch", "kv_heads", "keys")):
            if prod(map(workload.size, names)) > MAX_SIZE:
                raise WorkloadError(
                    f"{where}: {' x '.join(names)} is more than {MAX_SIZE}", "give a smaller batch"
                )

    def small_workload(self, workload: Workload) -> Workload:
        queries, keys = workload.sizes("queries", "keys")
        few = min(queries, 77)
        return workload.with_dims(
            batch=1,
            kv_heads=2,
            q_heads=2 * min(group_of(workload), 3),
            queries=few,
            keys=few if queries == keys else few + 130,
            window=min(workload.size("window"), 37),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shapes = _shapes(workload)
        return {name: workload.spec(*shapes[name], scale=SCALES[name]) for name in SCALES}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*_shapes(workload)["out"])}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, a head and some queries at a time."""
        import torch

        found = [
            exact_attention(*each, mask=mask_of(workload))[0]
            for each in zip(*(inputs[name] for name in SCALES), strict=True)
        ]
        return {"out": torch.stack(found)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return attention_tolerance(workload.text("dtype"))

    def flops(self, workload: Workload) -> float:
        shapes = _shapes(workload)
        pairs = mask_of(workload).pairs(workload.size("queries"), workload.size("keys"))
        columns = shapes["q"][-1] + shapes["v"][-1]
        heads = workload.size("batch") * workload.size("q_heads")
        return 2.0 * heads * pairs * columns

    def space(self, workload: Workload) -> SearchSpace:
        return grouped_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        return [grouped_launch(workload, config, tensors)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        queries, keys = workload.sizes("queries", "keys")
        return attention_baselines(mask_of(workload), queries, keys)


def _shapes(workload: Workload) -> dict[str, tuple[int, int, int, int]]:
    batch, queries, keys = workload.sizes("batch", "queries", "keys")
    q_heads, kv_heads = workload.sizes("q_heads", "kv_heads")
    dim = workload.size("head_dim")
    value_dim = int(str(workload.get("value_dim", dim)))
    return {
        "q": (batch, q_heads, queries, dim),
        "k": (batch, kv_heads, keys, dim),
        "v": (batch, kv_heads, keys, value_dim),
        "out": (batch, q_heads, queries, value_dim),
    }
