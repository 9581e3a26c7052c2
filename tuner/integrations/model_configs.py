"""What a model's `config.json` says of its layers: experts, quantization, products.

The names of the fields are those of Hugging Face's configs, by family: `num_experts` (Qwen,
Jamba), `n_routed_experts` (DeepSeek, GLM), `num_local_experts` (Mixtral, GPT-OSS).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from search_spaces.errors import TunerError
from search_spaces.foreign_json import object_of, parse_json

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
_INNER = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
_HIDDEN = ("hidden_size", "d_model")
_BITS = 8


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a model, before it is divided over devices."""

    count: int
    top_k: int
    hidden: int
    intermediate: int
    #: Experts that every token passes.
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are stored, in the words of the libraries' file names."""

    #: Empty for weights of 16 bits.
    dtype: str = ""
    block_shape: tuple[int, int] | None = None
    per_channel: bool = False


class Product(NamedTuple):
    """out[M, cols] = a[M, depth] @ b[cols, depth]^T on one device.

    Names and sharing over devices as in vLLM's and SGLang's layers: columns of the first product of
    a pair are divided, and the depth of the second. Keys and values of fewer heads than devices are
    repeated. Products of multi-head latent attention have the fields of DeepSeek's configs.
    """

    layer: str
    cols: int
    depth: int


def load_model(path: Path) -> dict[str, Any]:
    """The content of a `config.json`; raises TunerError for a file that is none."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise TunerError(
            f"{path}: {reason}", "give the config.json of a model from Hugging Face"
        ) from None
    if not isinstance(document, dict):
        raise TunerError(f"{path}: no object", "give the config.json of a model")
    return document


def text_model(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; the fields of `ffn_config` (DBRX) included."""
    inner = model.get("text_config") or model.get("llm_config")
    text = {**model, **inner} if isinstance(inner, Mapping) else model
    feed = text.get("ffn_config")
    return {**text, **feed} if isinstance(feed, Mapping) else text


def experts_of(model: Mapping[str, Any]) -> Experts | None:
    """The model's experts; None for a dense model."""
    text = text_model(model)
    if not any(_first(text, (name,)) for name in _EXPERTS):
        return None
    count = number(text, _EXPERTS)
    return (
        None
        if count == 1
        else Experts(
            count,
            number(text, _TOP_K),
            number(text, _HIDDEN),
            number(text, _INNER),
            _first(text, ("n_shared_experts", "num_shared_experts")) or 0,
        )
    )


def quantization_of(model: Mapping[str, Any]) -> Quantization | None:
    """The model's quantization; None for one that the Triton kernels of the tables do not run."""
    found = model.get("quantization_config") or text_model(model).get("quantization_config")
    if not found:
        return Quantization()
    if not isinstance(found, Mapping):
        raise TunerError("quantization_config is no object", "give the config.json of a model")
    method = found.get("quant_method")
    if method == "fp8":
        return Quantization("fp8_w8a8", _block(found.get("weight_block_size")))
    if method == "experts_int8":
        return Quantization("int8_w8a16")
    return _read_compressed(found) if method == "compressed-tensors" else None


def _read_compressed(found: Mapping[str, Any]) -> Quantization | None:
    group = object_of(next(iter(object_of(found.get("config_groups")).values()), None))
    weights, inputs = object_of(group.get("weights")), object_of(group.get("input_activations"))
    if weights.get("num_bits") != _BITS:
        return None
    kind = "fp8" if weights.get("type") == "float" else "int8"
    bits = _BITS if inputs.get("num_bits") == _BITS else 2 * _BITS
    per_channel = weights.get("strategy") == "channel"
    return Quantization(f"{kind}_w8a{bits}", _block(weights.get("block_structure")), per_channel)


def _block(shape: object) -> tuple[int, int] | None:
    if not shape:
        return None
    if isinstance(shape, list) and len(shape) == 2 and all(isinstance(one, int) for one in shape):
        return shape[0], shape[1]
    raise TunerError(f"the block shape {shape!r} is no pair of sizes", "correct config.json")


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


def number(model: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first field of these names; raises TunerError where there is none."""
    found = _first(model, names)
    if found is None:
        raise TunerError(
            f"the model's config has no {names[0]}",
            f"give a config.json with one of {', '.join(names)}",
        )
    return found


def divide(total: int, by: int, what: str) -> int:
    """The share of one of `by` devices; raises TunerError where it is no whole number."""
    if by < 1 or total % by:
        raise TunerError(
            f"{what} {total} cannot be divided by {by}", "choose another parallel size"
        )
    return total // by


def _first(model: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = model.get(name)
        # Some families list a value per layer; the first layers are alike.
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
