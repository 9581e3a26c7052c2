"""Liger-Kernel: norms, rotary embeddings, gated activations and the loss of a transformer.

The facts are those of Liger-Kernel 0.8.5 (BSD-2-Clause): `ops/rms_norm.py`, `ops/rope.py`,
`ops/swiglu.py`, `ops/geglu.py`, `ops/fused_linear_cross_entropy.py`. Block sizes and warps follow
from the number of columns (`calculate_settings` of `ops/utils.py`); there is no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner import Value
from tuner.integrations import divide, experts_of, number, text_model

from library_adapters.captured_library import CapturedLibrary
from library_adapters.layers import (
    Layer,
    LayerLaunch,
    dtype_of,
    random_input,
)

_OPS = "liger_kernel.ops"
#: The functions of gated layers by the model's activation.
_GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_tanh": "geglu"}


class Liger(CapturedLibrary):
    """The layers that Liger replaces in a model of Hugging Face, forward and backward.

    Experts are not among them: their kernels take the routing of a batch.
    """

    name = "liger"
    distribution, version, module = "liger-kernel", "0.8.5", "liger_kernel"
    plain = True

    def layers(self, model: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
        text, dtype = text_model(model), dtype_of(model)
        hidden = number(text, ("hidden_size",))
        gemma = f"{text.get('model_type', '')}".startswith("gemma")
        found = [
            _norm(hidden, dtype, gemma=gemma),
            _rope(text, hidden, tensor_parallel, dtype),
        ]
        gate = _GATED.get(f"{text.get('hidden_act') or text.get('hidden_activation') or 'silu'}")
        if gate and experts_of(model) is None:
            inner = number(text, ("intermediate_size",))
            own = divide(inner, tensor_parallel, "the intermediate size")
            found.append(_make_gated_layer(gate, own, dtype))
        found.append(_loss(hidden, number(text, ("vocab_size",)), dtype))
        return found


def _norm(cols: int, dtype: str, *, gemma: bool) -> Layer:
    place = f"{_OPS}.rms_norm:_rms_norm"
    key: dict[str, Value] = {"n_cols": cols, "X_ptr": dtype}
    offset, mode = (1.0, "gemma") if gemma else (0.0, "llama")

    def run(tokens: int, device: str) -> None:
        import torch
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        x = random_input((tokens, cols), dtype, device)
        weight = torch.ones(cols, dtype=x.dtype, device=device, requires_grad=True)
        y = LigerRMSNormFunction.apply(x, weight, 1e-6, offset, mode, not gemma, None)
        y.backward(torch.ones_like(y))

    launches = [
        LayerLaunch(f"{place}_{way}_kernel", {**key, "offset": offset}, ("X_ptr", cols))
        for way in ("forward", "backward")
    ]
    return Layer("norm", tuple(launches), run)


def _rope(text: Mapping[str, Any], hidden: int, devices: int, dtype: str) -> Layer:
    heads = number(text, ("num_attention_heads",))
    size = number({**text, "whole": hidden // heads}, ("head_dim", "whole"))
    shared = number({**text, "own": heads}, ("num_key_value_heads", "own"))
    queries = divide(heads, devices, "the number of attention heads")
    keys = divide(shared, devices, "the number of key heads") if shared >= devices else 1
    key: dict[str, Value] = {"n_qh": queries, "n_kh": keys, "hd": size, "q_ptr": dtype}

    def run(tokens: int, device: str) -> None:
        from liger_kernel.ops.rope import LigerRopeFunction

        # As a model's attention passes them: [batch, heads, tokens, size], transposed views.
        q, k = (
            random_input((1, tokens, count, size), dtype, device).transpose(1, 2)
            for count in (queries, keys)
        )
        cos, sin = (random_input((1, tokens, size), dtype, device).detach() for _ in range(2))
        q, k = LigerRopeFunction.apply(q, k, cos, sin)
        (q.sum() + k.sum()).backward()

    launches = tuple(
        LayerLaunch(
            f"{_OPS}.rope:_triton_rope", {**key, "BACKWARD_PASS": back}, ("q_ptr", queries * size)
        )
        for back in (False, True)
    )
    return Layer("rotary", launches, run)


def _make_gated_layer(gate: str, cols: int, dtype: str) -> Layer:
    tensor, kernel = ("a_ptr", "_swiglu") if gate == "swiglu" else ("a", "_geglu_tanh")

    def run(tokens: int, device: str) -> None:
        import torch

        if gate == "swiglu":
            from liger_kernel.ops.swiglu import LigerSiLUMulFunction as Function
        else:
            from liger_kernel.ops.geglu import LigerGELUMulFunction as Function
        a, b = (random_input((tokens, cols), dtype, device) for _ in range(2))
        y = Function.apply(a, b)
        y.backward(torch.ones_like(y))

    launches = tuple(
        LayerLaunch(
            f"{_OPS}.{gate}:{kernel}_{way}_kernel",
            {"n_cols": cols, tensor: dtype},
            (tensor, cols),
        )
        for way in ("forward", "backward")
    )
    return Layer("mlp", launches, run)


def _loss(hidden: int, words: int, dtype: str) -> Layer:
    """The loss takes its tokens in chunks; `n_non_ignore` is the number of all of them."""

    def run(tokens: int, device: str) -> None:
        import torch
        from liger_kernel.ops.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyFunction,
        )

        x, weight = (random_input((rows, hidden), dtype, device) for rows in (tokens, words))
        target = torch.randint(words, (tokens,), device=device)
        loss = LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)
        (loss[0] if isinstance(loss, tuple) else loss).backward()

    place = f"{_OPS}.cross_entropy:liger_cross_entropy_kernel"
    key: dict[str, Value] = {"n_cols": words, "X_ptr": dtype, "HAS_GRADIENTS": True}
    return Layer("loss", (LayerLaunch(place, key, ("n_non_ignore", 1)),), run)
