"""Tiny models of transformers and diffusers with random weights, and inputs for them."""

from __future__ import annotations

import diffusers
import torch
import transformers

_SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_IMAGES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 8,
}  # fmt: skip


def _ids():
    return {"input_ids": torch.arange(24).view(2, 12) % 60 + 3}


def _language(name, **sizes):
    def make():
        config = getattr(transformers, f"{name.replace('ForCausalLM', '')}Config")
        return getattr(transformers, name)(config(**(_SIZES | sizes)))

    return make, _ids


def _gemma3():
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**_SIZES, head_dim=64))


def _vision(name, config):
    def make():
        return getattr(transformers, name)(getattr(transformers, config)(**_IMAGES))

    return make, lambda: {"pixel_values": torch.randn(2, 3, 16, 16)}


def _whisper():
    return transformers.WhisperModel(
        transformers.WhisperConfig(
            vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64,
            decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4,
            num_mel_bins=8, max_source_positions=16, max_target_positions=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    )  # fmt: skip


def _speech():
    return {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": torch.ones(1, 4).long()}


def _unet():
    return diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=16,
        attention_head_dim=16, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=8,
    )  # fmt: skip


def _noise():
    images, text = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 16)
    return {"sample": images, "timestep": torch.tensor(3), "encoder_hidden_states": text}


def _dit():
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10,
    )  # fmt: skip


def _classes():
    return {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 4]),
        "class_labels": torch.tensor([1, 2]),
    }


def _flux():
    return diffusers.FluxTransformer2DModel(
        in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def _tokens():
    return {
        "hidden_states": torch.randn(1, 16, 8), "encoder_hidden_states": torch.randn(1, 5, 16),
        "pooled_projections": torch.randn(1, 16), "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3),
    }  # fmt: skip


#: By name: a function that makes the model, and one that makes its inputs.
MODELS = {
    "llama": _language("LlamaForCausalLM", head_dim=64),
    "qwen2": _language("Qwen2ForCausalLM"),
    "qwen3": _language("Qwen3ForCausalLM", head_dim=64),
    "mistral": _language("MistralForCausalLM", head_dim=16),
    "gemma": _language("GemmaForCausalLM", head_dim=16),
    "gemma2": _language("Gemma2ForCausalLM", head_dim=16),
    "gemma3": (_gemma3, _ids),
    "phi": _language("PhiForCausalLM"),
    "phi3": _language("Phi3ForCausalLM", head_dim=64),
    "vit": _vision("ViTModel", "ViTConfig"),
    "siglip": _vision("SiglipVisionModel", "SiglipVisionConfig"),
    "whisper": (_whisper, _speech),
    "unet": (_unet, _noise),
    "dit": (_dit, _classes),
    "flux": (_flux, _tokens),
}


def model_of(name):
    """A model whose weights are large enough for each layer to matter, and its inputs."""
    make, inputs = MODELS[name]
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, inputs()


def call(model, inputs):
    return model(**inputs, return_dict=True)[0]


def gradients(model, inputs):
    model.zero_grad()
    with torch.enable_grad():
        call(model, inputs).float().square().mean().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
