"""The matrix products of a model whose weights are float8 with scales by blocks.

Names and sharing over devices as in vLLM's and SGLang's layers: columns of the first product of a
pair are divided, and the depth of the second. Keys and values of fewer heads than devices are
repeated. Products of multi-head latent attention have the fields of DeepSeek's configs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tuner.integrations.model_configs import divide, experts_of, number, text_model


class Product(NamedTuple):
    """out[M, cols] = a[M, depth] @ b[cols, depth]^T on one device."""

    layer: str
    cols: int
    depth: int


def products_of(model: Mapping[str, Any], devices: int) -> list[Product]:
    """The products of attention, dense layers and shared experts; each size once."""
    text = text_model(model)
    found = list(_latent(text, devices) if "kv_lora_rank" in text else _attention(text, devices))
    experts = experts_of(model)
    if experts is None or text.get("first_k_dense_replace"):
        found += _feed_forward(text, number(text, ("intermediate_size",)), devices, "mlp")
    if experts is not None and experts.shared:
        inner = experts.shared * experts.intermediate
        found += _feed_forward(text, inner, devices, "shared_experts")
    sizes = {(one.cols, one.depth): one for one in reversed(found)}
    return [one for one in found if sizes[one.cols, one.depth] is one]


def _attention(text: Mapping[str, Any], devices: int) -> Iterator[Product]:
    hidden, heads = number(text, ("hidden_size",)), number(text, ("num_attention_heads",))
    head = number({**text, "whole": hidden // heads}, ("head_dim", "whole"))
    shared = number({**text, "own": heads}, ("num_key_value_heads", "own"))
    own = divide(heads, devices, "the number of attention heads")
    keys = divide(shared, devices, "the number of key heads") if shared >= devices else 1
    yield Product("qkv_proj", (own + 2 * keys) * head, hidden)
    yield Product("o_proj", hidden, own * head)


def _latent(text: Mapping[str, Any], devices: int) -> Iterator[Product]:
    hidden = number(text, ("hidden_size",))
    heads = divide(number(text, ("num_attention_heads",)), devices, "the number of heads")
    latent, rotary = number(text, ("kv_lora_rank",)), number(text, ("qk_rope_head_dim",))
    plain, value = number(text, ("qk_nope_head_dim",)), number(text, ("v_head_dim",))
    if text.get("q_lora_rank"):
        queries = number(text, ("q_lora_rank",))
        yield Product("fused_qkv_a_proj", queries + latent + rotary, hidden)
        yield Product("q_b_proj", heads * (plain + rotary), queries)
    else:
        yield Product("kv_a_proj", latent + rotary, hidden)
        yield Product("q_proj", heads * (plain + rotary), hidden)
    yield Product("kv_b_proj", heads * (plain + value), latent)
    yield Product("o_proj", hidden, heads * value)


def _feed_forward(
    text: Mapping[str, Any], inner: int, devices: int, layer: str
) -> Iterator[Product]:
    hidden = number(text, ("hidden_size",))
    own = divide(inner, devices, f"the intermediate size of {layer}")
    yield Product(f"{layer}.gate_up_proj", 2 * own, hidden)
    yield Product(f"{layer}.down_proj", hidden, own)
