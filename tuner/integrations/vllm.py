"""vLLM's tables: the fused MoE kernel and the block-scaled float8 product.

The facts are those of vLLM 0.33.0 (Apache-2.0): `fused_moe/fused_moe.py` (get_config_file_name,
get_moe_configs, get_default_config, try_get_optimal_moe_config), `fused_moe/config.py`
(_get_config_dtype_str), `quantization/utils/fp8_utils.py` (get_w8a8_block_fp8_configs).
"""

from __future__ import annotations

import re

from search_spaces.errors import TunerError
from search_spaces.records import Config, Device
from tuner.integrations.adapter import TableKey, joined_name
from tuner.integrations.block_fp8_tables import BlockFp8Adapter
from tuner.integrations.model_configs import Quantization
from tuner.integrations.moe_tables import MoeAdapter, moe_key, tile_row

#: The dtypes of `_get_config_dtype_str`; files of any other are never looked for.
_DTYPES = ("", "fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32")
#: Steps of get_default_config: the largest M of each value.
_ROWS, _MOST_ROWS = ((32, 16), (96, 32), (512, 64)), 128
_FEW, _GROUPED, _WIDE = 64, 128, 128


def device_word(name: str) -> str:
    """A driver's device name as vLLM writes it: runs of spaces and slashes become underscores."""
    return re.sub(r"[\s/]+", "_", name)


class VllmMoe(MoeAdapter):
    """`E=,N=,device_name=[,dtype=][,block_shape=].json` of the fused MoE kernel."""

    name = "vllm-moe"
    library = "vllm"
    version = "0.33.0"
    folder = "model_executor/layers/fused_moe/configs"
    environment = "VLLM_TUNED_CONFIG_FOLDER"
    says_triton = True
    optional = (
        "num_warps",
        "num_stages",
        "num_ctas",
        # The library replaces it by 1.
        "SPLIT_K",
        # AMD and Intel.
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
        "grf_mode",
    )

    def _key(self, count: int, inner: int, found: Quantization) -> TableKey:
        # Eight-bit activations with int8 weights have no dtype in the name: they share the table
        # of 16-bit weights.
        known = found.dtype if found.dtype in _DTYPES else ""
        return moe_key(count, inner, Quantization(known, found.block_shape))

    def file_name(self, key: TableKey, device: str) -> str:
        """Every card of the H200 family is `NVIDIA_H200`."""
        word = device_word(device)
        return joined_name(key, "NVIDIA_H200" if "H200" in word.split("_") else word, "")

    def explain_unread(self, key: TableKey) -> str:
        if key.dtype not in _DTYPES:
            return f"vLLM {self.version} looks for no file of dtype {key.dtype}"
        return f"vLLM's names have no {key.marks[0]}" if key.marks else ""

    def predict_launch(self, key: TableKey, config: Config) -> Config:
        """SPLIT_K is always 1, and a step along K is at most a block of scales."""
        launched = {**config, "SPLIT_K": 1}
        step = config["BLOCK_SIZE_K"]
        if key.block_shape and isinstance(step, int):
            launched["BLOCK_SIZE_K"] = min(step, *key.block_shape)
        return launched

    def default(self, key: TableKey, size: int, device: Device) -> Config:
        """Raises TunerError for int4, whose default depends on the size of its groups."""
        if key.dtype == "int4_w4a16":
            raise TunerError(
                f"{self.name}: the default config of {key} depends on the size of its groups",
                "compare only against tables of this dtype",
            )
        amd = device.target.startswith("hip")
        if key.dtype == "fp8_w8a8" and key.block_shape:
            config = _default_blocks(key.block_shape, size, amd=amd)
        else:
            config = _default_tiles(key, size, amd=amd)
        return {**config, "SPLIT_K": 1}


def _default_blocks(block: tuple[int, int], size: int, *, amd: bool) -> Config:
    few = size <= 8 and block[0] % 64 == 0 and not amd
    stages = 2 if amd else 4 if few and size <= 4 else 3
    rows, group = 16 if size <= 64 else 64, 1 if size <= 16 else 32
    return tile_row(rows, 64 if few else block[0], block[1], group, 4, stages)


def _default_tiles(key: TableKey, size: int, *, amd: bool) -> Config:
    rows = next((rows for most, rows in _ROWS if size <= most), _MOST_ROWS)
    step = 128 if key.dtype == "fp8_w8a8" or size <= _FEW else 64
    group = 16 if size // max(key.size("E"), 1) > _GROUPED else 1
    warps = 4 if size <= _WIDE else 8
    stages = 2 if amd else 4 if size <= 32 else 3
    return tile_row(rows, 64 if size <= _FEW else 128, step, group, warps, stages)


class VllmBlockFp8(BlockFp8Adapter):
    """`N=,K=,device_name=,dtype=fp8_w8a8,block_shape=.json` of the block-scaled product.

    The library reads these from its package only; VLLM_TUNED_CONFIG_FOLDER does not apply, and a
    name that is no number, such as triton_version, makes it fail.
    """

    name = "vllm-block-fp8"
    library = "vllm"
    version = "0.33.0"
    folder = "model_executor/layers/quantization/utils/configs"
    optional = (
        "num_warps",
        "num_stages",
        "num_ctas",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
    )
    default_stages = 2

    def file_name(self, key: TableKey, device: str) -> str:
        """Unlike tables of experts, a card of the H200 family keeps its own name."""
        return joined_name(key, device_word(device), "")
