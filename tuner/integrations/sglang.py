"""SGLang's tables: the fused MoE kernel and the block-scaled float8 product.

The facts are those of SGLang 0.5.23 (Apache-2.0): `moe_runner/triton_utils/
fused_moe_triton_config.py` (get_config_file_name, get_moe_configs, get_default_config) and
`kernels/ops/gemm/fp8_kernel.py` (get_w8a8_block_fp8_configs, w8a8_block_fp8_matmul_triton).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from search_spaces.records import Config, Device
from tuner.integrations.adapter import TableKey, joined_name
from tuner.integrations.block_fp8_tables import BlockFp8Adapter
from tuner.integrations.model_configs import Experts, Quantization
from tuner.integrations.moe_tables import MoeAdapter, moe_key, tile_row

_BETWEEN = " "
_DTYPES = ("", "fp8_w8a8", "int8_w8a8", "int4_w4a16", "int8_w8a16", "float32")
_VERSION = "triton_"
#: Shared memory of a block below which float8 experts get smaller tiles.
_LITTLE_SHARED = 128 * 1024


def device_word(name: str) -> str:
    """A driver's device name as SGLang writes it: spaces become underscores."""
    return name.replace(" ", "_")


class SglangMoe(MoeAdapter):
    """`E=,N=,device_name=[,dtype=][,block_shape=][_down].json`, one folder per Triton version.

    Without a file of the installed Triton the newest other version's is used. A layer's second
    product looks for a `_down` file of its own, then takes the first product's.
    """

    name = "sglang-moe"
    library = "sglang"
    version = "0.5.23"
    folder = "srt/layers/moe/moe_runner/triton_utils/configs"
    environment = "SGLANG_MOE_CONFIG_DIR"
    separate = "down"
    #: Both products take the tokens in one sorted order, which has whole blocks of rows.
    shared = ("BLOCK_SIZE_M",)
    optional = (
        "num_warps",
        "num_stages",
        "num_ctas",
        "USE_TMA",
        "SPLIT_K",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
    )

    def _variants(self, experts: Experts, count: int) -> list[Experts]:
        """With shared experts, also the layer that computes them as further experts.

        SGLang does so for DeepSeek and GLM unless --disable-shared-experts-fusion is given, and not
        where experts are divided over devices.
        """
        plain = super()._variants(experts, count)
        if not experts.shared or count != experts.count:
            return plain
        more = experts.shared
        fused = Experts(count + more, experts.top_k + more, experts.hidden, experts.intermediate)
        return [fused, *plain]

    def _key(self, count: int, inner: int, found: Quantization) -> TableKey:
        marks = ("per_channel_quant",) if found.per_channel and found.dtype else ()
        key = moe_key(count, inner, found)
        return TableKey(key.sizes, key.dtype, key.block_shape, marks)

    def separate_key(self, key: TableKey) -> TableKey | None:
        if "down" in key.marks:
            return None
        return TableKey(key.sizes, key.dtype, key.block_shape, tuple(sorted((*key.marks, "down"))))

    def file_name(self, key: TableKey, device: str) -> str:
        return joined_name(key, device_word(device), _BETWEEN)

    def export_name(self, key: TableKey, device: str, triton: str) -> str:
        """In the folder of a Triton version, which the export is for."""
        folder = f"configs/{_VERSION}{triton.replace('.', '_')}"
        return f"{folder}/{self.file_name(key, device)}"

    def explain_unread(self, key: TableKey) -> str:
        if key.dtype not in _DTYPES:
            return f"SGLang {self.version} looks for no file of dtype {key.dtype}"
        return ""

    def folders(
        self, package: Path, triton: str = "", environment: Mapping[str, str] | None = None
    ) -> list[Path]:
        """The folder of the installed Triton, then those of other versions, newest first.

        The variable names a folder with `configs` in it, which replaces the package's.
        """
        user = (environment or {}).get(self.environment, "")
        root = Path(user) / "configs" if user else package / self.folder
        own = root / f"{_VERSION}{triton.replace('.', '_')}"
        others = [path for path in root.glob(f"{_VERSION}*") if path != own]
        return [*([own] if triton else []), *sorted(others, key=_version, reverse=True)]

    def find(
        self,
        package: Path,
        key: TableKey,
        device: str,
        triton: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Path | None:
        found = super().find(package, key, device, triton, environment)
        if found or "down" not in key.marks:
            return found
        others = tuple(mark for mark in key.marks if mark != "down")
        first = TableKey(key.sizes, key.dtype, key.block_shape, others)
        return super().find(package, first, device, triton, environment)

    def default(self, key: TableKey, size: int, device: Device) -> Config:
        amd, few = device.target.startswith("hip"), size <= key.size("E")
        stages = 2 if amd else 4
        if key.dtype == "fp8_w8a8" and key.block_shape:
            cols, step = key.block_shape
            return tile_row(64, cols, step, 32, 4, min(stages, 3))
        if key.dtype == "fp8_w8a8" and 0 < device.shared_bytes < _LITTLE_SHARED:
            return tile_row(32, 64, 256, 1, 4, 4) if few else tile_row(64, 128, 256, 64, 4, 2)
        if key.dtype == "fp8_w8a8" and few:
            return tile_row(64, 128, 128, 1, 4, stages)
        if key.dtype == "fp8_w8a8":
            return tile_row(128, 256, 128, 32, 8, stages)
        # The library leaves warps and stages to Triton, whose own values these are.
        usual = 2 if amd else 3
        return tile_row(16, 32, 64, 1, 4, usual) if few else tile_row(64, 64, 32, 8, 4, usual)


def _version(path: Path) -> tuple[int, ...]:
    parts = path.name.removeprefix(_VERSION).split("_")
    return tuple(int(part) if part.isdigit() else -1 for part in parts)


class SglangBlockFp8(BlockFp8Adapter):
    """`N=,K=,device_name=,dtype=fp8_w8a8,block_shape=.json` of the block-scaled product.

    The library reads them from its package only. SWAP_AB and SPLIT_K take effect on Hopper.
    """

    name = "sglang-block-fp8"
    library = "sglang"
    version = "0.5.23"
    folder = "kernels/ops/gemm/configs"
    optional = ("num_warps", "num_stages", "num_ctas", "waves_per_eu", "SWAP_AB", "SPLIT_K")
    more_names: ClassVar[Mapping[str, str]] = {"swap": "SWAP_AB", "SPLIT_K": "SPLIT_K"}
    default_stages = 3

    def file_name(self, key: TableKey, device: str) -> str:
        return joined_name(key, device_word(device), _BETWEEN)

    def explain_unread(self, key: TableKey) -> str:
        """Tables of int8 products have their own lookup, with the same names."""
        int8 = key.dtype == "int8_w8a8" and key.block_shape
        return "" if int8 else super().explain_unread(key)

    def predict_launch(self, key: TableKey, config: Config) -> Config:
        """On NVIDIA cards: a step along K that does not divide a block of scales becomes one."""
        step = config["BLOCK_SIZE_K"]
        if key.block_shape and isinstance(step, int) and step < key.block_shape[1]:
            divides = key.block_shape[1] % step == 0
            return {**config, "BLOCK_SIZE_K": step if divides else key.block_shape[1]}
        return dict(config)
