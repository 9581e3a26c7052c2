"""vLLM's own lookup of MoE tables, taken from its file, with stand-ins for its settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from library_code import found_on_path, functions_of

FILE = "vllm/model_executor/layers/fused_moe/fused_moe.py"
PATH = found_on_path(FILE)
_NAMES = ("get_config_file_name", "get_moe_configs", "get_default_config",
          "try_get_optimal_moe_config")  # fmt: skip
_HEAD = '''"""The lookup of vLLM."""
import functools
import json
import os
from typing import Any'''
LOOKUP = functions_of(PATH, _NAMES, _HEAD)
SETTINGS = SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=None)
_SILENT = SimpleNamespace(info_once=lambda *a, **k: None, warning_once=lambda *a, **k: None)
LOOKUP.__dict__.update(
    __file__=str(PATH),
    envs=SETTINGS,
    logger=_SILENT,
    current_platform=SimpleNamespace(is_rocm=lambda: False),
    get_device_name_as_file_name=lambda: "NVIDIA_H200",
)


def row_of(folder: Path | None, experts: int, inner: int, tokens: int, hidden: int, top_k: int
           ) -> dict[str, Any]:  # fmt: skip
    """The config that vLLM launches with a folder of tables, or without one."""
    SETTINGS.VLLM_TUNED_CONFIG_FOLDER = None if folder is None else str(folder)
    LOOKUP.get_moe_configs.cache_clear()
    found = LOOKUP.get_moe_configs(experts, inner, None)
    if found:
        picked: dict[str, Any] = found[min(found.keys(), key=lambda x: abs(x - tokens))]
        return picked
    default: dict[str, Any] = LOOKUP.get_default_config(tokens, experts, inner, hidden, top_k, None)
    return default
