"""Tables of configs that kernel libraries load: adapters by name.

`adapter.py` is the role. An adapter knows the shapes that a model needs, the names and places of
the library's files, their format, the row that the library takes for a size, and its config
without a table. `kernel_library.py` is the role for libraries without tables of their own, whose
adapters other packages bring. Everything here works on a machine that has neither the library nor
a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
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
from tuner.integrations.kernel_library import (
    DoctorQuestion,
    ExaminedLaunch,
    KernelLibrary,
    TableState,
)
from tuner.integrations.model_configs import (
    divide,
    experts_of,
    load_model,
    number,
    products_of,
    quantization_of,
    text_model,
)

__all__ = [
    "USUAL_SIZES",
    "Adapter",
    "DoctorQuestion",
    "ExaminedLaunch",
    "KernelLibrary",
    "Place",
    "Shape",
    "SizeTable",
    "TableKey",
    "TableState",
    "adapter",
    "adapters",
    "divide",
    "experts_of",
    "kernel_libraries",
    "kernel_library",
    "load_model",
    "number",
    "products_of",
    "quantization_of",
    "tables_in",
    "text_model",
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
KERNEL_LIBRARIES = PluginGroup("tuner.kernel_libraries", "kernel library", {})
#: Those of the package in `examples/library_adapters`, which may not be installed.
_IN_EXAMPLE = ("fla", "flag_gems", "liger")


def adapter(name: str) -> Adapter:
    """The adapter of a name, `vllm-moe`; raises TunerError for an unknown name."""
    return cast("type[Adapter]", ADAPTERS.load(name))()


def adapters(library: str = "") -> list[Adapter]:
    """All adapters, or those of one library; raises TunerError for an unknown library."""
    found = [adapter(name) for name in ADAPTERS.names()]
    if library in kernel_libraries():
        raise TunerError(
            f"{library} loads no tables of its own",
            "use `tuner check --library`, and `tuner apply` for tables of captured calls",
        )
    known = sorted({*kernel_libraries(), *(one.library for one in found)})
    if library and library not in known:
        raise TunerError(
            f"no adapter knows the library {library!r}{did_you_mean(library, known)}",
            f"choose one of {', '.join(known)}",
        )
    return [one for one in found if library in ("", one.library)]


def kernel_library(name: str) -> KernelLibrary:
    """The library of a name, `liger`; raises TunerError for one whose adapter is not installed."""
    if name in _IN_EXAMPLE and name not in KERNEL_LIBRARIES.names():
        raise TunerError(
            f"the adapter of {name} is in a package that is not installed: tuner-library-adapters",
            "pip install ./examples/library_adapters, in a checkout of tuner",
        )
    return cast("Callable[[], KernelLibrary]", KERNEL_LIBRARIES.load(name))()


def kernel_libraries() -> list[str]:
    """The known libraries without tables of their own, with or without an adapter here."""
    return sorted({*_IN_EXAMPLE, *KERNEL_LIBRARIES.names()})
