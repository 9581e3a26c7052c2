"""Configs of models: the fields of their `config.json` on Hugging Face that adapters read."""

from __future__ import annotations

from hostile_json import hostile_texts

from search_spaces.errors import TunerError
from tuner.integrations import load_model

QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": FP8_BLOCKS,
}
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def check_hostile(model, path, list_layers):
    """With any value in any place, each library has layers, or refuses in one line.

    list_layers: functions of a model.
    """
    found = 0
    for text in hostile_texts(model):
        path.write_text(text)
        for layers in list_layers:
            try:
                found += len(layers(load_model(path)))
            except TunerError as error:
                if "\n" in error.message:
                    raise
    assert found
