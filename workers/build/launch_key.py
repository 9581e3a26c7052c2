"""What decides whether a launch finds its binary: the parts of Triton's cache key, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

#: Part of a key -> its value as text. Two launches have one binary exactly when all parts agree.
LaunchKey: TypeAlias = Mapping[str, str]

_SHOWN = 3
_ABSENT = "nothing"


def parts(source: Any, backend: Any, options: Any, variables: Mapping[str, Any]) -> LaunchKey:
    """The parts of the key that Triton makes of these, for a kernel written in Python."""
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
    """Which parts of a launch's key are not as they were in the nearest build of that kernel."""
    name = launched["kernel"]
    same = [key for key in built if key["kernel"] == name]
    if not same:
        others = ", ".join(dict.fromkeys(key["kernel"] for key in built)) or "nothing"
        return f"`{name}` was not built for this variant ({others} was)"
    found = min((_differing(key, launched) for key in same), key=len)
    if not found:
        return f"the key of `{name}` is the same; its files were not in the cache"
    more = f"; {len(found) - _SHOWN} more parts" if len(found) > _SHOWN else ""
    return f"`{name}`: {'; '.join(found[:_SHOWN])}{more}"


def _differing(built: LaunchKey, launched: LaunchKey) -> list[str]:
    return [
        f"{part} was {built.get(part, _ABSENT)} when built, "
        f"is {launched.get(part, _ABSENT)} when launched"
        for part in {**built, **launched}
        if built.get(part) != launched.get(part)
    ]


@contextmanager
def watch_keys(seen: list[LaunchKey]) -> Iterator[None]:
    """Write down the key of every kernel that Triton looks for on disk inside the block."""
    from triton.compiler import compiler

    before = getattr(compiler, "get_cache_key", None)
    if before is None:
        yield
        return

    def get_cache_key(source: Any, backend: Any, options: Any, env_vars: Any) -> Any:
        if hasattr(source, "fn"):
            seen.append(parts(source, backend, options, env_vars))
        return before(source, backend, options, env_vars=env_vars)

    compiler.get_cache_key = get_cache_key
    try:
        yield
    finally:
        compiler.get_cache_key = before
