"""What MoE tables of vLLM and SGLang share: keys of E and N, rows by tokens, our `moe_matmul`.

E is the number of experts of one device and N the intermediate size of one device, both read from
the shape of the second weights. Hidden size, experts per token and activation are not in the name:
two models may need the same file. One row configures both products of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from search_spaces.errors import TunerError
from search_spaces.records import Config, Value, Workload
from tuner.integrations.adapter import Adapter, Place, Shape, TableKey, split_name
from tuner.integrations.model_configs import (
    Experts,
    Quantization,
    divide,
    experts_of,
    quantization_of,
)

#: The products that the libraries launch; `gate_up_silu` is a kernel of our own.
GEMMS = ("gate_up", "down")
_DTYPE = "bfloat16"
#: The dim `quantized` of our kernel by dtype and block shape of a key; empty: 16-bit weights.
_QUANTIZED: Mapping[tuple[str, tuple[int, int] | None], str] = {
    ("", None): "",
    ("fp8_w8a8", (128, 128)): "fp8_block128",
    ("fp8_w8a8", None): "fp8_tensor",
    ("int8_w8a16", None): "int8_channel",
}
_STORED = {name: Quantization(dtype, block) for (dtype, block), name in _QUANTIZED.items()}


def moe_key(experts: int, intermediate: int, found: Quantization) -> TableKey:
    """The key of a layer on one device."""
    sizes = (("E", experts), ("N", intermediate))
    return TableKey(sizes, found.dtype, found.block_shape)


def tile_row(rows: int, cols: int, step: int, group: int, warps: int, stages: int) -> Config:
    """A row of a table: sides of the tile, then the group of rows, warps and stages."""
    tile = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": cols, "BLOCK_SIZE_K": step}
    return {**tile, "GROUP_SIZE_M": group, "num_warps": warps, "num_stages": stages}


def _find_quantized(key: TableKey) -> str | None:
    """The dim `quantized` of the workloads of a key; None where our kernel computes no such."""
    return _QUANTIZED.get((key.dtype, key.block_shape))


class MoeAdapter(Adapter):
    """Tables of the fused MoE kernel that vLLM wrote and SGLang took over."""

    kernels = ("moe_matmul",)
    covers = "experts of 16-bit weights, fp8_w8a8 by 128 x 128 blocks or tensors, and int8_w8a16"
    parts = GEMMS
    size_dims: ClassVar[Mapping[str, str]] = {"moe_matmul": "tokens"}
    required = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")

    def shapes(
        self, model: Mapping[str, Any], tensor_parallel: int = 1, expert_parallel: int = 1
    ) -> list[Shape]:
        """expert_parallel: experts are divided over devices whole; 1: each over tensor_parallel."""
        experts, found = experts_of(model), quantization_of(model)
        if experts is None or found is None:
            return []
        count = divide(experts.count, expert_parallel, "the number of experts")
        by = 1 if expert_parallel > 1 else tensor_parallel
        inner = divide(experts.intermediate, by, "the intermediate size of an expert")
        return [self._shape(one, inner, found) for one in self._variants(experts, count)]

    def _variants(self, experts: Experts, count: int) -> list[Experts]:
        return [Experts(count, experts.top_k, experts.hidden, experts.intermediate)]

    def _shape(self, experts: Experts, inner: int, found: Quantization) -> Shape:
        dims = {
            "experts": experts.count,
            "top_k": min(experts.top_k, experts.count),
            "hidden": experts.hidden,
            "intermediate": inner,
        }
        return Shape(self._key(experts.count, inner, found), "experts", dims)

    def _key(self, count: int, inner: int, found: Quantization) -> TableKey:
        return moe_key(count, inner, found)

    def workloads(self, shape: Shape, size: int) -> list[tuple[str, Workload]]:
        """Both products of the layer; none for weights that our kernel does not take."""
        quantized = _find_quantized(shape.key)
        if quantized is None or shape.key.marks:
            return []
        dims = {"tokens": size, **shape.dims, "dtype": _DTYPE}
        dims |= {"quantized": quantized} if quantized else {}
        return [("moe_matmul", Workload.of(**dims, gemm=gemm)) for gemm in GEMMS]

    def place(self, kernel: str, workload: Workload) -> Place | None:
        if kernel != "moe_matmul" or workload.text("gemm") not in GEMMS:
            return None
        stored = _STORED[f"{workload.get('quantized') or ''}"]
        key = moe_key(workload.size("experts"), workload.size("intermediate"), stored)
        rest = (
            ("top_k", workload.size("top_k")),
            ("hidden", workload.size("hidden")),
            ("dtype", workload.text("dtype")),
        )
        return Place(key, workload.size("tokens"), workload.text("gemm"), rest)

    def dims(self, kernel: str, key: TableKey) -> Mapping[str, Value] | None:
        quantized = _find_quantized(key)
        if quantized is None or "per_channel_quant" in key.marks:
            return None
        dims: dict[str, Value] = {"experts": key.size("E"), "intermediate": key.size("N")}
        # None: workloads without this dim.
        dims["quantized"] = quantized or None
        return {**dims, "gemm": "down"} if "down" in key.marks else dims

    def parsed_name(self, name: str) -> tuple[TableKey, str] | None:
        return split_name(name, ("E", "N"))

    def translate(self, kernel: str, config: Config) -> Config:
        """`moe_matmul` has the libraries' parameters; any other one has no place in a row."""
        if reason := self.refusal(config):
            raise TunerError(f"{self.name}: {reason}", f"export {kernel} as `tuner` or `triton`")
        return dict(config)

    def translate_back(self, kernel: str, config: Config) -> Config:
        names = (*self.required, "num_warps", "num_stages")
        usual = {"num_warps": 4, "num_stages": 3}
        return {name: config.get(name, usual.get(name)) for name in names}
