"""Map the arguments of a launch to a workload, and to the memo of that workload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ._call_key import dtype_text, plain
from ._entry import Hit, key_of
from ._memo import ABSENT, Memos
from ._table import Table, find_in, miss_text
from ._text import printable

KeyMap: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
#: The source of a dim: the name of an argument, or a function of all arguments by name.
Dims: TypeAlias = Mapping[str, str | Callable[[Mapping[str, Any]], Any]]


class Arguments:
    """The mapping from arguments to workloads for one kernel.

    names: the kernel's parameters in order. base: its Python function, for the defaults. keys: the
    `key` of the decorator. dims, key_map: as in `autotune`. Raises ValueError for dims that name no
    parameter.
    """

    def __init__(
        self,
        names: Sequence[str],
        base: Callable[..., Any],
        keys: Sequence[str],
        dims: Dims | None = None,
        key_map: KeyMap | None = None,
    ) -> None:
        if dims and key_map:
            raise ValueError("dims and key_map are both given; key_map makes the whole workload")
        self.names = tuple(names)
        self.keys = tuple(keys)
        self.dims = dict(dims or {})
        self.key_map = key_map
        for dim, source in self.dims.items():
            if not callable(source) and source not in self.names:
                raise ValueError(f"dims: {dim} is {source!r}, which is no argument of the kernel")
        #: The default values of parameters, by name.
        self.defaults = defaults_of(base)
        self._computed = key_map is not None or any(map(callable, self.dims.values()))
        named = [source for source in self.dims.values() if isinstance(source, str)]
        #: What in a launch is part of its memo.
        self.memos = Memos(self.names, self.defaults, (*self.keys, *named), plain)

    # -- memos: cache keys of launches ---------------------------------------------------------
    def compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What determines the workload of a launch besides what `memos` reads: the values of the
        functions in dims or key_map. Raises their errors."""
        if not self._computed:
            return ()
        return key_of(self._values(self.name_arguments(args, kwargs)))

    def learn(self, table: Table) -> bool:
        """Add the arguments that a table's dims name to the memos; True if memos have changed."""
        dims = {name for names in table.dims for name in names} - self.dims.keys()
        return self.memos.want(() if self.key_map else dims, table.distinguishes_booleans)

    def _name(self, full: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = zip(self.names, full, strict=True)
        return {**{name: value for name, value in bound if value is not ABSENT}, **kwargs}

    def _values(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The dims that key_map, or the functions in dims, compute from the arguments."""
        if self.key_map is not None:
            return {name: plain(value) for name, value in self.key_map(named).items()}
        return {dim: plain(source(named)) for dim, source in self.dims.items() if callable(source)}

    # -- workloads -----------------------------------------------------------------------------
    def name_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a launch by name, with defaults."""
        return self._name(self.memos.bind(args, kwargs), kwargs)

    def obstacle(self, key: Mapping[str, Any], computed: Collection[str] = ()) -> str:
        """Why no launch can have the workload `key`; empty text where one can.

        Only the decorator's options are examined. computed: arguments that heuristics compute.
        """
        if self.key_map is not None:
            return ""
        known = {*self.names, *self.dims, "dtype"}
        if lacking := [dim for dim in key if dim not in known]:
            return _reason(lacking, ())
        if self._computed:
            return ""
        covered = {self.dims.get(dim, dim) for dim in key} | set(computed)
        more = [name for name in self.keys if name not in covered]
        if not any(isinstance(value, str) for value in key.values()):
            more.append("dtype")
        return _reason((), more)

    def find(
        self, table: Table, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Hit | None, str]:
        """A table's hit for a launch; or None with the reason as one clause."""
        full = self.memos.bind(args, kwargs)
        named = TrackedArguments(self._name(full, kwargs))
        tensor = next((value for value in full if hasattr(value, "dtype")), None)
        dtype = None if tensor is None else dtype_text(tensor.dtype)
        reasons = []
        for dims in table.dims or ((*self.keys, "dtype"),):
            if self.key_map is not None:
                key, reason = self._values(named), ""
            else:
                key, reason = self._workload(dims, named, dtype)
            hit = find_in(table, key)
            if hit is not None:
                reason = self._other_dtypes(hit, full)
                if not reason:
                    return hit, ""
            reasons.append(f"table {table.path} {reason}" if reason else miss_text(table, key))
        return None, reasons[0]

    def _other_dtypes(self, hit: Hit, full: tuple[Any, ...]) -> str:
        """Why a hit was measured with tensors of other dtypes; empty where it was not.

        An entry of an earlier version has the dtypes in its key alone. Then each tensor of floating
        point must have one of them.
        """
        if hit.entry is None:
            return ""
        held = {
            name: dtype_text(value.dtype)
            for name, value in zip(self.names, full, strict=True)
            if hasattr(value, "dtype")
        }
        known = hit.entry.dtypes
        if known is not None:
            names = [name for name in self.names if held.get(name) != known.get(name)]
            if not names:
                return ""
            name = names[0]
            return (
                f"was measured with {name} of dtype {printable(known.get(name), 40)}, "
                f"not {held.get(name)}"
            )
        allowed = {value for value in hit.entry.key.values() if isinstance(value, str)}
        for name, dtype in held.items() if allowed & {*held.values()} else ():
            if "float" in dtype and dtype not in allowed:
                return (
                    f"does not say for which dtype of {name} it was measured, which is {dtype}; "
                    "export it again"
                )
        return ""

    def _workload(
        self, dims: Sequence[str], named: TrackedArguments, dtype: str | None
    ) -> tuple[dict[str, Any], str]:
        """The values of the dims, and why they are no workload of the table (else empty text)."""
        key: dict[str, Any] = {}
        lacking = []
        named.names.clear()
        for dim in sorted(dims, key="dtype".__eq__):
            source = self.dims.get(dim, dim)
            if callable(source):
                key[dim] = plain(source(named))
            elif source in named:
                key[dim] = plain(named[source])
            elif dim == "dtype" and dtype is not None:
                key[dim] = dtype
            else:
                lacking.append(dim)
        more = {name: named[name] for name in self.keys if name in named.keys() - named.names}
        if dtype is not None and dtype not in key.values():
            more["dtype"] = dtype
        return {**more, **key}, _reason(lacking, more)


def _reason(lacking: Sequence[str], more: Iterable[str]) -> str:
    if lacking:
        dim = printable(lacking[0], 40)
        return (
            f"has the dim {dim}, which is not an argument of the kernel; "
            f'define it with autotune(..., dims={{"{dim}": lambda args: ...}})'
        )
    if names := ", ".join(more):
        return (
            f"has no dim for {names}, which the kernel is tuned by; "
            "define its workloads with autotune(..., key_map=...)"
        )
    return ""


class TrackedArguments(dict[str, Any]):
    """Arguments by name. `names` are those that were read."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        super().__init__(named)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def defaults_of(base: Callable[..., Any]) -> dict[str, Any]:
    """The default values of a function's parameters, by name."""
    try:
        parameters = inspect.signature(base).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {item.name: item.default for item in parameters if item.default is not item.empty}
