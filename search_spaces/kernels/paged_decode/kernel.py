"""Attention of one query per sequence over a paged cache, split over the keys.

Memory-bound: the least traffic is one read of the keys and values of every sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e as euler
from math import log2, prod, sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.masked_attention import (
    DTYPES,
    MOST_HEADS,
    MOST_TOKENS,
    Mask,
    attention_tolerance,
    check_groups,
    exact_attention,
    group_of,
    shuffled,
)
from search_spaces.kernels.paged_decode.space import (
    LEAST_ROWS,
    decode_space,
    default_point,
    keys_per_split,
    parts,
)
from search_spaces.kernels.paged_decode.torch_paged import paged_baselines
from search_spaces.kernels.paged_decode.triton_kernels import (
    combine_splits_kernel,
    paged_decode_kernel,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

HEAD_DIMS = (64, 96, 128, 192, 256)
PAGE_SIZES = (16, 32, 64, 128, 256)
_INDEX_BYTES = 4
#: float32 values that a warp of the combining launch reads at least.
_WARP_VALUES = 512


class PagedDecode(Kernel):
    """Attention of q[sequences, q_heads, head_dim] to pages of k_cache and v_cache[pages,
    page_size, kv_heads, head_dim]; dims sequences, q_heads, kv_heads, keys, page_size, head_dim
    and dtype.

    Row i of block_table[sequences, keys / page_size] lists the pages of sequence i, which stand in
    the cache in an order drawn from the seed. lengths[sequences] are its keys: they lie on a
    straight line up to `keys`, the longest, in an order drawn from the seed. Each head of the cache
    serves a group of q_heads / kv_heads heads of q.
    """

    name = "paged_decode"
    edges = SPECIAL_EDGES
    dims = Dims(
        sequences=2**15,
        q_heads=MOST_HEADS,
        kv_heads=MOST_HEADS,
        keys=MOST_TOKENS,
        page_size=PAGE_SIZES,
        head_dim=HEAD_DIMS,
        dtype=DTYPES,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 32, 8, 8192, 16, 128, "bfloat16"),  # Llama-3 8B
            (64, 64, 8, 8192, 16, 128, "bfloat16"),  # Llama-3 70B
            (1, 32, 8, 32768, 16, 128, "bfloat16"),  # Llama-3 8B, one long request
            (128, 64, 4, 4096, 64, 128, "bfloat16"),  # Qwen3 235B
            (32, 64, 8, 8192, 64, 64, "bfloat16"),  # GPT-OSS 120B
            (16, 16, 8, 8192, 16, 256, "bfloat16"),  # Gemma-3 12B
            (16, 32, 32, 4096, 16, 96, "bfloat16"),  # Phi-3 mini
            (7, 40, 8, 3001, 16, 128, "float16"),  # Qwen3 14B's groups of 5
        )

    def check_workload(self, workload: Workload) -> None:
        where = f"{self.name} [{workload.key}]"
        super().check_workload(workload)
        check_groups(where, workload)
        if workload.size("sequences") * _pages(workload) > MAX_SIZE:
            raise WorkloadError(
                f"{where}: there are more than {MAX_SIZE} pages", "give fewer sequences or keys"
            )

    def small_workload(self, workload: Workload) -> Workload:
        group = min(group_of(workload), 3)
        return workload.with_dims(sequences=4, kv_heads=1, q_heads=group, keys=333)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source = generator(seed, device)
        shapes, scales = _shapes(workload), {"q": 2.0}
        inputs = {
            name: random_tensor(workload.spec(*shape), source, device, scales.get(name, 1.0))
            for name, shape in shapes.items()
        }
        sequences, pages = workload.size("sequences"), _pages(workload)
        if device == "meta":
            return inputs | {
                "block_table": random_tensor(
                    workload.spec(sequences, pages, dtype="int32"), None, device
                ),
                "lengths": random_tensor(workload.spec(sequences, dtype="int32"), None, device),
            }
        import torch

        order = torch.randperm(sequences * pages, generator=source, device=device)
        return inputs | {
            "block_table": order.to(torch.int32).view(sequences, pages),
            "lengths": shuffled(_lengths(workload), source, device),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*_shapes(workload)["q"])}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "splits")
        if splits == 1:
            return {}
        sequences, heads, dim = _shapes(workload)["q"]
        each = workload.spec(sequences, heads, splits, dtype="float32")
        partial = workload.spec(sequences, heads, splits, dim, dtype="float32")
        return {"partial": partial, "peak": each, "total": each}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, a sequence after the other."""
        import torch

        found = []
        for at, length in enumerate(inputs["lengths"].tolist()):
            pages = inputs["block_table"][at].long()
            k, v = (
                inputs[name][pages].flatten(0, 1)[:length].transpose(0, 1)
                for name in ("k_cache", "v_cache")
            )
            query = inputs["q"][at][:, None]
            found.append(exact_attention(query, k, v, mask=Mask(False))[0][:, 0])
        return {"out": torch.stack(found)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return attention_tolerance(workload.text("dtype"))

    def cost(self, workload: Workload) -> Cost:
        keys, dim = sum(_lengths(workload)), workload.size("head_dim")
        q = prod(_shapes(workload)["q"])
        cached = 2 * keys * workload.size("kv_heads") * dim
        moved = (cached + 2 * q) * ELEMENT_BYTES[workload.text("dtype")]
        pages = sum(ceil_div(length, workload.size("page_size")) for length in _lengths(workload))
        indices = (pages + workload.size("sequences")) * _INDEX_BYTES
        flops = 4.0 * keys * workload.size("q_heads") * dim
        return Cost(flops=flops, bytes=float(moved + indices))

    def space(self, workload: Workload) -> SearchSpace:
        return decode_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        splits = integer(config, "splits")
        if splits == 1:
            out = tensors["out"]
            return [_decode_launch(workload, config, tensors, (out, None, None))]
        results = (tensors["partial"], tensors["peak"], tensors["total"])
        return [
            _decode_launch(workload, config, tensors, results),
            _combine_launch(workload, splits, (*results, tensors["out"])),
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        return paged_baselines(workload.size("keys"))


def _decode_launch(
    workload: Workload,
    config: Config,
    tensors: Tensors,
    results: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
) -> Launch:
    heads, dim = integer(config, "heads"), workload.size("head_dim")
    constants = {
        "KV_HEADS": workload.size("kv_heads"),
        "GROUP": group_of(workload),
        "HEADS": heads,
        "ROWS": 1 if heads == 1 else max(LEAST_ROWS, heads),
        "HEAD_DIM": dim,
        "BLOCK_D": next_power_of_two(dim),
        "PAGE": workload.size("page_size"),
        "BLOCK_N": config["BLOCK_N"],
        "SPLITS": config["splits"],
        "LOAD_STAGES": config["stages"],
        "num_warps": config["num_warps"],
    }
    grid = (
        workload.size("kv_heads") * parts(config, workload),
        workload.size("sequences"),
        integer(config, "splits"),
    )
    arguments = (
        *(tensors[name] for name in ("q", "k_cache", "v_cache", "block_table", "lengths")),
        *results,
        _pages(workload),
        keys_per_split(config, workload),
        log2(euler) / sqrt(dim),
    )
    return Launch(paged_decode_kernel, grid, arguments, constants)


def _combine_launch(workload: Workload, splits: int, tensors: tuple[torch.Tensor, ...]) -> Launch:
    sequences, heads, dim = _shapes(workload)["q"]
    block = next_power_of_two(dim)
    constants = {
        "HEAD_DIM": dim,
        "BLOCK_D": block,
        "SPLITS": splits,
        "num_warps": max(1, min(4, splits * block // _WARP_VALUES)),
    }
    return Launch(combine_splits_kernel, (sequences * heads,), tensors, constants)


def _lengths(workload: Workload) -> list[int]:
    """Keys of the sequences, from a fraction of the longest on."""
    keys, sequences = workload.sizes("keys", "sequences")
    return [ceil_div(keys * (at + 1), sequences) for at in range(sequences)]


def _pages(workload: Workload) -> int:
    return ceil_div(workload.size("keys"), workload.size("page_size"))


def _shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    sequences, dim = workload.sizes("sequences", "head_dim")
    pages = sequences * _pages(workload)
    cache = (pages, workload.size("page_size"), workload.size("kv_heads"), dim)
    return {"q": (sequences, workload.size("q_heads"), dim), "k_cache": cache, "v_cache": cache}
