"""The digests of code under which a kernel finds its tables, current and old ones."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .identity import kernel_hash


def source_hash(*functions: Any) -> str:
    """The digest in old tables: over the text of kernels. `kernel_hash` replaces it."""
    return _digest(*(source_text(fn) for fn in functions))


def accepted_hashes(fn: Any) -> frozenset[str]:
    """All digests under which a table of this kernel is valid.

    These are the digest of the device code and, for old tables, of the text from `def` on, of the
    function with its decorators, and of the module.
    """
    base = base_function(fn)
    readers: tuple[Callable[[], str], ...] = (
        lambda: source_text(fn),
        lambda: inspect.getsource(base),
        lambda: inspect.getsource(sys.modules[base.__module__]),
    )
    accepted = set()
    for reader in readers:
        with suppress(OSError, TypeError, KeyError):
            accepted.add(_digest(reader()))
    with suppress(Exception):  # user code runs here; its errors must not stop a launch
        accepted.add(kernel_hash(fn))
    return frozenset(accepted)


def source_text(fn: Any) -> str:
    """A kernel's text from `def` on. It is equal for compiled and for interpreted kernels."""
    text = getattr(fn, "src", None)
    if isinstance(text, str):
        return text
    base = base_function(fn)
    text = textwrap.dedent(inspect.getsource(base))
    start = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
    return text[start.start() :] if start else text


def base_function(fn: Any) -> Any:
    """The Python function below all decorators."""
    while not inspect.isfunction(fn) and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _digest(*texts: str) -> str:
    sha = hashlib.sha256()
    for text in texts:
        sha.update(text.encode())
    return sha.hexdigest()[:16]
