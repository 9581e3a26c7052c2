"""What tables of block-scaled float8 products of vLLM and SGLang share: keys of N and K, rows by M.

Our `fp8_matmul` with scales `block128` has the same arithmetic, so its configs without descriptors
and persistence have a place in the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from search_spaces.errors import TunerError
from search_spaces.records import Config, Device, Value, Workload
from tuner.integrations.adapter import Adapter, Place, Shape, TableKey, split_name
from tuner.integrations.model_configs import products_of, quantization_of

_KERNEL, _SCALES, _CODES = "fp8_matmul", "block128", "float8_e4m3fn"
_BLOCK = (128, 128)
#: The libraries' parameters and ours.
_NAMES = {
    "BLOCK_SIZE_M": "BLOCK_M",
    "BLOCK_SIZE_N": "BLOCK_N",
    "BLOCK_SIZE_K": "BLOCK_K",
    "GROUP_SIZE_M": "GROUP_M",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
#: Parameters of ours, and the values with which the libraries' kernels do the same.
_PLAIN: Mapping[str, Value] = {
    "loads": "pointer",
    "persistent": False,
    "dot": "float8",
    "swap": False,
    "SPLIT_K": 1,
}


class BlockFp8Adapter(Adapter):
    """Tables of `w8a8_block_fp8_matmul`, which SGLang wrote and vLLM took over."""

    kernels = (_KERNEL,)
    covers = "blocks of 128 x 128"
    size_dims: ClassVar[Mapping[str, str]] = {_KERNEL: "M"}
    required = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
    #: Parameters of ours that rows may have beyond the tile, with their names there.
    more_names: ClassVar[Mapping[str, str]] = {}
    #: num_stages without a table.
    default_stages: ClassVar[int]

    def shapes(
        self, model: Mapping[str, Any], tensor_parallel: int = 1, expert_parallel: int = 1
    ) -> list[Shape]:
        """Products outside the experts; empty where the weights have no scales by blocks."""
        found = quantization_of(model)
        if found is None or found.dtype != "fp8_w8a8" or found.block_shape is None:
            return []
        return [
            Shape(
                TableKey((("N", one.cols), ("K", one.depth)), found.dtype, found.block_shape),
                one.layer,
                {"N": one.cols, "K": one.depth},
            )
            for one in products_of(model, tensor_parallel)
        ]

    def workloads(self, shape: Shape, size: int) -> list[tuple[str, Workload]]:
        if shape.key.block_shape != _BLOCK:
            return []
        dims = {"M": size, **shape.dims, "scales": _SCALES, "dtype": _CODES}
        return [(_KERNEL, Workload.of(**dims))]

    def place(self, kernel: str, workload: Workload) -> Place | None:
        if kernel != _KERNEL or workload.get("scales") != _SCALES:
            return None
        sizes = (("N", workload.size("N")), ("K", workload.size("K")))
        return Place(TableKey(sizes, "fp8_w8a8", _BLOCK), workload.size("M"))

    def dims(self, kernel: str, key: TableKey) -> Mapping[str, Value] | None:
        if key.dtype != "fp8_w8a8" or key.block_shape != _BLOCK:
            return None
        return {"N": key.size("N"), "K": key.size("K"), "scales": _SCALES, "dtype": _CODES}

    def parsed_name(self, name: str) -> tuple[TableKey, str] | None:
        """Tables of scales by channel have such names too, and a lookup and parameters of their
        own."""
        parsed = split_name(name, ("N", "K"))
        return None if parsed and parsed[0].dtype.endswith("_channelwise") else parsed

    def explain_unread(self, key: TableKey) -> str:
        if key.dtype != "fp8_w8a8" or key.block_shape is None:
            return f"the lookup of {self.name} names fp8_w8a8 and a block shape only"
        return ""

    def translate(self, kernel: str, config: Config) -> Config:
        for name, only in _PLAIN.items():
            if name not in self.more_names and config.get(name, only) != only:
                raise TunerError(
                    f"{self.name} cannot express {name}={config[name]}",
                    f"its kernel has {name}={only} only; fix that parameter in the campaign",
                )
        row = {theirs: config.get(ours, 1) for theirs, ours in _NAMES.items()}
        pairs = self.more_names.items()
        more = {theirs: config.get(ours, _PLAIN[ours]) for ours, theirs in pairs}
        return row if more == {theirs: _PLAIN[ours] for ours, theirs in pairs} else row | more

    def translate_back(self, kernel: str, config: Config) -> Config:
        usual = {"num_warps": 4, "num_stages": 3}
        found = {ours: config.get(theirs, usual.get(theirs)) for theirs, ours in _NAMES.items()}
        more = {ours: config.get(theirs, _PLAIN[ours]) for ours, theirs in self.more_names.items()}
        return {**_PLAIN, **found, **more}

    def default(self, key: TableKey, size: int, device: Device) -> Config:
        cols, step = key.block_shape or _BLOCK
        return {
            "BLOCK_SIZE_M": 64,
            "BLOCK_SIZE_N": cols,
            "BLOCK_SIZE_K": step,
            "GROUP_SIZE_M": 32,
            "num_warps": 4,
            "num_stages": self.default_stages,
        }
