"""Checks of a workload's dims, with the reason and the remedy in every complaint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload


def check_dims(
    kernel: str,
    workload: Workload,
    *,
    sizes: Mapping[str, int],
    dtypes: Sequence[str] = (),
    optional: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> None:
    """Raise `WorkloadError` unless the workload has exactly the dims a kernel takes.

    sizes: integer dims, at least 1, with the largest value of each. dtypes: what `dtype` may be;
    empty for a kernel without that dim. optional: dims that may be absent, positive numbers.
    flags: dims that are true or false.
    """
    where = f"{kernel} [{workload.key}]"
    needed = [*sizes, *(["dtype"] if dtypes else []), *flags]
    _check_names(where, workload, needed, optional)
    for name, largest in sizes.items():
        value = workload[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise WorkloadError(
                f"{where}: {name} is {value!r}, not an integer", f"give {name}=4096"
            )
        if value < 1:
            raise WorkloadError(f"{where}: {name} is {value}", "sizes are at least 1")
        if value > largest:
            raise WorkloadError(
                f"{where}: {name} is {value}, more than the {largest} this kernel takes",
                f"give {name} of at most {largest}, or use another kernel",
            )
    if dtypes and workload["dtype"] not in dtypes:
        raise WorkloadError(
            f"{where}: dtype {workload['dtype']!r} is not supported", f"use {', '.join(dtypes)}"
        )
    for name in flags:
        if not isinstance(workload[name], bool):
            raise WorkloadError(
                f"{where}: {name} is {workload[name]!r}, not true or false", f"give {name}=true"
            )
    for name in optional:
        _check_positive(where, name, workload.get(name, 1.0))


def _check_names(
    where: str, workload: Workload, needed: Sequence[str], optional: Sequence[str]
) -> None:
    known = [*needed, *optional]
    takes = f"it takes {', '.join(needed)}" + (
        f" and optionally {', '.join(optional)}" if optional else ""
    )
    for name in workload:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise WorkloadError(f"{where}: unknown dim {name}{guess}", takes)
    for name in needed:
        if name not in workload:
            raise WorkloadError(f"{where}: {name} is missing", takes)


def _check_positive(where: str, name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(float(str(value))) or float(str(value)) <= 0:
        raise WorkloadError(
            f"{where}: {name} is {value!r}, not a positive number", f"give {name}=0.001"
        )


def tolerance_of(workload: Workload, default: float) -> float:
    """The workload's own relative tolerance, or the default."""
    value = workload.get("tolerance")
    return float(value) if isinstance(value, int | float) else default
