"""The workload of a launch of a kernel without a declaration: all that the kernel can see.

A kernel sees scalars, flags, dtypes of pointers, descriptors and its grid. It does not see the
shape of a tensor behind a pointer, so the key has shapes only where the grid is a function, whose
sizes may come from anywhere. `tuner.capture` writes such keys into tables, `tuner.apply` finds them
again at a launch.

    n_cols = 8192              a scalar: its value; a constant or a dtype likewise
    X = "bfloat16"             a pointer, where the grid is a tuple
    X = "bfloat16[4096x8192]"  a pointer, where the grid is a function
    bias = null                an argument that is None
    desc = "descriptor bfloat16[4096x8192]"
    sizes = "(4, bfloat16)"    a tuple
    grid = "4096"              the grid without its trailing ones; null for a function
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ._entry import Value

#: The dim of the grid. No parameter of a kernel has this name: launches pass their grid by it.
GRID = "grid"
#: Larger integers are text in a key: a table holds none.
_MAX_INTEGER = 2**63 - 1


def call_key(
    arguments: Mapping[str, Any], grid: Any, without: Collection[str] = ()
) -> dict[str, Value]:
    """The key of a launch.

    arguments: by name, with defaults; tensors may be on the device `meta`. grid: as it was given to
    the launch, a tuple or a function. without: arguments that are no part of the problem, which are
    those that configs set and those that heuristics compute.
    """
    shaped = callable(grid)
    key = {
        name: described(value, shaped) for name, value in arguments.items() if name not in without
    }
    key[GRID] = grid_text(grid)
    return key


def grid_text(grid: Any) -> str | None:
    """`4096` of the grid (4096, 1); None of a function."""
    if callable(grid):
        return None
    sizes = [int(size) for size in (grid if isinstance(grid, Sequence) else (grid,))]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return "x".join(map(str, sizes))


def described(value: Any, shaped: bool) -> Value:
    """An argument as a table holds it. shaped: whether a tensor's shape counts."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _MAX_INTEGER else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if is_descriptor(value):
        return f"descriptor {_tensor(value.base.dtype, value.shape)}"
    if is_tensor(value):
        return _tensor(value.dtype, value.shape if shaped else None)
    if isinstance(value, Sequence):
        return f"({', '.join(str(described(part, shaped)) for part in value)})"
    kind = type(value)
    if kind.__name__ == "constexpr":
        return described(value.value, shaped)
    if kind.__name__ == "dtype":
        return str(value).rpartition(".")[2]
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return described(value.item(), shaped)
    if name := getattr(value, "__name__", ""):
        return f"{getattr(value, '__module__', '')}:{name}"
    return kind.__name__


def is_tensor(value: Any) -> bool:
    """Whether an argument is passed as a pointer."""
    return hasattr(value, "dtype") and hasattr(value, "data_ptr")


def is_descriptor(value: Any) -> bool:
    """Whether an argument is a tensor descriptor that the host has made."""
    return hasattr(value, "block_shape") and hasattr(value, "base")


def _tensor(dtype: Any, shape: Sequence[int] | None) -> str:
    name = str(dtype).rpartition(".")[2]
    return name if shape is None else f"{name}[{'x'.join(str(int(size)) for size in shape)}]"
