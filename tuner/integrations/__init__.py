"""Tables of configs that kernel libraries load: adapters by name.

`adapter.py` is the role. An adapter knows the shapes that a model needs, the names and places of
the library's files, their format, the row that the library takes for a size, and its config
without a table. Everything here works on a machine that has neither the library nor a GPU.
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
from tuner.integrations.models import load_model

__all__ = [
    "USUAL_SIZES",
    "Adapter",
    "Place",
    "Shape",
    "SizeTable",
    "TableKey",
    "adapter",
    "adapters",
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


def adapter(name: str) -> Adapter:
    """The adapter of a name, `vllm-moe`; raises TunerError for an unknown name."""
    return cast("type[Adapter]", ADAPTERS.load(name))()


def adapters(library: str = "") -> list[Adapter]:
    """All adapters, or those of one library; raises TunerError for an unknown library."""
    from search_spaces.errors import TunerError
    from search_spaces.near_names import did_you_mean

    found = [adapter(name) for name in ADAPTERS.names()]
    known = sorted({one.library for one in found})
    if library and library not in known:
        raise TunerError(
            f"no adapter knows the library {library!r}{did_you_mean(library, known)}",
            f"choose one of {', '.join(known)}",
        )
    return [one for one in found if library in ("", one.library)]


def libraries() -> list[str]:
    """The libraries with an adapter."""
    return sorted({one.library for one in adapters()})
