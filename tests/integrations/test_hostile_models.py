"""A model's `config.json` with any value in any place: it has layers, or is refused in one line."""

from __future__ import annotations

import pytest
from model_configs import (
    DEEPSEEK_V3,
    FP8_BLOCKS,
    LLAMA3_8B,
    MIXTRAL,
    QWEN3_30B,
    check_hostile,
)  # fmt: skip

from tuner import integrations

_CODE = {"num_bits": 8, "type": "float", "strategy": "channel", "block_structure": [128, 128]}
_GROUPS = {"all": {"weights": _CODE, "input_activations": {"num_bits": 8}}}
MODELS = {
    "experts": QWEN3_30B,
    "latent": DEEPSEEK_V3,
    "mixtral": MIXTRAL,
    "dense": {**LLAMA3_8B, "quantization_config": FP8_BLOCKS},
    "compressed": {
        **QWEN3_30B,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": _GROUPS},
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_each_library_has_layers_or_refuses_in_one_line(tmp_path, name):
    layers = [adapter.shapes for adapter in integrations.adapters()]
    check_hostile(MODELS[name], tmp_path / "config.json", layers)
