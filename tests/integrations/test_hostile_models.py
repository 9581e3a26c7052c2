"""A model's `config.json` with any value in any place: it has layers, or is refused in one line."""

from __future__ import annotations

import pytest
from hostile_json import hostile_texts
from model_configs import DEEPSEEK_V3, FP8_BLOCKS, LLAMA3_8B, MIXTRAL, QWEN3_30B

from search_spaces.errors import TunerError
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
    path = tmp_path / "config.json"
    adapters = integrations.adapters()
    found = 0
    for text in hostile_texts(MODELS[name]):
        path.write_text(text)
        for adapter in adapters:
            try:
                found += len(adapter.shapes(integrations.load_model(path)))
            except TunerError as error:
                if "\n" in error.message:
                    raise
    assert found
