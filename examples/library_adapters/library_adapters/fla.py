"""flash-linear-attention: gated delta rule and gated linear attention.

The facts are those of fla-core 0.6.0 (MIT): `ops/gated_delta_rule/chunk.py`, `ops/gla/chunk.py`,
`modules/norm/l2norm.py`, `modules/norm/fused_norm_gate.py`, `ops/utils/cache.py`. A part of its
kernels reads `{kernel}.json` of FLA_CONFIG_DIR where FLA_CACHE_MODE is set.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tuner import TunerError, Value
from tuner.integrations import divide, number, text_model

from library_adapters.captured_library import CapturedLibrary, OwnConfig
from library_adapters.layers import (
    Layer,
    LayerLaunch,
    dtype_of,
    random_input,
)

#: Sizes of a model are below this.
_LIMIT = 2**63
_Row: TypeAlias = tuple[str, str, str, str | Mapping[str, str | bool]]

#: The kernels of a layer: place, a tensor of the launch with its sizes per token (of the letters
#: below), and further arguments. H and HV: heads of keys and of values, K and V: their sizes.
_DELTA_RULE: tuple[_Row, ...] = (
    ("modules.norm.l2norm:l2norm_fwd_kernel", "x", "H K", {"D": "K"}),
    ("ops.utils.cumsum:chunk_local_cumsum_scalar_kernel", "s", "HV", {"H": "HV", "REVERSE": False}),
    ("ops.gated_delta_rule.chunk_fwd:chunk_gated_delta_rule_fwd_kkt_solve_kernel",
     "k", "H K", {"H": "H", "HV": "HV", "K": "K"}),
    ("ops.gated_delta_rule.wy_fast:recompute_w_u_fwd_kernel", "k", "H K", "H HV K V"),
    ("ops.common.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
     "k", "H K", "H HV K V"),
    ("ops.common.chunk_o:chunk_fwd_kernel_o", "q", "H K", "H HV K V"),
    ("ops.common.chunk_o:chunk_bwd_kernel_dv_local", "q", "H K", "H HV K V"),
    ("ops.common.chunk_delta_h:chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
     "q", "H K", "H HV K V"),
    ("ops.common.chunk_o:chunk_bwd_kernel_dqkwg", "q", "H K", "H HV K V"),
    ("ops.gated_delta_rule.wy_fast:prepare_wy_repr_bwd_kernel", "k", "H K", "H HV K V"),
    ("ops.utils.cumsum:chunk_local_cumsum_scalar_kernel", "s", "HV", {"H": "HV", "REVERSE": True}),
    ("modules.norm.l2norm:l2norm_bwd_kernel", "y", "H K", {"D": "K"}),
)  # fmt: skip
_GLA: tuple[_Row, ...] = (
    ("ops.utils.cumsum:chunk_local_cumsum_vector_kernel", "s", "H K", {"H": "H", "S": "K"}),
    ("ops.common.chunk_h:chunk_fwd_kernel_h", "k", "H K", "H K V"),
    ("ops.gla.chunk:chunk_gla_fwd_A_kernel_intra_sub_inter", "q", "H K", "H K"),
    ("ops.gla.chunk:chunk_gla_fwd_A_kernel_intra_sub_intra", "q", "H K", "H K"),
    ("ops.gla.chunk:chunk_gla_fwd_kernel_o", "q", "H K", "H K V"),
    ("ops.common.chunk_h:chunk_bwd_kernel_dh", "q", "H K", "H K V"),
    ("ops.gla.chunk:chunk_gla_bwd_kernel_dv", "k", "H K", "H K V"),
    ("ops.gla.chunk:chunk_gla_bwd_kernel_dA", "v", "H V", "H V"),
    ("ops.gla.chunk:chunk_gla_bwd_kernel_intra", "q", "H K", "H K"),
    ("ops.gla.chunk:chunk_gla_bwd_kernel_inter", "q", "H K", "H K V"),
)


class Fla(CapturedLibrary):
    """Linear attention of flash-linear-attention's models and of Qwen3-Next, chunk by chunk."""

    name = "fla"
    distribution, version, module = "fla-core", "0.6.0", "fla"

    def layers(self, model: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
        text, dtype = text_model(model), dtype_of(model)
        if "linear_num_value_heads" in text:
            # Keys are repeated to the heads of the values before the kernels are called.
            heads = values = number(text, ("linear_num_value_heads",))
            size = number(text, ("linear_key_head_dim",))
            inner = number(text, ("linear_value_head_dim",))
        elif text.get("model_type") == "gated_deltanet":
            heads, size = number(text, ("num_heads",)), number(text, ("head_dim",))
            values = number({**text, "own": heads}, ("num_v_heads", "own"))
            inner = _scale_size(size, text, "expand_v", 2.0)
        elif text.get("model_type") == "gla":
            heads = values = number(text, ("num_heads",))
            head = number(text, ("hidden_size",)) / heads
            size = _scale_size(head, text, "expand_k", 0.5)
            inner = _scale_size(head, text, "expand_v", 1.0)
        else:
            return []
        heads = divide(heads, tensor_parallel, "the number of heads")
        values = divide(values, tensor_parallel, "the number of value heads")
        sizes = {"H": heads, "HV": values, "K": size, "V": inner}
        return [_gla(sizes, dtype) if text.get("model_type") == "gla" else _delta(sizes, dtype)]

    def own_configs(
        self, package: Path | None, device: str, environment: Mapping[str, str]
    ) -> Iterator[OwnConfig]:
        folder = config_folder(package, device, environment)
        for path in sorted(folder.glob("*.json")) if folder else ():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                kernel, triton = found.get("kernel_name"), found.get("triton_version")
                yield OwnConfig(path, f"{kernel or path.stem}", f"{triton or ''}")
            else:
                yield OwnConfig(path, "", "")


def _delta(sizes: Mapping[str, int], dtype: str) -> Layer:
    heads, values, size, inner = sizes.values()

    def run(tokens: int, device: str) -> None:
        import torch
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        q, k = (random_input((1, tokens, heads, size), dtype, device) for _ in range(2))
        v = random_input((1, tokens, values, inner), dtype, device)
        beta = torch.rand((1, tokens, values), dtype=q.dtype, device=device, requires_grad=True)
        # Logarithms of decays are negative.
        g = torch.rand((1, tokens, values), device=device).neg().requires_grad_()
        out, _ = chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
        out.sum().backward()

    return Layer("gated_delta_rule", _launches(_DELTA_RULE, sizes, dtype), run)


def _gla(sizes: Mapping[str, int], dtype: str) -> Layer:
    heads, _, size, inner = sizes.values()

    def run(tokens: int, device: str) -> None:
        import torch
        from fla.ops.gla import chunk_gla

        q, k = (random_input((1, tokens, heads, size), dtype, device) for _ in range(2))
        v = random_input((1, tokens, heads, inner), dtype, device)
        g = torch.rand((1, tokens, heads, size), dtype=q.dtype, device=device).neg()
        out, _ = chunk_gla(q, k, v, g.requires_grad_())
        out.sum().backward()

    return Layer("gated_linear_attention", _launches(_GLA, sizes, dtype), run)


def _launches(
    table: Iterable[_Row],
    sizes: Mapping[str, int],
    dtype: str,
) -> tuple[LayerLaunch, ...]:
    found = []
    for place, tensor, letters, given in table:
        named: Mapping[str, str | bool] = (
            {one: one for one in given.split()} if isinstance(given, str) else given
        )
        key: dict[str, Value] = {
            name: sizes[one] if isinstance(one, str) else one for name, one in named.items()
        }
        # The delta rule's gates are sums in float32, whatever the model's dtype.
        key[tensor] = "float32" if letters == "HV" else dtype
        elements = math.prod(sizes[letter] for letter in letters.split())
        found.append(LayerLaunch(f"fla.{place}", key, (tensor, elements)))
    return tuple(found)


def _scale_size(size: float, model: Mapping[str, Any], name: str, default: float) -> int:
    """A size times the factor of that name; raises TunerError where the factor is no number."""
    factor = model.get(name, default)
    number_given = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not number_given or not abs(factor) < _LIMIT:
        raise TunerError(f"the model's config has {name} {factor!r:.40}", "give a number")
    return int(size * factor)


def config_folder(package: Path | None, device: str, environment: Mapping[str, str]) -> Path | None:
    """Where the library looks for its config files on a device of the driver's name."""
    if own := environment.get("FLA_CONFIG_DIR"):
        return Path(own)
    if package is None:
        return None
    word = environment.get("FLA_GPU_NAME", device)
    return package / "configs" / (re.sub(r"[^0-9A-Za-z]+", "_", word).strip("_") or "unknown_gpu")
