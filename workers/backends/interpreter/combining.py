"""Reductions and scans of Triton's interpreter with a kernel's own combining function.

The interpreter calls the function once for each element. It is associative, so it is called here
on whole tensors, about log2(n) times for n elements: a reduction combines neighbours, which keeps
their order, and a scan combines each element with the one that is 1, 2, 4 ... places before (W. D.
Hillis and G. L. Steele, "Data parallel algorithms", 1986).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def combine_by_pairs(interpreter: Any) -> None:
    """Correct the interpreter of this process."""
    reductions, scans = interpreter.ReduceOps, interpreter.ScanOps
    reductions.generic_reduce = _or_by_elements(_reduce, reductions.generic_reduce)
    scans.generic_scan = _or_by_elements(_scan, scans.generic_scan)


def _or_by_elements(
    combine: Callable[..., Any], by_elements: Callable[..., Any]
) -> Callable[..., Any]:
    """For a function that takes scalars only, such as one with an `if`, one call per element."""

    def apply(operation: Any, given: Any) -> Any:
        try:
            with _conditions_of_scalars(type(given[0])):
                return combine(operation, given)
        except Exception:
            return by_elements(operation, given)

    return apply


@contextmanager
def _conditions_of_scalars(tensor: Any) -> Iterator[None]:
    """Let no tensor of several elements be a condition; in the interpreter they all are true."""
    kept = tensor.__bool__

    def as_condition(value: Any) -> bool:
        if value.handle.data.size != 1:
            raise TypeError("a tensor of several elements is no condition")
        return bool(kept(value))

    tensor.__bool__ = as_condition
    try:
        yield
    finally:
        tensor.__bool__ = kept


def _reduce(operation: Any, given: Sequence[Any]) -> list[Any]:
    import numpy

    dtypes = [tensor.dtype for tensor in given]
    arrays = [tensor.handle.data for tensor in given]
    rank, axis = arrays[0].ndim, operation.axis
    if axis is None:
        arrays, axis = [array.reshape(-1) for array in arrays], 0
    arrays = [numpy.moveaxis(array, axis, 0) for array in arrays]
    while (count := len(arrays[0])) > 1:
        even = count // 2 * 2
        pairs = [array[0:even:2] for array in arrays], [array[1:even:2] for array in arrays]
        combined = _combine(operation, dtypes, *pairs)
        rest = (array[even:] for array in arrays)
        arrays = [numpy.concatenate(parts) for parts in zip(combined, rest, strict=True)]
    results = [array[0] for array in arrays]
    if operation.keep_dims:
        axes = tuple(range(rank)) if operation.axis is None else axis
        results = [numpy.expand_dims(result, axes) for result in results]
    return [operation.to_tensor(*pair) for pair in zip(results, dtypes, strict=True)]


def _scan(operation: Any, given: Sequence[Any]) -> list[Any]:
    import numpy

    dtypes, axis = [tensor.dtype for tensor in given], operation.axis
    arrays = [numpy.moveaxis(tensor.handle.data, axis, 0) for tensor in given]
    distance = 1
    while distance < len(arrays[0]):
        pairs = [array[:-distance] for array in arrays], [array[distance:] for array in arrays]
        combined = _combine(operation, dtypes, *pairs)
        first = (array[:distance] for array in arrays)
        arrays = [numpy.concatenate(parts) for parts in zip(first, combined, strict=True)]
        distance *= 2
    results = [numpy.moveaxis(array, 0, axis) for array in arrays]
    return [operation.to_tensor(*pair) for pair in zip(results, dtypes, strict=True)]


def _combine(
    operation: Any, dtypes: Sequence[Any], left: Sequence[Any], right: Sequence[Any]
) -> list[Any]:
    """The function's values for arrays of left and right operands, in the arrays' types."""
    import numpy

    operands = [
        operation.to_tensor(numpy.ascontiguousarray(array), dtype)
        for side in (left, right)
        for array, dtype in zip(side, dtypes, strict=True)
    ]
    found = operation.combine_fn.fn(*operands)
    values = found if isinstance(found, tuple) else (found,)
    datas = (value.handle.data if hasattr(value, "handle") else value for value in values)
    return [
        numpy.broadcast_to(data, array.shape).astype(array.dtype)
        for data, array in zip(datas, left, strict=True)
    ]
