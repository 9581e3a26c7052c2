"""Fewer replacements of Triton's language by its interpreter.

In a launch the interpreter replaces the functions of `triton.language` by its own. It does so again
whenever one jitted function calls another, such as `tl.sum`, and searches all members of the
language each time. Once in a launch is enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def replace_once_a_launch(interpreter: Any) -> None:
    """Make the module `triton.runtime.interpreter` replace the language once in a launch."""
    once = _Once(interpreter._patch_lang)
    interpreter._patch_lang = once.replace
    interpreter.GridExecutor.__call__ = once.launching(interpreter.GridExecutor.__call__)


class _Once:
    """Skips replacements that the present launch has made."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace
        self._replaced: set[frozenset[str]] = set()
        self._modules: dict[Any, frozenset[str]] = {}

    def launching(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """A launch, which undoes its own replacements at its end."""

        def run(*arguments: Any, **by_name: Any) -> Any:
            self._replaced.clear()
            try:
                return launch(*arguments, **by_name)
            finally:
                self._replaced.clear()

        return run

    def replace(self, fn: Any) -> Any:
        """Replace the language modules that a function names; nothing if that has been done."""
        modules = self._modules.get(fn)
        if modules is None:
            modules = self._modules[fn] = _language_modules(fn)
        if modules in self._replaced:
            return None
        self._replaced.add(modules)
        return self._replace(fn)


def _language_modules(fn: Any) -> frozenset[str]:
    """The names of the language modules among a function's globals."""
    found = (value for value in fn.__globals__.values() if inspect.ismodule(value))
    names = {module.__name__ for module in found}
    return frozenset(names & {"triton.language", "triton.language.core"})
