"""Checks of a workload's dims, with the reason and the remedy in every complaint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from search_spaces.errors import WorkloadError
from search_spaces.near_names import did_you_mean
from search_spaces.params import is_member
from search_spaces.records import Value, Workload


def check_dims(
    kernel: str,
    workload: Workload,
    *,
    sizes: Mapping[str, int],
    zeros: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    optional: Sequence[str] = (),
    flags: Sequence[str] = (),
    choices: Mapping[str, Sequence[Value]] | None = None,
) -> None:
    """Raise `WorkloadError` unless the workload has exactly the dims a kernel takes.

    sizes: integer dims, at least 1, with the largest value of each. zeros: sizes that may be 0.
    dtypes: what `dtype` may be; empty for a kernel without that dim. optional: dims that may be
    absent, positive numbers. flags: dims that are true or false. choices: the values that other
    dims may have.
    """
    where = f"{kernel} [{workload.key}]"
    choices = choices or {}
    needed = [*sizes, *choices, *(["dtype"] if dtypes else []), *flags]
    _check_names(where, workload, needed, optional)
    for name, largest in sizes.items():
        value = workload[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise WorkloadError(
                f"{where}: {name} is {value!r}, not an integer", f"give {name}=4096"
            )
        if value < (least := 0 if name in zeros else 1):
            raise WorkloadError(f"{where}: {name} is {value}", f"sizes are at least {least}")
        if value > largest:
            raise WorkloadError(
                f"{where}: {name} is {value}, more than the {largest} this kernel takes",
                f"give {name} of at most {largest}, or use another kernel",
            )
    for name, values in choices.items():
        if not is_member(workload[name], values):
            words = [f"{value}" for value in values]
            guess = did_you_mean(f"{workload[name]}", words)
            raise WorkloadError(
                f"{where}: {name} is {workload[name]!r}{guess}", f"use {', '.join(words)}"
            )
    _check_dtype(where, workload, dtypes)
    for name in flags:
        if not isinstance(workload[name], bool):
            raise WorkloadError(
                f"{where}: {name} is {workload[name]!r}, not true or false", f"give {name}=true"
            )
    for name in optional:
        _check_positive(where, name, workload.get(name, 1.0))


def check_kinds(
    kernel: str,
    workload: Workload,
    *,
    known: Mapping[str, Sequence[Value]],
    dtypes: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Raise `WorkloadError` unless every dim is of a kind that its known values have.

    known: values of each dim that the kernel takes for sure. Kinds are true or false, text, None,
    a number, and an integer that is at least 1 or the least known one. dtypes, optional: as for
    `check_dims`.
    """
    where = f"{kernel} [{workload.key}]"
    _check_names(where, workload, [*known, *(["dtype"] if dtypes else [])], optional)
    for name, examples in known.items():
        value = workload[name]
        kinds = _kinds(examples)
        if _kind(value) not in kinds and not (_kind(value) == "integer" and "number" in kinds):
            raise WorkloadError(
                f"{where}: {name} is {value!r}, not {_either(kinds)}",
                f"give {name}={examples[0]!r}, or list a workload with such a value in adopt",
            )
        integers = [item for item in examples if _kind(item) == "integer"]
        least = min([1, *(item for item in integers if isinstance(item, int))])
        if integers and isinstance(value, int) and _kind(value) == "integer" and value < least:
            raise WorkloadError(
                f"{where}: {name} is {value}",
                f"{name} is at least {least}" if least < 1 else "sizes are at least 1",
            )
    _check_dtype(where, workload, dtypes)
    for name in optional:
        _check_positive(where, name, workload.get(name, 1.0))


_KINDS = {"bool": "true or false", "int": "integer", "float": "number", "str": "text"}


def _kind(value: Value) -> str:
    return _KINDS.get(type(value).__name__, "None")


def _kinds(values: Sequence[Value]) -> list[str]:
    return list(dict.fromkeys(map(_kind, values)))


def _either(kinds: Sequence[str]) -> str:
    articles = {"integer": "an integer", "number": "a number", "text": "a text"}
    return " or ".join(articles.get(kind, kind) for kind in kinds)


def _check_names(
    where: str, workload: Workload, needed: Sequence[str], optional: Sequence[str]
) -> None:
    known = [*needed, *optional]
    takes = f"it takes {', '.join(needed)}" + (
        f" and optionally {', '.join(optional)}" if optional else ""
    )
    for name in workload:
        if name not in known:
            guess = did_you_mean(name, known)
            raise WorkloadError(f"{where}: unknown dim {name}{guess}", takes)
    for name in needed:
        if name not in workload:
            raise WorkloadError(f"{where}: {name} is missing", takes)


def _check_dtype(where: str, workload: Workload, dtypes: Sequence[str]) -> None:
    if dtypes and workload["dtype"] not in dtypes:
        raise WorkloadError(
            f"{where}: dtype {workload['dtype']!r} is not supported", f"use {', '.join(dtypes)}"
        )


def _check_positive(where: str, name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(float(str(value))) or float(str(value)) <= 0:
        raise WorkloadError(
            f"{where}: {name} is {value!r}, not a positive number", f"give {name}=0.001"
        )


def number_of(workload: Workload, name: str, default: float) -> float:
    """An optional dim that is a number, or the default where the workload does not have it."""
    value = workload.get(name)
    return float(value) if isinstance(value, int | float) else default


def tolerance_of(workload: Workload, default: float) -> float:
    """The workload's own relative tolerance, or the default."""
    return number_of(workload, "tolerance", default)
