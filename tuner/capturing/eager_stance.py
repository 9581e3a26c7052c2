"""Functions that torch has compiled run eagerly while calls are recorded: what Inductor launches
are copies of kernels, without their arguments and grid."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tuner.runtime._import_watch import ImportWatch
from tuner.runtime._warn import warn_once

_DYNAMO = "torch._dynamo"
#: The stance that holds while calls are recorded; it knows the one before.
_stance: Any = None


def begin() -> None:
    """Run compiled functions eagerly, in all threads; where torch has no compiler yet, then."""
    if _DYNAMO in sys.modules:
        _force(_DYNAMO, sys.modules[_DYNAMO])
    else:
        _WATCH.watch(frozenset([_DYNAMO]))


def end() -> None:
    """Run compiled functions as before."""
    global _stance
    _WATCH.watch(frozenset())
    stance, _stance = _stance, None
    if stance is not None:
        stance.__exit__(None, None, None)


def _force(name: str, dynamo: ModuleType) -> None:
    global _stance
    try:
        _stance = sys.modules["torch"].compiler.set_stance("force_eager")
    except Exception as error:  # within a compiled function, or of another version of torch
        text = f"kernels in code that torch has compiled are not recorded here ({error})"
        warn_once((name, type(error)), text)


_WATCH = ImportWatch(_force, lambda: None)
