"""Adapters of fla, FlagGems and Liger-Kernel for tuner, as an example of an integration."""

from __future__ import annotations

from library_adapters.fla import Fla
from library_adapters.flag_gems import FlagGems
from library_adapters.liger import Liger

__all__ = ["LIBRARIES", "Fla", "FlagGems", "Liger"]

#: By the names that `tuner check --library` takes.
LIBRARIES = {library.name: library for library in (Fla, FlagGems, Liger)}
