"""Counts the compilations of this process, which shows whether a launch was a cache hit."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from workers.compiling.launch_key import LaunchKey, record_keys, settle_source_hashes


@dataclass(slots=True)
class Compilations:
    """The compilations inside a block."""

    #: Names of compiled Triton kernels and C++ sources, in order.
    names: list[str] = field(default_factory=list)
    #: Cache keys of all Triton kernels that were looked up on disk.
    keys: list[LaunchKey] = field(default_factory=list)
    #: The keys that were not in the cache.
    missed: list[LaunchKey] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.names)


@contextmanager
def count_compilations(*, import_inductor: bool = True) -> Iterator[Compilations]:
    """Count every compilation inside the block by Triton or by Inductor's C++ backend.

    Cache hits do not count, nor do Triton's host-side stubs, which are compiled once per machine.
    import_inductor: import Inductor in order to count; when False, Inductor counts only if it is
    already loaded. Blocks may nest; each has its own count.
    """
    compilations = Compilations()
    with ExitStack() as stack:
        if importlib.util.find_spec("triton") is not None:
            stack.enter_context(_count_triton(compilations))
        loaded = "torch._inductor.cpp_builder" in sys.modules
        if loaded or import_inductor:
            stack.enter_context(_count_inductor(compilations))
        yield compilations


@contextmanager
def _count_triton(compilations: Compilations) -> Iterator[None]:
    from triton import knobs

    before: Callable[..., None] | None = knobs.compilation.listener

    def listener(*, cache_hit: bool, src: Any, metadata: Any, **rest: Any) -> None:
        if not cache_hit:
            compilations.names.append(str(getattr(src, "name", "triton kernel")))
            if compilations.keys and compilations.keys[-1]["kernel"] == compilations.names[-1]:
                compilations.missed.append(compilations.keys[-1])
        if before is not None:
            before(src=src, metadata=metadata, cache_hit=cache_hit, **rest)

    knobs.compilation.listener = listener
    try:
        settle_source_hashes()
        with record_keys(compilations.keys):
            yield
    finally:
        knobs.compilation.listener = before


@contextmanager
def _count_inductor(compilations: Compilations) -> Iterator[None]:
    from torch._inductor.cpp_builder import CppBuilder

    before = CppBuilder.build

    def build(self: Any) -> None:
        compilations.names.append(str(self.get_target_file_path()).rpartition("/")[2])
        before(self)

    CppBuilder.build = build
    try:
        yield
    finally:
        CppBuilder.build = before
