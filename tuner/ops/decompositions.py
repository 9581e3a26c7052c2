"""What `torch.compile` makes of an operator: itself, or torch's function, which it can fuse.

An operator is opaque to a compiler. Inductor, the compiler of `torch.compile`, asks for the
decomposition of each operator of a graph before it makes code, and an operator answers with torch's
function unless its kernel was measured so much faster than what Inductor makes of that function
alone that fusing it with its neighbours is unlikely to gain more.

Functions are handed over when a graph with an operator is first traced: an import of the operators
must not load a compiler.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes as outside_of_tracing

from tuner.ops.choosing import numerics_of_calls
from tuner.runtime._lookup import PACKAGED
from tuner.runtime._table_files import search_path

#: Time of Inductor's code for torch's function over that of the implementation, both alone, from
#: which an operator stays: what Inductor fuses with its neighbours, whose reads and writes are
#: saved then; what it calls a library for; and what must not store what torch's function stores.
FUSED, UNFUSED, ALWAYS = 1.25, 1.02, 0.0

_decompositions: dict[Any, Callable[..., Any]] = {}
#: Graphs for which they were handed over.
_handed_to: weakref.WeakSet[TracingContext] = weakref.WeakSet()


def register(operator: Any, decompose: Callable[..., Any]) -> None:
    """Name the decomposition of a registered operator.

    decompose: of the operator's arguments; returns NotImplemented where the operator stays.
    """
    _decompositions[operator] = decompose


def hand_over() -> None:
    """Give all decompositions to Inductor, once for each graph that is traced for it."""
    context = TracingContext.try_get()
    if context is None or context in _handed_to or "torch._inductor" not in sys.modules:
        return
    _handed_to.add(context)
    with outside_of_tracing():
        from torch._inductor import config, decomposition, lowering

        # Compiled graphs are cached on disk by their operators and by this configuration: with
        # other tables, other operators stay.
        marked = getattr(config, "unsafe_marked_cacheable_functions", None)
        if marked is not None:
            marked[__name__] = _identify_tables()
        # Inductor keeps a copy of its table from its first graph on.
        for table in (decomposition.decompositions, decomposition.select_decomp_table()):
            table.update(_decompositions)
        # An operator that has a decomposition and stays is called only if it is listed.
        lowering.FALLBACK_ALLOW_LIST.update(each.name() for each in _decompositions)


def _identify_tables() -> str:
    """A digest of the names, sizes and dates of all files that tables are looked up in, and of the
    numerics."""
    found = hashlib.sha256(numerics_of_calls().encode())
    for path in map(Path, search_path(None, [PACKAGED])):
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            with suppress(OSError):
                state = file.stat()
                found.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()


def without_data(arguments: Sequence[Any]) -> list[Any] | None:
    """The arguments with tensors of the device `meta`, and sizes as in the call that is traced.

    None where a size is not known before the graph runs.
    """
    found = []
    for each in arguments:
        if isinstance(each, torch.Tensor):
            sizes = [_hint(size) for size in (*each.shape, *each.stride())]
            if None in sizes:
                return None
            shape, stride = sizes[: each.ndim], sizes[each.ndim :]
            found.append(torch.empty_strided(shape, stride, dtype=each.dtype, device="meta"))
        else:
            known = _hint(each)
            if known is None and each is not None:
                return None
            found.append(known)
    return found


def _hint(value: Any) -> Any:
    """A size or scalar, of a symbolic one its value in the call that is traced; else None."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    return value.node.hint if value.node.has_hint() else None
