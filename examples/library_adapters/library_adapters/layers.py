"""Layers of a model that run in a library's kernels, and the launches that they make.

Users launch such kernels by the library's functions. So a layer has two halves that must agree: a
function that makes the launches, to be captured, and what is known of these launches without the
library or a GPU, by which `tuner doctor` finds their entries in tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner import TunerError, Value
from tuner.integrations import text_model

_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")
_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class LayerLaunch:
    """One launch of a layer, as far as it does not depend on the number of tokens."""

    #: `module:object`, as in a table's provenance.
    kernel: str
    #: Arguments by name; a tensor is given by its dtype.
    key: Mapping[str, Value]
    #: A tensor argument with its number of elements per token, or a scalar that counts the tokens.
    per_token: tuple[str, int]

    def tokens(self, key: Mapping[str, Value]) -> int | None:
        """The number of tokens of a table's key; None where it is of another layer's launch."""
        if not all(name in key and _agrees(value, key[name]) for name, value in self.key.items()):
            return None
        name, elements = self.per_token
        counted = key.get(name)
        if isinstance(counted, int):
            return counted
        sizes = _TENSOR.match(f"{counted}")
        if sizes is None:
            return None
        tokens, rest = divmod(math.prod(int(one) for one in sizes[2].split(",") if one), elements)
        return None if rest else tokens


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model on one device."""

    #: `input_layernorm`, `mlp`.
    name: str
    launches: tuple[LayerLaunch, ...]
    #: Makes the launches for a number of tokens on a torch device; imports the library.
    run: Callable[[int, str], None]


def dtype_of(model: Mapping[str, Any]) -> str:
    """The dtype of the model's activations."""
    text = text_model(model)
    found = text.get("dtype") or text.get("torch_dtype") or _DTYPES[0]
    if found not in _DTYPES:
        raise TunerError(
            f"the model's dtype {found!r} is none of {', '.join(_DTYPES)}",
            "correct torch_dtype in config.json",
        )
    return f"{found}"


def _agrees(expected: Value, found: Value) -> bool:
    if isinstance(found, str) and (tensor := _TENSOR.match(found)):
        return tensor[1] == expected
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)


def random_input(sizes: tuple[int, ...], dtype: str, device: str) -> Any:
    """A tensor of normally distributed values whose gradient is computed."""
    import torch

    return torch.randn(sizes, dtype=getattr(torch, dtype), device=device, requires_grad=True)
