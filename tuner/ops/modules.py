"""Modules of models that operators compute: their classes, and what runs in place of `forward`.

A kind names classes by path and name, so no library is imported for it. Its function answers
NotImplemented for calls that the module's own code has to run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tuner.ops.attention import rotary
from tuner.ops.choosing import ANY, numerics_of_calls
from tuner.ops.cross_entropies import fused_linear_cross_entropy
from tuner.ops.elements import activation, group_norm
from tuner.ops.joined_layers import JointHeads, is_bare, join_layers, run_joint, separate_layers
from tuner.ops.operator import OPERATORS, takes_plain
from tuner.ops.problem import FLOATS
from tuner.ops.products import conv2d, linear
from tuner.ops.rows import add_rms_norm, layer_norm, rms_norm
from tuner.ops.strided_rotary import takes_strides


@dataclass(frozen=True, slots=True)
class Kind:
    """Modules that one function computes."""

    #: What runs, as users know it.
    operator: str
    #: A pattern of paths and names of classes.
    classes: str
    #: Of a module and its argument.
    run: Callable[[Any, torch.Tensor], Any] | None = None
    #: Why a module stays as it is; empty where it is replaced.
    lacks: Callable[[Any], str] = lambda module: ""
    #: Makes a whole `forward` of a class, where more than a result is replaced. Its second argument
    #: compares first calls (`patching.py`).
    forward: Callable[[Any, Any], Callable[..., Any]] | None = None
    #: What `patch` does to the module besides, and what `unpatch` does.
    prepare: Callable[[Any], None] = lambda module: None
    undo: Callable[[Any], None] = lambda module: None


def is_autocast() -> bool:
    """Whether autocast is on, in which a module's own code may differ from torch's functions."""
    enabled: bool = torch._C._is_any_autocast_enabled()
    return enabled


# -- normalisation ---------------------------------------------------------------------------------
def _fits(norm: Any, x: torch.Tensor) -> bool:
    """Whether input and weight share a dtype in which own code and operator round alike."""
    return x.dtype == norm.weight.dtype and x.dtype in FLOATS


def _rms_norm(norm: Any, x: torch.Tensor) -> Any:
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return _normalise(x, norm.weight, eps) if _fits(norm, x) else NotImplemented


def _rms_norm_from_one(norm: Any, x: torch.Tensor) -> Any:
    """The norm multiplies by 1 + weight. In half precision, this sum is rounded."""
    return _normalise(x, 1 + norm.weight, norm.eps) if _fits(norm, x) else NotImplemented


def _normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Of heads [batch, heads, tokens, dim] as projections leave them, the rows in their memory."""
    if x.ndim == 4 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous():
        return rms_norm(x.transpose(1, 2), weight.shape, weight, eps).transpose(1, 2)
    return rms_norm(x, weight.shape, weight, eps)


def _lacks_parameters(norm: Any) -> str:
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if isinstance(norm, nn.LayerNorm | nn.GroupNorm):
        return "" if weight is not None and bias is not None else "no weight and bias"
    return "" if weight is not None and bias is None else "no weight, or a bias"


# -- activations and layers around them ------------------------------------------------------------
#: Functions of `ops.activation` by the class that computes one.
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
}


def _function_of(module: Any) -> str:
    name = _ACTIVATIONS.get(type(module).__name__, "")
    return f"{name}_tanh" if getattr(module, "approximate", "none") == "tanh" else name


def _gelu_of(layer: Any, x: torch.Tensor) -> Any:
    bare = is_bare(layer, nn.Linear)
    return linear(x, layer.weight, layer.bias, "gelu") if bare else NotImplemented


def _two_layers(mlp: Any, x: torch.Tensor) -> Any:
    """fc2(gelu(fc1(x))) of vision models."""
    found = _gelu_of(mlp.fc1, x) if is_bare(mlp.activation_fn) else NotImplemented
    return found if found is NotImplemented else mlp.fc2(found)


def _lacks_two_layers(mlp: Any) -> str:
    if [name for name, _ in mlp.named_children()] != ["activation_fn", "fc1", "fc2"]:
        return "other layers"
    return "" if _function_of(mlp.activation_fn) == "gelu" else "no exact gelu"


def _projected_gelu(layer: Any, x: torch.Tensor) -> Any:
    """gelu(proj(x)) of diffusers."""
    exact = layer.approximate == "none"
    return _gelu_of(layer.proj, x) if exact else activation(layer.proj(x), "gelu_tanh")


def _projected_geglu(layer: Any, x: torch.Tensor) -> Any:
    """value * gelu(gate) of diffusers, whose value has the first rows of the weight. Kernels of
    geglu take the gate first; so the gate is a layer with gelu where a kernel serves that one."""
    layer = layer.proj
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not is_bare(layer, nn.Linear):
        return NotImplemented
    value, gate = layer.weight.chunk(2)
    biases = (None, None) if layer.bias is None else layer.bias.chunk(2)
    if not OPERATORS["linear"].serves(x, gate, biases[1], "gelu"):
        return NotImplemented
    return functional.linear(x, value, biases[0]) * linear(x, gate, biases[1], "gelu")


# -- gated layers ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Gated:
    """A layer of which all but the last product is one function, NotImplemented where the module's
    own code has to run."""

    gate: Callable[[Any, torch.Tensor], Any]

    def __call__(self, mlp: Any, x: torch.Tensor) -> Any:
        found = self.gate(mlp, x)
        return found if found is NotImplemented else mlp.down_proj(found)


def _gate_fused(mlp: Any, x: torch.Tensor) -> Any:
    """Phi-3, whose weight has the gate's rows and then the value's."""
    if not (is_bare(mlp.gate_up_proj, nn.Linear) and is_bare(mlp.activation_fn)):
        return NotImplemented
    return linear(x, mlp.gate_up_proj.weight, None, "swiglu")


def _gate_joined(mlp: Any, x: torch.Tensor) -> Any:
    """silu(gate(x)) * up(x) as one product."""
    if not is_bare(mlp.act_fn):
        return NotImplemented
    found = run_joint(
        (mlp.gate_proj, mlp.up_proj), x,
        alone=lambda x, weight, bias: linear(x, weight, bias, "swiglu"),
        then=lambda both: activation(both, "swiglu"),
    )  # fmt: skip
    return NotImplemented if found is None else found


def _lacks_gated_layers(mlp: Any) -> str:
    names = {name for name, _ in mlp.named_children()}
    if names != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return "other layers"
    if _function_of(mlp.act_fn) != "silu":
        return "no silu"
    return "" if mlp.gate_proj.bias is None and mlp.up_proj.bias is None else "a bias"


# -- attention and decoder layers ------------------------------------------------------------------
_ROTARY = "apply_rotary_pos_emb"
#: Layers of one input in attention, and the layer after it.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj"), ("to_q", "to_k", "to_v")
_LAST = {"o_proj", "out_proj", "dense", "to_out"}


def _rebind(function: Any, replaced: dict[str, Any]) -> Any:
    """A function, and those that it wraps, with other values of global names.

    Its globals are a copy without `__name__`, by which Dynamo would ask the module of that name.
    """
    cells = function.__closure__ or ()
    inner = [each.cell_contents for each in cells]
    wraps = [isinstance(each, FunctionType) and _uses(each, *replaced) for each in inner]
    values = dict(function.__globals__)
    if not replaced.keys().isdisjoint(function.__code__.co_names):
        values.update(replaced)
        values.pop("__name__")
    closure = tuple(
        CellType(_rebind(each, replaced)) if wrap else cell
        for cell, each, wrap in zip(cells, inner, wraps, strict=True)
    )
    found = FunctionType(
        function.__code__, values, function.__name__, function.__defaults__, closure
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(found, function)


def _uses(function: Any, *names: str) -> bool:
    return not set(names).isdisjoint(inspect.unwrap(function).__code__.co_names)


def _rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Of heads [batch, heads, tokens, dim] as projections leave them, tokens before heads."""
    if q.ndim != 4 or cos.ndim != 3 or cos.shape[-1] != q.shape[-1] or cos.dtype != q.dtype:
        return NotImplemented
    batch, _, length, dim = q.shape
    rows = (each.transpose(1, 2).reshape(batch * length, -1, dim) for each in (q, k))
    angles = (each[..., : dim // 2].expand(batch, -1, -1) for each in (cos, sin))
    given = (*rows, *(each.reshape(batch * length, dim // 2) for each in angles))
    if not takes_strides(*given) and not OPERATORS["rotary"].serves(*given, False):
        return NotImplemented
    q, k = (each.view(batch, length, -1, dim).transpose(1, 2) for each in rotary(*given))
    return q, k


def _attention(cls: Any, check: Any) -> Callable[..., Any]:
    own = inspect.unwrap(cls.forward).__globals__[_ROTARY]

    def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        found = NotImplemented
        if unsqueeze_dim == 1 and not check.wrong:
            found = _rotate(q, k, cos, sin)
        if found is NotImplemented:
            return own(q, k, cos, sin, unsqueeze_dim)
        return check.keep(found, lambda: own(q, k, cos, sin), q)

    return _heads_of(_rebind(cls.forward, {_ROTARY: rotate}), check)


def _heads(cls: Any, check: Any) -> Callable[..., Any]:
    return _heads_of(cls.forward, check)


def _heads_of(own: Callable[..., Any], check: Any) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: torch.Tensor, *given: Any, **named: Any) -> Any:
        heads = self if check.wrong or is_autocast() else _project(self, hidden_states, check)
        return own(heads, hidden_states, *given, **named)

    return forward


def _project(attention: Any, x: torch.Tensor, check: Any) -> Any:
    """An attention module whose projections of x are known, as one product; else the module."""
    names = attention._tuner_heads
    layers = [getattr(attention, each) for each in names]
    found = run_joint(layers, x)
    if found is None:
        return attention
    parts = torch.split_with_sizes(found, [each.out_features for each in layers], -1)
    parts = check.keep(parts, lambda: tuple(each(x) for each in layers), x)
    return JointHeads(attention, x, dict(zip(names, parts, strict=True)))


def _list_projections(attention: Any) -> dict[str, Any]:
    """Those of queries, keys and values; none where other layers are between them and the heads,
    such as norms, whose kernels read whole rows."""
    layers = {name: each for name, each in attention.named_children() if name not in _LAST}
    names = next((each for each in _PROJECTIONS if sorted(each) == sorted(layers)), ())
    crosses = getattr(attention, "is_cross_attention", False)
    return {} if crosses else {name: layers[name] for name in names}


def _join_heads(attention: Any) -> None:
    found = _list_projections(attention)
    attention._tuner_heads = (*found,)
    join_layers((*found.values(),))


def _separate_heads(attention: Any) -> None:
    separate_layers((*_list_projections(attention).values(),))
    del attention._tuner_heads


#: What the layers' own code names for their attention.
_NAMED = ("attention_mask", "position_embeddings")


def _decoder_layer(cls: Any, check: Any) -> Callable[..., Any]:
    """The residual of attention is added in the norm that follows."""

    def forward(self: Any, hidden_states: torch.Tensor, *given: Any, **named: Any) -> Any:
        norm = self.post_attention_layernorm
        fits = hasattr(norm, "variance_epsilon") and is_bare(norm) and _fits(norm, hidden_states)
        fits = fits and all(each in named for each in _NAMED)
        if given or check.wrong or not fits or is_autocast():
            return cls.forward(self, hidden_states, *given, **named)
        attended = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)[0]
        attended = self.resid_attn_dropout(attended) if _drops(self) else attended
        found = add_rms_norm(attended, hidden_states, norm.weight, norm.variance_epsilon)

        def original() -> tuple[torch.Tensor, torch.Tensor]:
            total = hidden_states + attended
            return norm(total), total

        normed, total = check.keep(found, original, hidden_states)
        if _drops(self):
            return total + self.resid_mlp_dropout(self.mlp(normed))
        return _add_layer(total, self.mlp, normed)

    return forward


def _add_layer(total: torch.Tensor, mlp: Any, x: torch.Tensor) -> torch.Tensor:
    """total + mlp(x). Without gradients, the last product of a gated layer adds to total in place,
    once the layer was compared with its own code."""
    gated = _gate_of(mlp, x)
    if gated is NotImplemented or not takes_plain((gated, total, mlp.down_proj.weight)):
        added: torch.Tensor = mlp(x)
        return total + added
    total.view(-1, total.shape[-1]).addmm_(gated.flatten(0, -2), mlp.down_proj.weight.T)
    return total


def _gate_of(mlp: Any, x: torch.Tensor) -> Any:
    """All but the last product of a patched layer, where nothing needs the layer's own result."""
    kind = getattr(type(mlp), "_tuner_patch", None)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not kind:
        return NotImplemented
    if numerics_of_calls() != ANY:
        return NotImplemented  # torch's product, into which the sum is fused, has no known bits
    fits = isinstance(kind.run, Gated) and is_bare(mlp) and type(mlp)._tuner_first_calls.knows(x)
    if not fits or not is_bare(mlp.down_proj, nn.Linear) or mlp.down_proj.bias is not None:
        return NotImplemented
    return kind.run.gate(mlp, x)


def _drops(layer: Any) -> bool:
    return hasattr(layer, "resid_attn_dropout")


_MASK, _WINDOW = "create_causal_mask", "create_sliding_window_causal_mask"
#: Arguments by which tokens see others than those before them.
_SEEN = ("attention_mask", "position_ids", "cache", "past_key_values")


def _decoder(cls: Any, check: Any) -> Callable[..., Any]:
    """In graphs, no mask where that of whole sequences is causal: transformers makes one there, and
    so keeps torch from its fastest attention."""
    window = inspect.unwrap(cls.forward).__globals__.get(_WINDOW)

    def slide(*, config: Any, inputs_embeds: torch.Tensor, **named: Any) -> Any:
        if inputs_embeds.shape[1] <= config.sliding_window:
            return None
        return window(config=config, inputs_embeds=inputs_embeds, **named)

    unmasked = _rebind(cls.forward, {_MASK: lambda **named: None, _WINDOW: slide})

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        causal = len(given) < 2 and all(named.get(each) is None for each in _SEEN)
        if causal and torch.compiler.is_compiling() and self.config._attn_implementation == "sdpa":
            return unmasked(self, *given, **named)
        return cls.forward(self, *given, **named)

    return forward


# -- losses of language models ---------------------------------------------------------------------
def _causal_lm(cls: Any, check: Any) -> Callable[..., Any]:
    """In training, the loss without the logits, which the output then lacks."""
    own = inspect.unwrap(cls.forward).__globals__

    def forward(self: Any, *given: Any, labels: Any = None, **named: Any) -> Any:
        if check.wrong or not _trains_on(self, labels, given, named):
            return cls.forward(self, *given, labels=labels, **named)
        outputs = self.model(*given, **named)
        hidden, count = outputs.last_hidden_state, named.get("num_items_in_batch")
        target = named.get("shift_labels")
        if target is None:
            target = functional.pad(labels, (0, 1), value=-100)[..., 1:]
        loss = fused_linear_cross_entropy(
            hidden.flatten(0, -2), self.lm_head.weight, target.flatten().to(hidden.device),
            reduction="mean" if count is None else "sum",
        )  # fmt: skip
        loss = loss if count is None else loss / torch.as_tensor(count, device=loss.device)

        def original() -> torch.Tensor:
            sizes = {"vocab_size": self.config.vocab_size, **named}
            found: torch.Tensor = self.loss_function(
                logits=self.lm_head(hidden), labels=labels, **sizes
            )
            return found

        loss = check.keep(loss, original, hidden)
        parts = {name: each for name, each in outputs.items() if name != "last_hidden_state"}
        return own["CausalLMOutputWithPast"](loss=loss, **parts)

    return forward


#: Arguments of which a model's own code makes more than a loss.
_OTHERS = frozenset({"return_dict", "logits_to_keep"})


def _trains_on(model: Any, labels: Any, given: Any, named: dict[str, Any]) -> bool:
    """Whether a call is a step of training whose loss is that of the next token."""
    if labels is None or not model.training or not torch.is_grad_enabled() or is_autocast():
        return False
    usual = len(given) < 2 and not _OTHERS & named.keys() and is_bare(model.lm_head, nn.Linear)
    usual = usual and model.lm_head.bias is None and model.config.return_dict
    sizes = model.lm_head.weight.shape[0] == model.config.vocab_size
    return usual and sizes and model.loss_function.__name__ == "ForCausalLMLoss"


# -- kinds -----------------------------------------------------------------------------------------
def _torchs(name: str) -> str:
    return rf"torch\.nn\.modules\.\w+\.({name})"


def _transformers(name: str) -> str:
    return rf"transformers\.(models\.\w+\.modeling_\w+|activations)\.({name})"


_LLAMAS = "(Llama|Mistral|Qwen2|Qwen3|Phi3)"
_ACTIVATION = rf"{_torchs('SiLU|GELU')}|{_transformers('(SiLU|GELU|NewGELU|FastGELU)Activation')}"
_DIFFUSERS = r"diffusers\.models\.attention_processor\.Attention"
KINDS = (
    Kind("rms_norm", _torchs("RMSNorm"), lambda norm, x: rms_norm(
        x, norm.normalized_shape, norm.weight, norm.eps), _lacks_parameters),
    Kind("layer_norm", _torchs("LayerNorm"), lambda norm, x: layer_norm(
        x, norm.normalized_shape, norm.weight, norm.bias, norm.eps), _lacks_parameters),
    Kind("group_norm", _torchs("GroupNorm"), lambda norm, x: group_norm(
        x, norm.num_groups, norm.weight, norm.bias, norm.eps), _lacks_parameters),
    Kind("channels_last", r"diffusers\.models\.unets\.unet_2d_condition\.UNet2DConditionModel",
        lambda unet, x: NotImplemented,
        prepare=lambda unet: unet.to(memory_format=torch.channels_last),
        undo=lambda unet: unet.to(memory_format=torch.contiguous_format)),
    Kind("conv2d", _torchs("Conv2d"), lambda conv, x: conv2d(
        x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups),
        lambda conv: "a bias" if conv.bias is not None else
        "" if conv.padding_mode == "zeros" else "other padding"),
    Kind("activation", rf"{_ACTIVATION}|{_transformers('GELUTanh')}", lambda module, x: activation(
        x, _function_of(module)), lambda module: getattr(module, "inplace", False) * "in place"),
    Kind("rms_norm", _transformers(rf"{_LLAMAS}RMSNorm") + r"|diffusers\.models\.\w+\.RMSNorm",
        _rms_norm, _lacks_parameters),
    Kind("rms_norm", _transformers("Gemma[23]?RMSNorm"), _rms_norm_from_one),
    Kind("linear with gelu", _transformers("(ViT|Siglip|Phi)MLP"), _two_layers, _lacks_two_layers),
    Kind("activation or linear", r"diffusers\.models\.activations\.GELU", _projected_gelu),
    Kind("linear with gelu", r"diffusers\.models\.activations\.GEGLU", _projected_geglu),
    Kind("linear with swiglu", _transformers("(Llama|Mistral|Qwen[23]|Gemma[23]?)MLP"),
        Gated(_gate_joined), _lacks_gated_layers,
        prepare=lambda mlp: join_layers((mlp.gate_proj, mlp.up_proj)),
        undo=lambda mlp: separate_layers((mlp.gate_proj, mlp.up_proj))),
    Kind("linear with swiglu", _transformers("Phi3MLP"), Gated(_gate_fused),
        lambda mlp: "" if _function_of(mlp.activation_fn) == "silu" else "no silu"),
    Kind("rotary", _transformers(rf"({_LLAMAS}|Gemma[23]?)Attention"), forward=_attention,
        lacks=lambda module: "" if _uses(type(module).forward, _ROTARY) else "no rotary embedding",
        prepare=_join_heads, undo=_separate_heads),
    Kind("linear", rf"{_transformers('(ViT|Siglip|Phi)Attention')}|{_DIFFUSERS}", forward=_heads,
        lacks=lambda module: "" if _list_projections(module) else "no layers of one input",
        prepare=_join_heads, undo=_separate_heads),
    Kind("add_rms_norm", _transformers(rf"{_LLAMAS}DecoderLayer"), forward=_decoder_layer),
    Kind("causal attention", _transformers(rf"({_LLAMAS}|Gemma)Model"), forward=_decoder,
        lacks=lambda module: "" if _uses(type(module).forward, _MASK) else "no causal mask"),
    Kind("fused_linear_cross_entropy", _transformers(rf"({_LLAMAS}|Gemma)ForCausalLM"),
        forward=_causal_lm),
)  # fmt: skip
