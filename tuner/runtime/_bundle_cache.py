"""What Triton asks for compiled kernels: bundles first, then the cache that it would ask.

Triton finds the class by the variable TRITON_CACHE_MANAGER, and its kind by the name of its base.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from functools import cached_property
from typing import Any

from ._bundle import BUNDLES, FORMER, Bundle
from ._compile_mode import refuse


class CacheManager:
    """Triton's role."""


class BundleCache(CacheManager):
    """The files of one key of Triton's cache. Bundles are read only."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key, self._plain = key, not (override or dump)
        self._options = {"override": override, "dump": dump}

    @cached_property
    def _rest(self) -> Any:
        """The cache that would be asked; it makes its folder."""
        module, _, name = os.environ.get(FORMER, "").partition(":")
        module, name = (module, name) if name else ("triton.runtime.cache", "FileCacheManager")
        return getattr(importlib.import_module(module), name)(self._key, **self._options)

    def get_file(self, filename: str) -> str | None:
        for bundle in BUNDLES if self._plain else ():
            if path := bundle.find_module(self._key, filename):
                return path
        return self._rest.get_file(filename)  # type: ignore[no-any-return]

    def get_group(self, filename: str) -> dict[str, str] | None:
        for bundle in filter(is_usable, BUNDLES) if self._plain else ():
            group = bundle.find_group(self._key)
            if filename in group:
                return group
        try:
            found = self._rest.get_group(filename)
        except OSError:  # a folder that cannot be made
            refuse(filename.removesuffix(".json"))
            raise
        if filename not in (found or ()):
            refuse(filename.removesuffix(".json"))
        return found  # type: ignore[no-any-return]

    def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
        return self._rest.put(data, filename, binary)  # type: ignore[no-any-return]

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self._rest.put_group(filename, group)  # type: ignore[no-any-return]


def is_usable(bundle: Bundle) -> bool:
    """Whether a bundle is for this card, Triton and assembler; says once why not."""
    target = importlib.import_module("triton.runtime").driver.active.get_current_target()
    name = f"{target.backend}:{target.arch}"
    if name not in bundle.misfits:
        bundle.misfits[name] = _find_misfit(bundle, name, target)
    if bundle.misfits[name]:
        bundle.warn(bundle.misfits[name])
    return not bundle.misfits[name]


def _find_misfit(bundle: Bundle, name: str, target: Any) -> str:
    if name not in bundle.targets:
        return f"is for {', '.join(bundle.targets)}, this card is {name}"
    if bundle.triton != triton_digest():
        return "was made with another build of this Triton"
    made, here = bundle.targets[name], assembler(target)
    if made != here:
        return f"was made with the assembler {_shorten(made)}, this is {_shorten(here)}"
    return ""


def assembler(target: Any) -> str:
    """What assembles for a target, as Triton's keys have it."""
    compiler = importlib.import_module("triton.compiler.compiler")
    return str(compiler.make_backend(target).hash())


def triton_digest() -> str:
    """A digest of Triton's own files."""
    key = importlib.import_module("triton.runtime.cache").triton_key()
    return hashlib.sha256(key.encode()).hexdigest()


def _shorten(text: str) -> str:
    found = re.search(r"V[\d.]+", text)
    return found.group() if found else text.strip().splitlines()[-1][:60]
