"""The workload of a launch of a kernel without a declaration: all that the kernel can see.

`tuner.capture` writes such keys into tables, `tuner.apply` finds them again at a launch.

    n_cols = 8192               a scalar: its value; a constant or a dtype likewise
    x = "bfloat16[4096,8192]"   a tensor: dtype and sizes
    bias = null                 an argument that is None
    low = "-inf"                a float that JSON lacks: inf, -inf or nan
    mode = "library:Mode.FAST"  a member of an enumeration; its number or text if it is one
    desc = "descriptor(bfloat16[64,128],64,128/128,1)"
                                a tensor descriptor: its tensor, shape and strides
    sizes = "(4,bfloat16[8])"   a tuple
    grid = "4096"               a tuple as grid, without its trailing ones; null for a function

After the sizes of a tensor a key may have strides, memory that is shared and an address
(`float32[64,64](1,64)=x+16@8`). A kernel sees these only through other arguments, so they do not
count in a comparison. A tensor without sizes, `bfloat16`, is one of any shape. A key may omit the
grid, and arguments that have their defaults.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from ._entry import Value

#: The dim of the grid. No parameter of a kernel has this name: launches pass their grid by it.
GRID = "grid"
#: Larger integers are text in a key: a table holds none.
_MAX_INTEGER = 2**63 - 1
_TENSOR = re.compile(r"(\b[a-z]\w*\[[\d,]*\])(?:\([-\d,]*\))?(?:=\w+(?:[+-]\d+)?)?(?:@\d+)?")


def call_key(
    arguments: Mapping[str, Any], grid: Any, without: Collection[str] = ()
) -> dict[str, Value]:
    """The key of a launch.

    arguments: by name, with defaults; tensors may be on the device `meta`. grid: as it was given to
    the launch, a tuple or a function. without: arguments that are no part of the problem, which are
    those that configs set and those that heuristics compute.
    """
    key = {name: describe(value) for name, value in arguments.items() if name not in without}
    key[GRID] = grid_text(grid)
    return key


def is_call_key(key: Mapping[str, Value]) -> bool:
    """Whether a key describes a launch, in contrast to the dims of a declared kernel."""
    return GRID in key or any(isinstance(value, str) and "[" in value for value in key.values())


@lru_cache(maxsize=16384)
def sizes_alone(text: str) -> str:
    """The text of an argument without strides, shared memory and address of tensors."""
    return _TENSOR.sub(r"\1", text)


def grid_text(grid: Any) -> str | None:
    """`4096` of the grid (4096, 1); None of a function."""
    if callable(grid):
        return None
    sizes = [int(size) for size in (grid if isinstance(grid, Sequence) else (grid,))]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return ",".join(map(str, sizes))


def describe(value: Any) -> Value:
    """An argument as a table holds it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration of texts, the text
    if isinstance(value, int):
        return int(value) if abs(value) <= _MAX_INTEGER else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if is_descriptor(value):
        sizes = "/".join(_sizes(getattr(value, part)) for part in ("shape", "strides"))
        return f"descriptor({describe(value.base)},{sizes})"
    if is_tensor(value):
        return f"{dtype_text(value.dtype)}[{_sizes(value.shape)}]"
    if isinstance(value, Sequence):
        return f"({','.join(str(describe(part)) for part in value)})"
    if (meant := plain(value)) is not value:
        return describe(meant)
    if isinstance(value, Enum):
        return f"{type(value).__module__}:{type(value).__qualname__}.{value.name}"
    if name := getattr(value, "__name__", ""):
        return f"{getattr(value, '__module__', '')}:{name}"
    return type(value).__name__


def plain(value: Any) -> Any:
    """The value that an argument stands for: the text of a dtype, the value of a constant."""
    kind = type(value)
    if kind.__name__ == "constexpr":
        return plain(value.value)
    if kind.__name__ == "dtype":
        return dtype_text(value)
    is_number = kind.__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def dtype_text(dtype: Any) -> str:
    """`float16` of `torch.float16`."""
    return str(dtype).rpartition(".")[2]


def is_tensor(value: Any) -> bool:
    """Whether an argument is passed as a pointer."""
    return hasattr(value, "dtype") and hasattr(value, "data_ptr")


def is_descriptor(value: Any) -> bool:
    """Whether an argument is a tensor descriptor that the host has made."""
    return hasattr(value, "block_shape") and hasattr(value, "base")


def _sizes(sizes: Sequence[int]) -> str:
    return ",".join(str(int(size)) for size in sizes)
