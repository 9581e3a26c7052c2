"""The role of a library that has no tables of its own: its kernels, and the launches of a model.

Users launch such kernels by the library's functions. So a layer has two halves that must agree: a
function that makes the launches, to be captured, and what is known of these launches without the
library or a GPU, by which `tuner doctor` finds their entries in tables.

    library = integrations.kernel_library("liger")
    for layer in library.layers(model, tensor_parallel=2):
        layer.run(4096, "cuda")              # its launches for 4096 tokens, forward and backward
        layer.launches                       # kernels, with the arguments that the layer decides
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from search_spaces.errors import TunerError
from search_spaces.records import Value
from tuner.integrations.model_configs import text_model

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


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """A config in a file or database that the library itself keeps on a machine."""

    path: Path
    #: The name of the `@triton.jit` function; empty for a file that is damaged.
    kernel: str
    #: The Triton that it is for, as far as the file says so.
    triton: str
    #: The arguments that it is for; None where the file does not say it in words.
    key: Mapping[str, Value] | None = None


class KernelLibrary(ABC):
    """A library whose kernels are tuned by captured calls; stateless."""

    #: The name on command lines.
    name: ClassVar[str]
    #: Its name on PyPI, and the version whose code these facts were read from.
    distribution: ClassVar[str]
    version: ClassVar[str]
    #: The top-level module.
    module: ClassVar[str]
    #: How to make a missing config of a layer; empty: capture its calls and tune them.
    remedy: ClassVar[str] = ""
    #: Whether its kernels list no configs, so that a search needs an opened space.
    plain: ClassVar[bool] = False

    @abstractmethod
    def layers(self, model: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
        """The layers of a model that run in kernels of the library; empty where there is none.

        model: its `config.json`. Raises TunerError where it lacks a field or does not divide.
        """

    def looked_up(self, tokens: int) -> int:
        """The number of tokens in the key by which a config for that many is found."""
        return tokens

    def own_configs(
        self, package: Path | None, device: str, environment: Mapping[str, str]
    ) -> Iterator[OwnConfig]:
        """What the library itself keeps for a device. package: its folder, where it is known."""
        return iter(())


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
