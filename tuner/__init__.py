"""tuner: a farm that tunes and benchmarks kernels, and ships the winners as tables.

`tuner.tune(...)` from Python, the command `tuner` from a shell, `tuner.runtime` inside a kernel
library. Importing this package loads none of the heavy dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["TuneResult", "TunerError", "__version__", "tune"]

if TYPE_CHECKING:
    from search_spaces.errors import TunerError
    from tuner.api import TuneResult, tune


def __getattr__(name: str) -> Any:
    if name in ("tune", "TuneResult"):
        from tuner import api

        return getattr(api, name)
    if name == "TunerError":
        from search_spaces.errors import TunerError

        return TunerError
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
