"""What the interpreter computes in a variant, so that variants with equal launches run once.

Compiler options such as `num_warps` and `num_stages` reach a kernel only where it has parameters of
these names. Configs that differ in nothing else are one computation on the same tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.kernel import Launch

if TYPE_CHECKING:
    import torch

_PLAIN = (bool, int, float, str, type(None))


def computation(launches: Sequence[Launch], tensors: Mapping[str, torch.Tensor]) -> Hashable:
    """A key that is equal for launches that compute the same on these tensors.

    None where it cannot be told: for a function with other decorators than `triton.jit`, for an
    argument that is no plain value, and for a tensor outside the memory of `tensors`, whose
    contents may differ.
    """
    from triton.runtime.interpreter import InterpretedFunction

    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    keys = []
    for launch in launches:
        if type(launch.fn) is not InterpretedFunction:
            return None
        names = inspect.getfullargspec(launch.fn.fn).args
        passed = [*zip(names, launch.args, strict=False)]
        passed += [item for item in sorted(launch.kwargs.items()) if item[0] in names]
        values = [_value(value, memory) for _, value in passed]
        if None in values or len(launch.args) > len(names):
            return None
        given = tuple(zip((name for name, _ in passed), values, strict=True))
        keys.append((launch.fn, tuple(launch.grid), given))
    return tuple(keys)


def _value(value: Any, memory: Iterable[int]) -> Hashable:
    """A plain value with its type, or a tensor's place and layout; None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.untyped_storage().data_ptr() not in memory:
            return None
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype
    # By their text: -0.0 equals 0.0.
    return (type(value), repr(value)) if type(value) in _PLAIN else None
