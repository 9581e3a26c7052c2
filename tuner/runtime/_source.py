"""The identity of a kernel's source, so that a table of other code is not mistaken for its own."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any


def source_hash(*functions: Any) -> str:
    """The digest that tables carry, over the text of kernels (jitted, decorated or plain)."""
    return _digest(*(source_text(fn) for fn in functions))


def accepted_hashes(fn: Any) -> frozenset[str]:
    """Digests under which a kernel's table may be kept: of the kernel from `def` on, of the
    function with its decorators, and of its module.

    Declared and adopted kernels may name any of them as what decides the binary.
    """
    base = base_function(fn)
    readers: tuple[Callable[[], str], ...] = (
        lambda: source_text(fn),
        lambda: inspect.getsource(base),
        lambda: inspect.getsource(sys.modules[base.__module__]),
    )
    accepted = set()
    for reader in readers:
        try:
            accepted.add(_digest(reader()))
        except (OSError, TypeError, KeyError):
            continue
    return frozenset(accepted)


def source_text(fn: Any) -> str:
    """A kernel's text from `def` on, the same whether Triton compiles or interprets it."""
    text = getattr(fn, "src", None)
    if isinstance(text, str):
        return text
    base = base_function(fn)
    text = textwrap.dedent(inspect.getsource(base))
    start = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
    return text[start.start() :] if start else text


def base_function(fn: Any) -> Any:
    """The Python function under any number of decorators."""
    while not inspect.isfunction(fn) and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _digest(*texts: str) -> str:
    sha = hashlib.sha256()
    for text in texts:
        sha.update(text.encode())
    return sha.hexdigest()[:16]
