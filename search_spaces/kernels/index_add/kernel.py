"""Rows added to the rows of a table, with repeated numbers.

Memory-bound: the least traffic is one read of the table and of the added rows and one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.index_add.space import SPREADS, default_point, index_add_space
from search_spaces.kernels.index_add.triton_kernels import (
    atomic_add_kernel,
    copy_kernel,
    empty_lists_kernel,
    link_kernel,
    sum_lists_kernel,
)
from search_spaces.kernels.launch_limits import integer
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

#: 16 lists for each row of the largest table are numbered in 32 bits.
_LARGEST = {"tokens": 2**30, "vocab": 2**26, "dim": 2**20}
_INDEX_BYTES = 8
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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 151936, 2048, "uniform", "bfloat16"),  # Qwen3 1.7B's embedding
            _workload(8192, 128256, 4096, "zipf", "float32"),  # Llama-3 8B's, main gradients
            _workload(32768, 4096, 2048, "uniform", "bfloat16"),  # outputs of Qwen3 30B's experts
            _workload(8192, 4096, 4096, "uniform", "bfloat16"),  # of Mixtral's experts
            _workload(1048576, 1000000, 64, "uniform", "float32"),  # a table of DLRM
            _workload(1048576, 1000000, 64, "zipf", "float32"),
            _workload(1166243, 169343, 128, "uniform", "float32"),  # messages of ogbn-arxiv
            _workload(65536, 1024, 128, "uniform", "float32"),  # EnCodec's codebook
            _workload(2048, 51866, 1280, "uniform", "float16"),  # Whisper large-v3's decoder
            _workload(4095, 307, 771, "uniform", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(self.name, workload, sizes=_LARGEST, dtypes=DTYPES, choices={"spread": SPREADS})

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(tokens=61, vocab=31, dim=301)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        tokens, vocab, dim = (workload.size(name) for name in ("tokens", "vocab", "dim"))
        source, dtype = generator(seed, device), workload.text("dtype")
        spec = TensorSpec((tokens,), "int64")
        if workload["spread"] == "zipf" and device != "meta":
            index = _frequent_first(tokens, vocab, source, device)
        else:
            index = random_tensor(spec, source, device, limits=(0, vocab))
        return {
            "base": random_tensor(TensorSpec((vocab, dim), dtype), source, device),
            "index": index,
            "rows": random_tensor(TensorSpec((tokens, dim), dtype), source, device),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("vocab"), workload.size("dim"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        vocab, tokens = workload.size("vocab"), workload.size("tokens")
        if config["method"] == "lists":
            heads = vocab * integer(config, "chains")
            return {"head": TensorSpec((heads,), "int32"), "next": TensorSpec((tokens,), "int32")}
        if workload["dtype"] == "float32":
            return {}
        return {"sum": TensorSpec((vocab, workload.size("dim")), "float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        out = inputs["base"].double()
        return {"out": out.index_add_(0, inputs["index"], inputs["rows"].double())}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the output, and of sums in float32 in any order.

        A running sum of n terms of size one is off by about n * 2^-24 (Higham, 2002, section 4.2:
        its n roundings are of partial sums, of the size of the square root of their number).
        """
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, 4 * relative + _most_added(workload) * 2.0**-24)

    def cost(self, workload: Workload) -> Cost:
        tokens, vocab, dim = (workload.size(name) for name in ("tokens", "vocab", "dim"))
        moved = (2 * vocab + tokens) * dim * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=float(tokens * dim), bytes=float(moved + tokens * _INDEX_BYTES))

    def space(self, workload: Workload) -> SearchSpace:
        return index_add_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if config["method"] == "lists":
            return _by_lists(workload, config, tensors)
        base, out = tensors["base"], tensors["out"]
        tokens, dim = workload.size("tokens"), workload.size("dim")
        total = tensors.get("sum", out)
        grid = (
            ceil_div(tokens, integer(config, "BLOCK_R")),
            ceil_div(dim, integer(config, "BLOCK_D")),
        )
        arguments = (tensors["index"], tensors["rows"], total, tokens)
        added = Launch(atomic_add_kernel, grid, arguments, _tile_constants(workload, config))
        copied = [_copy(base, total), added]
        return copied if total is out else [*copied, _copy(total, out)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(base: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return base.index_add(0, index, rows)

        names = ("base", "index", "rows")
        return {
            "eager": named("out", eager, *names),
            "compile": named("out", compiled(eager), *names),
        }


def _workload(tokens: int, vocab: int, dim: int, spread: str, dtype: str) -> Workload:
    return Workload.of(tokens=tokens, vocab=vocab, dim=dim, spread=spread, dtype=dtype)


def _most_added(workload: Workload) -> float:
    """Rows that are added to one row of the table, at most, by expectation."""
    tokens, vocab = workload.size("tokens"), workload.size("vocab")
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
    tokens, vocab, dim = (workload.size(name) for name in ("tokens", "vocab", "dim"))
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
