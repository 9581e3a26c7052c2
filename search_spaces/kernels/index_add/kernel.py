"""Rows added to the rows of a table, with repeated numbers.

Memory-bound: the least traffic is one read of the table and of the added rows and one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.index_add.space import SPREADS, default_point, index_add_space
from search_spaces.kernels.index_add.triton_kernels import (
    atomic_add_kernel,
    copy_kernel,
    empty_lists_kernel,
    link_kernel,
    sum_lists_kernel,
)
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

_COPIED, _COPY_WARPS = 4096, 8
_LINKED = 256


class IndexAdd(Kernel):
    """out = base with rows[tokens, dim] added at index[tokens]; dims tokens, vocab, dim, spread and
    dtype.

    base and out are [vocab, dim]; index is int64. spread: how often each number comes: `uniform`,
    or `zipf` as words of a language, the n-th most frequent in proportion to 1 / n. Sums are
    float32 and rounded once; their order is open.
    """

    name = "index_add"
    edges = ALL_EDGES
    # 16 lists for each row of the largest table are numbered in 32 bits.
    dims = Dims(tokens=2**30, vocab=2**26, dim=2**20, spread=SPREADS, dtype=DTYPES)
    small = {"tokens": 61, "vocab": 31, "dim": 301}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 151936, 2048, "uniform", "bfloat16"),  # Qwen3 1.7B's embedding
            (8192, 128256, 4096, "zipf", "float32"),  # Llama-3 8B's, main gradients
            (32768, 4096, 2048, "uniform", "bfloat16"),  # outputs of Qwen3 30B's experts
            (8192, 4096, 4096, "uniform", "bfloat16"),  # of Mixtral's experts
            (1048576, 1000000, 64, "uniform", "float32"),  # a table of DLRM
            (1048576, 1000000, 64, "zipf", "float32"),
            (1166243, 169343, 128, "uniform", "float32"),  # messages of ogbn-arxiv
            (65536, 1024, 128, "uniform", "float32"),  # EnCodec's codebook
            (2048, 51866, 1280, "uniform", "float16"),  # Whisper large-v3's decoder
            (4095, 307, 771, "uniform", "float32"),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        tokens, vocab, dim = workload.sizes("tokens", "vocab", "dim")
        source = generator(seed, device)
        spec = workload.spec(tokens, dtype="int64")
        if workload["spread"] == "zipf" and device != "meta":
            index = _frequent_first(tokens, vocab, source, device)
        else:
            index = random_tensor(spec, source, device, limits=(0, vocab))
        return {
            "base": random_tensor(workload.spec(vocab, dim), source, device),
            "index": index,
            "rows": random_tensor(workload.spec(tokens, dim), source, device),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("vocab", "dim")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        vocab, tokens = workload.sizes("vocab", "tokens")
        if config["method"] == "lists":
            heads = vocab * integer(config, "chains")
            return {
                "head": workload.spec(heads, dtype="int32"),
                "next": workload.spec(tokens, dtype="int32"),
            }
        if workload["dtype"] == "float32":
            return {}
        return {"sum": workload.spec(vocab, "dim", dtype="float32")}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the output, and of sums in float32 in any order.

        A running sum of n terms of size one is off by about n * 2^-24 (Higham, 2002, section 4.2:
        its n roundings are of partial sums, of the size of the square root of their number).
        """
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, 4 * relative + _most_added(workload) * 2.0**-24)

    def flops(self, workload: Workload) -> float:
        tokens, _vocab, dim = workload.sizes("tokens", "vocab", "dim")
        return float(tokens * dim)

    def space(self, workload: Workload) -> SearchSpace:
        return index_add_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if config["method"] == "lists":
            return _by_lists(workload, config, tensors)
        base, out = tensors["base"], tensors["out"]
        tokens, dim = workload.sizes("tokens", "dim")
        total = tensors.get("sum", out)
        grid = (
            ceil_div(tokens, integer(config, "BLOCK_R")),
            ceil_div(dim, integer(config, "BLOCK_D")),
        )
        arguments = (tensors["index"], tensors["rows"], total, tokens)
        added = Launch(atomic_add_kernel, grid, arguments, _tile_constants(workload, config))
        copied = [_copy(base, total), added]
        return copied if total is out else [*copied, _copy(total, out)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(base: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return base.index_add(0, index, rows)

        return eager


def _most_added(workload: Workload) -> float:
    """Rows that are added to one row of the table, at most, by expectation."""
    tokens, vocab = workload.sizes("tokens", "vocab")
    return tokens / (log(vocab + 1) if workload["spread"] == "zipf" else vocab)


def _frequent_first(
    tokens: int, vocab: int, source: torch.Generator | None, device: str
) -> torch.Tensor:
    """Numbers of which the n-th most frequent comes in proportion to 1 / n."""
    import torch

    drawn = torch.rand(tokens, generator=source, device=device, dtype=torch.float64)
    # (vocab + 1) ** u is between n and n + 1 in proportion to log(n + 1) - log(n).
    rank = ((vocab + 1.0) ** drawn).long().sub_(1).clamp_(0, vocab - 1)
    return torch.randperm(vocab, generator=source, device=device)[rank]


def _tile_constants(workload: Workload, config: Config) -> dict[str, object]:
    return {
        "DIM": workload.size("dim"),
        "BLOCK_R": config["BLOCK_R"],
        "BLOCK_D": config["BLOCK_D"],
        "num_warps": config["num_warps"],
    }


def _copy(source: torch.Tensor, target: torch.Tensor) -> Launch:
    elements = target.numel()
    constants = {"BLOCK": _COPIED, "num_warps": _COPY_WARPS}
    grid = (ceil_div(elements, _COPIED),)
    return Launch(copy_kernel, grid, (source, target, elements), constants)


def _by_lists(workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
    """Empty the lists, put each added row into one, and sum along them."""
    tokens, vocab, dim = workload.sizes("tokens", "vocab", "dim")
    head, following, chains = tensors["head"], tensors["next"], integer(config, "chains")
    lists = vocab * chains
    grid = (
        ceil_div(vocab, integer(config, "BLOCK_R")),
        ceil_div(dim, integer(config, "BLOCK_D")),
    )
    summed = (tensors["base"], tensors["rows"], head, following, tensors["out"], vocab)
    return [
        Launch(empty_lists_kernel, (ceil_div(lists, _COPIED),), (head, lists), {"BLOCK": _COPIED}),
        Launch(
            link_kernel,
            (ceil_div(tokens, _LINKED),),
            (tensors["index"], head, following, tokens),
            {"CHAINS": chains, "BLOCK": _LINKED},
        ),
        Launch(
            sum_lists_kernel,
            grid,
            summed,
            {**_tile_constants(workload, config), "CHAINS": chains},
        ),
    ]
