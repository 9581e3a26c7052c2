"""Counts what this process really compiles: the proof that a launch was a cache hit."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from workers.build.launch_key import LaunchKey, watch_keys


@dataclass(slots=True)
class Compilations:
    """Compilations seen so far: Triton kernels and C++ sources, by name, in order.

    keys: the cache keys of all Triton kernels that were looked for on disk. missed: those of them
    that were not there.
    """

    names: list[str] = field(default_factory=list)
    keys: list[LaunchKey] = field(default_factory=list)
    missed: list[LaunchKey] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.names)


@contextmanager
def count_compilations(kind: str = "") -> Iterator[Compilations]:
    """Count every compilation inside the block by Triton or by Inductor's C++ backend.

    A cache hit counts nothing. Triton's own host-side stubs, compiled once per machine, are not
    kernels and are not counted. kind: with `cuda` or `hip`, Inductor is watched only if it is
    loaded already, which saves its import. Blocks may nest; each counts for itself.
    """
    seen = Compilations()
    with ExitStack() as stack:
        if importlib.util.find_spec("triton") is not None:
            stack.enter_context(_watch_triton(seen))
        loaded = "torch._inductor.cpp_builder" in sys.modules
        if loaded or kind not in ("cuda", "hip"):
            stack.enter_context(_watch_inductor(seen))
        yield seen


@contextmanager
def _watch_triton(seen: Compilations) -> Iterator[None]:
    from triton import knobs

    before: Callable[..., None] | None = knobs.compilation.listener

    def listener(*, cache_hit: bool, src: Any, metadata: Any, **rest: Any) -> None:
        if not cache_hit:
            seen.names.append(str(getattr(src, "name", "triton kernel")))
            if seen.keys and seen.keys[-1]["kernel"] == seen.names[-1]:
                seen.missed.append(seen.keys[-1])
        if before is not None:
            before(src=src, metadata=metadata, cache_hit=cache_hit, **rest)

    knobs.compilation.listener = listener
    try:
        with watch_keys(seen.keys):
            yield
    finally:
        knobs.compilation.listener = before


@contextmanager
def _watch_inductor(seen: Compilations) -> Iterator[None]:
    from torch._inductor.cpp_builder import CppBuilder

    before = CppBuilder.build

    def build(self: Any) -> None:
        seen.names.append(str(self.get_target_file_path()).rpartition("/")[2])
        before(self)

    CppBuilder.build = build
    try:
        yield
    finally:
        CppBuilder.build = before
