"""Attention of query heads in groups, forward, fused in Triton as FlashAttention is.

Bound by arithmetic for long sequences and by reads of keys and values for few queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from search_spaces.declaration.dimensions import check_dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.grouped_attention.launch import HEAD_DIMS, grouped_launch
from search_spaces.kernels.grouped_attention.space import default_point, grouped_space
from search_spaces.kernels.launch_limits import MAX_SIZE
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
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator, random_tensor

if TYPE_CHECKING:
    from search_spaces.kernel import Tensors


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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(1, 32, 8, 8192, 8192, 128, True),  # Llama-3 8B
            _workload(1, 64, 8, 4096, 4096, 128, True),  # Llama-3 70B, Qwen3 32B
            _workload(32, 64, 8, 1, 4096, 128, False),  # Llama-3 70B, decoding 32 requests
            _workload(4, 32, 8, 512, 8192, 128, True),  # Llama-3 8B, a chunk of a long prompt
            _workload(16, 32, 8, 4, 4096, 128, True),  # Mixtral, verifying 4 speculated tokens
            _workload(1, 64, 4, 4096, 4096, 128, True),  # Qwen3 235B
            _workload(1, 64, 8, 8192, 8192, 64, True, window=128),  # GPT-OSS 120B
            _workload(1, 32, 8, 8192, 8192, 128, True, window=4096),  # Mistral 7B
            _workload(1, 16, 8, 8192, 8192, 256, True, window=1024),  # Gemma-3 12B
            _workload(2, 16, 16, 4096, 4096, 256, True),  # Gemma 7B
            _workload(1, 32, 32, 4096, 4096, 96, True),  # Phi-3 mini
            _workload(1, 128, 128, 4096, 4096, 192, True, value_dim=128),  # DeepSeek-V3
            _workload(8, 20, 20, 1500, 1500, 64, False, dtype="float16"),  # Whisper large-v3
        ]

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        check_dims(
            self.name,
            workload,
            sizes={
                "batch": 2**15,
                "q_heads": MOST_HEADS,
                "kv_heads": MOST_HEADS,
                "queries": MOST_TOKENS,
                "keys": MOST_TOKENS,
                "window": MOST_TOKENS,
            },
            dtypes=DTYPES,
            flags=("causal",),
            choices={"head_dim": HEAD_DIMS},
            optional=("value_dim",),
            zeros=("window",),
        )
        check_groups(where, workload)
        check_window(where, workload)
        queries, keys = workload.size("queries"), workload.size("keys")
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
        queries, keys = workload.size("queries"), workload.size("keys")
        few = min(queries, 77)
        return workload.with_dims(
            batch=1,
            kv_heads=2,
            q_heads=2 * min(group_of(workload), 3),
            queries=few,
            keys=few if queries == keys else few + 130,
            window=min(workload.size("window"), 37),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source, dtype, shapes = generator(seed, device), workload.text("dtype"), _shapes(workload)
        return {
            name: random_tensor(TensorSpec(shapes[name], dtype), source, device, scale)
            for name, scale in SCALES.items()
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": TensorSpec(_shapes(workload)["out"], workload.text("dtype"))}

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

    def cost(self, workload: Workload) -> Cost:
        shapes = _shapes(workload)
        pairs = mask_of(workload).pairs(workload.size("queries"), workload.size("keys"))
        columns = shapes["q"][-1] + shapes["v"][-1]
        heads = workload.size("batch") * workload.size("q_heads")
        elements = sum(map(prod, shapes.values()))
        moved = float(elements * ELEMENT_BYTES[workload.text("dtype")])
        return Cost(flops=2.0 * heads * pairs * columns, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        return grouped_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        return [grouped_launch(workload, config, tensors)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        queries, keys = workload.size("queries"), workload.size("keys")
        return attention_baselines(mask_of(workload), queries, keys)


def _workload(
    batch: int,
    q_heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    causal: bool,
    *,
    window: int = 0,
    dtype: str = "bfloat16",
    **optional: int,
) -> Workload:
    return Workload.of(
        batch=batch,
        q_heads=q_heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        causal=causal,
        window=window,
        dtype=dtype,
        **optional,
    )


def _shapes(workload: Workload) -> dict[str, tuple[int, int, int, int]]:
    batch, queries, keys = (workload.size(name) for name in ("batch", "queries", "keys"))
    q_heads, kv_heads = workload.size("q_heads"), workload.size("kv_heads")
    dim = workload.size("head_dim")
    value_dim = int(str(workload.get("value_dim", dim)))
    return {
        "q": (batch, q_heads, queries, dim),
        "k": (batch, kv_heads, keys, dim),
        "v": (batch, kv_heads, keys, value_dim),
        "out": (batch, q_heads, queries, value_dim),
    }
