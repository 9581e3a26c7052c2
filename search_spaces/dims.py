"""The dims of workloads, and their checks, with the reason and the remedy in every complaint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TypeAlias

from search_spaces.errors import WorkloadError
from search_spaces.near_names import did_you_mean
from search_spaces.params import is_member
from search_spaces.records import Value, Workload

#: What a dim may be: see `Dims`.
Kind: TypeAlias = int | range | tuple[Value, ...] | type[int] | type[bool] | type[float]

#: The largest size that a launch takes as a 32-bit argument.
MAX_SIZE = 2**31 - 1


class Dims(Mapping[str, Kind]):
    """The dims of a kernel's workloads, by name, in the order in which they are shown.

    The value of a keyword says what the dim may be: an integer N, a size from 1 to N; `int`, a size
    of up to 2**31 - 1; a `range` of step 1, an integer of it; a tuple, one of its values, as the
    dtypes of `dtype`; `bool`, true or false; `float`, a positive number. A workload may leave out
    dims of `float`, such as `tolerance`, and those whose tuple begins with None.
    """

    def __init__(self, **kinds: Kind) -> None:
        for name, kind in kinds.items():
            if not isinstance(kind, int | range | tuple) and kind not in (int, bool, float):
                text = f'write {name}=int, or all values as a tuple: {name}=("float16",)'
                raise WorkloadError(f"dim {name} is {kind!r}, which is no kind of dim", text)
        self._kinds = kinds

    def __getitem__(self, name: str) -> Kind:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def replace(self, **kinds: Kind) -> Dims:
        """The same dims with other kinds of some, or with further ones at the end."""
        return Dims(**{**self._kinds, **kinds})

    def workloads(self, *rows: tuple[Value, ...]) -> list[Workload]:
        """A workload of each row of values, in the order of the dims; the last may be left out."""
        names = list(self._kinds)
        for row in rows:
            if len(row) > len(names):
                raise WorkloadError(
                    f"{row!r} has more values than dims", f"give {', '.join(names)}"
                )
        return [Workload.of(**dict(zip(names, row, strict=False))) for row in rows]

    def check(self, kernel: str, workload: Workload) -> None:
        """Raise `WorkloadError` unless the workload has exactly these dims, each of its kind."""
        where = f"{kernel} [{workload.key}]"
        optional = [name for name, kind in self.items() if _may_be_absent(kind)]
        _check_names(where, workload, [name for name in self if name not in optional], optional)
        for name, kind in self.items():
            value = workload.get(name)
            if name in optional and name not in workload:
                continue
            if kind is float:
                _check_positive(where, name, value)
            elif kind is bool:
                if not isinstance(value, bool):
                    raise WorkloadError(
                        f"{where}: {name} is {value!r}, not true or false", f"give {name}=true"
                    )
            elif isinstance(kind, tuple):
                _check_choice(where, name, value, kind)
            else:
                sizes = kind if isinstance(kind, range) else None
                largest = kind if isinstance(kind, int) else MAX_SIZE
                _check_size(where, name, value, sizes or range(1, largest + 1))


def _may_be_absent(kind: Kind) -> bool:
    return kind is float or (isinstance(kind, tuple) and kind[0] is None)


def _check_size(where: str, name: str, value: Value, sizes: range) -> None:
    least, largest = sizes[0], sizes[-1]
    if not isinstance(value, int) or isinstance(value, bool):
        raise WorkloadError(f"{where}: {name} is {value!r}, not an integer", f"give {name}=4096")
    if value < least:
        raise WorkloadError(f"{where}: {name} is {value}", f"sizes are at least {least}")
    if value > largest:
        raise WorkloadError(
            f"{where}: {name} is {value}, more than the {largest} this kernel takes",
            f"give {name} of at most {largest}, or use another kernel",
        )


def _check_choice(where: str, name: str, value: Value, values: Sequence[Value]) -> None:
    known = [item for item in values if item is not None]
    if is_member(value, known):
        return
    words = [f"{item}" for item in known]
    if name == "dtype":
        problem = f"{where}: dtype {value!r} is not supported"
    else:
        problem = f"{where}: {name} is {value!r}{did_you_mean(f'{value}', words)}"
    raise WorkloadError(problem, f"use {', '.join(words)}")


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
    `Dims`.
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
    if dtypes:
        _check_choice(where, "dtype", workload["dtype"], dtypes)
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
