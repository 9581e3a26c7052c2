"""Take the decorators of a kernel apart: heuristics, an autotuner, heuristics, the jitted function.

Kernels are recognised by their attributes, so that nothing is imported for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

#: The functions of one `@triton.heuristics`, by the names that they compute.
Rules: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decorated:
    """A kernel with its decorators."""

    #: What the library launches.
    top: Any
    #: The function under `@triton.jit`.
    jitted: Any
    #: The autotuner, Triton's or ours; None where there is none.
    tuner: Any
    #: Heuristics that run before a config is known, outermost first; all without an autotuner.
    outer: tuple[Rules, ...]
    #: Names that heuristics between autotuner and function compute.
    inner: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The kernel's parameters."""
        return list(self.jitted.arg_names)

    @property
    def base(self) -> Any:
        """The Python function."""
        return self.jitted.fn

    @property
    def launched(self) -> Any:
        """The part that is run with a config of a table, after the outer heuristics."""
        return self.jitted if self.tuner is None else self.tuner.fn

    @property
    def constants(self) -> frozenset[str]:
        """The parameters that are constants of the compiler, which a config may replace."""
        return frozenset(
            name
            for name, kind in getattr(self.base, "__annotations__", {}).items()
            if "constexpr" in (kind if isinstance(kind, str) else getattr(kind, "__name__", ""))
        )

    def compute(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """The keywords of a launch, with what the outer heuristics compute. Raises their errors."""
        found = dict(kwargs)
        if self.outer:
            by_place = dict(zip(self.jitted.arg_names, args, strict=False))
            for rules in self.outer:
                for name, rule in rules.items():
                    if name not in without:
                        found[name] = rule({**by_place, **found})
        return found

    @property
    def computed(self) -> frozenset[str]:
        """All names that heuristics compute."""
        return self.inner.union(*self.outer)


def taken_apart(found: Any) -> Decorated | None:
    """The parts of a kernel; None for any other object, such as a launcher of a library's own."""
    outer: list[Rules] = []
    inner: list[Rules] = []
    tuner = None
    for part in _layers(found):
        rules = getattr(part, "values", None)
        if hasattr(part, "configs") and hasattr(part, "keys"):
            if tuner is not None:
                return None
            tuner = part
        elif isinstance(rules, Mapping):
            (outer if tuner is None else inner).append(rules)
        elif hasattr(part, "arg_names") and inspect.isfunction(getattr(part, "fn", None)):
            return Decorated(found, part, tuner, tuple(outer), frozenset().union(*inner))
        else:
            return None
    return None


def _layers(found: Any) -> Iterator[Any]:
    while found is not None and not inspect.isfunction(found) and not inspect.isclass(found):
        yield found
        found = getattr(found, "fn", None)
