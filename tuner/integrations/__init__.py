"""Tables of configs that kernel libraries load: adapters by name.

`adapter.py` is the role. An adapter knows the shapes that a model needs, the names and places of
the library's files, their format, the row that the library takes for a size, and its config
without a table. `kernel_library.py` is the role for libraries without tables of their own: their
kernels are tuned by captured calls. Everything here works on a machine that has neither the library
nor a GPU; only `Layer.run` needs both.
"""

from __future__ import annotations

from typing import cast

from search_spaces.plugins import PluginGroup
from tuner.integrations.adapter import (
    USUAL_SIZES,
    Adapter,
    Place,
    Shape,
    SizeTable,
    TableKey,
    tables_in,
)
from tuner.integrations.kernel_library import KernelLibrary, Layer, LayerLaunch
from tuner.integrations.model_configs import load_model

__all__ = [
    "USUAL_SIZES",
    "Adapter",
    "KernelLibrary",
    "Layer",
    "LayerLaunch",
    "Place",
    "Shape",
    "SizeTable",
    "TableKey",
    "adapter",
    "adapters",
    "kernel_libraries",
    "kernel_library",
    "libraries",
    "load_model",
    "tables_in",
]

ADAPTERS = PluginGroup(
    "tuner.integrations",
    "adapter",
    {
        "sglang-block-fp8": "tuner.integrations.sglang:SglangBlockFp8",
        "sglang-moe": "tuner.integrations.sglang:SglangMoe",
        "vllm-block-fp8": "tuner.integrations.vllm:VllmBlockFp8",
        "vllm-moe": "tuner.integrations.vllm:VllmMoe",
    },
)

KERNEL_LIBRARIES = PluginGroup(
    "tuner.kernel_libraries",
    "kernel library",
    {
        "fla": "tuner.integrations.fla:Fla",
        "flag_gems": "tuner.integrations.flag_gems:FlagGems",
        "liger": "tuner.integrations.liger:Liger",
    },
)


def adapter(name: str) -> Adapter:
    """The adapter of a name, `vllm-moe`; raises TunerError for an unknown name."""
    return cast("type[Adapter]", ADAPTERS.load(name))()


def adapters(library: str = "") -> list[Adapter]:
    """All adapters, or those of one library; raises TunerError for an unknown library."""
    from search_spaces.errors import TunerError
    from search_spaces.near_names import did_you_mean

    found = [adapter(name) for name in ADAPTERS.names()]
    known = sorted({one.library for one in found})
    if library in KERNEL_LIBRARIES.names():
        raise TunerError(
            f"{library} loads no tables of its own",
            "use `tuner doctor --library`, and `tuner apply` for tables of captured calls",
        )
    known += KERNEL_LIBRARIES.names()
    if library and library not in known:
        raise TunerError(
            f"no adapter knows the library {library!r}{did_you_mean(library, known)}",
            f"choose one of {', '.join(known)}",
        )
    return [one for one in found if library in ("", one.library)]


def libraries() -> list[str]:
    """The libraries with an adapter."""
    return sorted({one.library for one in adapters()})


def kernel_library(name: str) -> KernelLibrary:
    """The library of a name, `liger`; raises TunerError for an unknown name."""
    return cast("type[KernelLibrary]", KERNEL_LIBRARIES.load(name))()


def kernel_libraries() -> list[str]:
    """The libraries without tables of their own."""
    return sorted(KERNEL_LIBRARIES.names())
