"""When launches may compile kernels: the environment variable TUNER_COMPILE."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ._text import printable
from ._warn import warn_once

#: `call`: a launch compiles what it needs. `warm`: operators compile inside `ops.warm` alone.
#: `never`: operators, decorated and applied kernels run what is compiled.
VARIABLE = "TUNER_COMPILE"
_MODES = ("call", "warm", "never")
_thread = threading.local()


class NotCompiled(RuntimeError):
    """A launch needs a kernel that is not compiled, and TUNER_COMPILE=never."""


def compile_mode() -> str:
    """The mode; an unknown word is logged once, and means `call`."""
    word = os.environ.get(VARIABLE, _MODES[0])
    if word not in _MODES:
        shown = printable(word, 40)
        text = f"{VARIABLE} is {shown}, not {', '.join(_MODES)}; calls compile"
        warn_once((VARIABLE, word), text)
        return _MODES[0]
    return word


def never_compiles() -> bool:
    """Whether launches of operators, decorated and applied kernels never compile."""
    return os.environ.get(VARIABLE) == "never"


@contextmanager
def without_compiler() -> Iterator[None]:
    """With TUNER_COMPILE=never, let what would compile in this thread raise NotCompiled."""
    before = getattr(_thread, "refuses", False)
    _thread.refuses = before or never_compiles()
    try:
        yield
    finally:
        _thread.refuses = before


def refuse(name: str) -> None:
    """Raise NotCompiled inside of `without_compiler`; name: the kernel that is not compiled."""
    if getattr(_thread, "refuses", False):
        raise NotCompiled(f"{name} is not compiled for this call, and {VARIABLE}=never")
