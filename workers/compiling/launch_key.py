"""The parts of Triton's cache key by name, which explain why a launch missed its binary."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from search_spaces.triton_versions import settle_cache_keys

#: Name of a part -> its value as text. Two launches use the same binary if and only if all parts
#: agree.
LaunchKey: TypeAlias = Mapping[str, str]

_SHOWN = 3
_ABSENT = "nothing"


def parts(source: Any, backend: Any, options: Any, variables: Mapping[str, Any]) -> LaunchKey:
    """The parts of the key that Triton computes from its arguments, for a Python kernel."""
    from triton.runtime.cache import triton_key

    names = list(source.signature)

    def place(path: Sequence[int]) -> str:
        return str(names[path[0]]) + "".join(f"[{index}]" for index in path[1:])

    def text(value: Any) -> str:
        return str(getattr(value, "cache_key", value))

    return {
        "kernel": source.name,
        "source code": source.fn.cache_key,
        "Triton": triton_key(),
        "assembler": backend.hash(),
        **{f"type of {name}": str(kind) for name, kind in source.signature.items()},
        **{f"constant {place(path)}": text(value) for path, value in source.constants.items()},
        **{f"alignment of {place(path)}": str(a) for path, a in source.attrs.items() if a},
        **{f"option {name}": str(value) for name, value in vars(options).items()},
        **{f"variable {name}": str(value) for name, value in variables.items()},
    }


def difference(built: Sequence[LaunchKey], launched: LaunchKey) -> str:
    """The parts of a launch's key that differ from the most similar build of that kernel."""
    name = launched["kernel"]
    same = [key for key in built if key["kernel"] == name]
    if not same:
        others = ", ".join(dict.fromkeys(key["kernel"] for key in built)) or "nothing"
        return f"`{name}` was not built for this variant ({others} was)"
    differing = min((_differing(key, launched) for key in same), key=len)
    if not differing:
        return f"the key of `{name}` is the same; its files were not in the cache"
    more = f"; {len(differing) - _SHOWN} more parts" if len(differing) > _SHOWN else ""
    return f"`{name}`: {'; '.join(differing[:_SHOWN])}{more}"


def _differing(built: LaunchKey, launched: LaunchKey) -> list[str]:
    return [
        f"{part} was {built.get(part, _ABSENT)} when built, "
        f"is {launched.get(part, _ABSENT)} when launched"
        for part in {**built, **launched}
        if built.get(part) != launched.get(part)
    ]


@contextmanager
def record_keys(keys: list[LaunchKey]) -> Iterator[None]:
    """Append the key of every kernel that Triton looks up on disk inside the block to `keys`."""
    from triton.compiler import compiler

    before = getattr(compiler, "get_cache_key", None)
    if before is None:
        yield
        return

    def get_cache_key(source: Any, backend: Any, options: Any, env_vars: Any) -> Any:
        if hasattr(source, "fn"):
            keys.append(parts(source, backend, options, env_vars))
        return before(source, backend, options, env_vars=env_vars)

    compiler.get_cache_key = get_cache_key
    try:
        yield
    finally:
        compiler.get_cache_key = before


# -- counts the compilations of this process, which shows whether a launch was a cache hit ---------
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
        settle_cache_keys()
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
