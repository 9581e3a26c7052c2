"""A model's `config.json` with any value in any place: it has layers, or is refused in one line."""

from __future__ import annotations

import pytest
from hostile_json import hostile_texts
from model_configs import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL, QWEN3_30B

from search_spaces.errors import TunerError
from tuner import integrations
from tuner.integrations.model_configs import load_model

_CODE = {"num_bits": 8, "type": "float", "strategy": "channel", "block_structure": [128, 128]}
_GROUPS = {"all": {"weights": _CODE, "input_activations": {"num_bits": 8}}}
MODELS = {
    "experts": QWEN3_30B,
    "latent": DEEPSEEK_V3,
    "mixtral": MIXTRAL,
    "dense": LLAMA3_8B,
    "compressed": {
        **QWEN3_30B,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": _GROUPS},
    },
    "gla": {"model_type": "gla", "hidden_size": 2048, "num_heads": 4, "expand_k": 0.5},
    "gated": {"model_type": "gated_deltanet", "num_heads": 4, "head_dim": 64, "expand_v": 2.0},
    "linear": {
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_each_library_has_layers_or_refuses_in_one_line(tmp_path, name):
    path = tmp_path / "config.json"
    libraries = map(integrations.kernel_library, integrations.kernel_libraries())
    readers = [one.shapes for one in integrations.adapters()] + [one.layers for one in libraries]
    found = 0
    for text in hostile_texts(MODELS[name]):
        path.write_text(text)
        for read in readers:
            try:
                found += len(read(load_model(path)))
            except TunerError as error:
                if "\n" in error.message:
                    raise
    assert found
