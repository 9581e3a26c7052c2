"""The edges of inputs: values at which kernels go wrong though random numbers never show it.

A kernel declares the names of those that it must be right at (`Kernel.edges`). The gate puts them
into the rows of an input, one kind a row, and compares element by element with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.errors import KernelError

if TYPE_CHECKING:
    import torch

#: What fills a row, by name: a function of torch's facts on its dtype.
_VALUES: dict[str, Callable[[Any], float]] = {
    "lowest": lambda facts: facts.min,
    "largest": lambda facts: facts.max,
    "inf": lambda facts: math.inf,
    "-inf": lambda facts: -math.inf,
    "nan": lambda facts: math.nan,
    "zero": lambda facts: 0.0,
    "equal": lambda facts: 1.5,
    "tiny": lambda facts: facts.smallest_normal,
    "denormal": lambda facts: facts.smallest_normal / 4,
}
#: The same in every second element of a row, among random numbers.
_HALF = "half "
#: The edges of most kernels: sums and products of the largest numbers may overflow in float32.
SPECIAL_EDGES = (
    *("inf", "-inf", "nan", "zero", "equal", "tiny", "denormal"),
    *("half inf", "half -inf", "half nan"),
)
#: Those of normalizations: of infinite rows torch's own kernels give NaN on one device and 0 on
#: another.
NORM_EDGES = ("nan", "zero", "equal", "tiny", "denormal", "half nan")
#: Those of kernels that scale what they read, or compare it, before they add.
ALL_EDGES = (*SPECIAL_EDGES, "lowest", "largest", "half lowest")


def check_edges(kernel: str, names: Sequence[str]) -> None:
    """Raise `KernelError` for a name of no edge."""
    for name in names:
        if name.removeprefix(_HALF) not in _VALUES:
            raise KernelError(
                f"kernel {kernel}: {name!r} names no edge of inputs",
                f"write one of {', '.join(_VALUES)}, or `half` and one of them",
            )


def put_edges(
    inputs: Mapping[str, torch.Tensor], changed: Sequence[str], names: Sequence[str]
) -> list[dict[str, torch.Tensor]]:
    """Copies of inputs with edges in the rows of some of them; as many as hold all names.

    changed: the inputs that are changed; without any, the first of floating point with as many
    dims as any. A row is all of a tensor's last dim, and an element of a tensor of one dim.
    """
    floats = {name: item for name, item in inputs.items() if item.is_floating_point()}
    most = max((item.ndim for item in floats.values()), default=0)
    chosen = [*changed] or [name for name, item in floats.items() if item.ndim == most][:1]
    if not names or not chosen or not all(floats[name].numel() for name in chosen):
        return []
    rows = min(_rows(floats[name]).shape[0] for name in chosen)
    copies = []
    for first in range(0, len(names), rows):
        copy = {name: item.clone() for name, item in inputs.items()}
        for name in chosen:
            _fill(_rows(copy[name]), [*names[first:], *names[:first]])
        copies.append(copy)
    return copies


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A view with one row for each thing that an edge fills."""
    return tensor.view(-1, 1) if tensor.ndim < 2 else tensor.view(-1, tensor.shape[-1])


def _fill(rows: torch.Tensor, names: Sequence[str]) -> None:
    import torch

    facts: Any = torch.finfo(rows.dtype)
    for at, name in enumerate(names):
        value = _VALUES[name.removeprefix(_HALF)](facts)
        rows[at :: len(names), :: 2 if name.startswith(_HALF) else 1] = value
