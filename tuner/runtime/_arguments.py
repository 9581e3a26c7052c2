"""Map the arguments of a launch to a workload, and to a cache key (a memo) of that workload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ._entry import Hit
from ._table import Table, find_in, miss_text
from ._text import printable

KeyMap: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
#: The source of a dim: the name of an argument, or a function of all arguments by name.
Dims: TypeAlias = Mapping[str, str | Callable[[Mapping[str, Any]], Any]]

Picker: TypeAlias = Callable[[tuple[Any, ...]], Any]

#: Forms of call (number of positional arguments, names of keywords) that are cached per kernel.
MAX_FORMS = 64
#: The value of an argument that is neither passed nor has a default.
_ABSENT = object()


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
        self.defaults = _defaults(base)
        self._computed = key_map is not None or any(map(callable, self.dims.values()))
        #: Whether memos contain the types of all arguments.
        self._typed = False
        named = [source for source in self.dims.values() if isinstance(source, str)]
        self._used = [name for name in self.names if name in (*self.keys, *named)]
        self._fallbacks = tuple(self.defaults.get(name, _ABSENT) for name in self.names)
        self._forms: dict[tuple[Any, ...], Picker] = {}
        #: Positions of parameters that held a tensor in each launch so far, or in some of them.
        self._tensors: set[int] = set()
        self._optional: set[int] = set()
        #: Counts the changes of what a memo consists of.
        self._revision = 0
        #: Takes from all positional arguments the values, types and dtypes that a workload depends
        #: on.
        self.pick: Picker
        #: Number of positional arguments that `pick` needs.
        self.reach: int
        self._prepare()

    # -- memos: cache keys of launches ---------------------------------------------------------
    def memo(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Everything that determines the workload of a launch, as a cache key.

        A memo of length one is `(pick(args),)`, which a launch computes inline. Raises the errors
        of the functions in dims or key_map.
        """
        full = self._bind(args, kwargs)
        self._classify(full)
        memo: tuple[Any, ...] = (self.pick(full),)
        self._form(args, kwargs)
        if self._typed:
            memo = (*memo, *map(type, full))
        if self._computed:
            memo = (*memo, *self._values(self._name(full, kwargs)).items())
        return memo

    def learn(self, table: Table) -> bool:
        """Add the arguments that a table's dims name to the memos; True if memos have changed."""
        dims = {name for names in table.dims for name in names} - self.dims.keys()
        named = () if self.key_map else dims.intersection(self.names).difference(self._used)
        typed = self._typed or table.distinguishes_booleans
        if not named and typed == self._typed:
            return False
        self._typed = typed
        self._used = [name for name in self.names if name in (*self._used, *named)]
        self._prepare()
        return True

    def pick_full(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """`pick` for a launch that passes keywords or relies on defaults.

        Raises LookupError for a form of call that `memo` has not cached.
        """
        pick = self._forms[(len(args), *kwargs)]
        return pick((*args, *kwargs.values(), *self._fallbacks))  # type: ignore[no-any-return]

    def _form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Cache how `pick` finds its values in a form of call."""
        form = (len(args), *kwargs)
        if form in self._forms or len(self._forms) >= MAX_FORMS:
            return
        after = [*kwargs, *self.names]
        places = [
            at if at < len(args) else len(args) + after.index(name)
            for at, name in enumerate(self.names)
        ]
        self._forms[form] = self._picker(places)

    def _classify(self, full: tuple[Any, ...]) -> None:
        """Learn which parameters hold tensors; one that is None may hold one later."""
        held = {at for at, value in enumerate(full) if hasattr(value, "dtype")}
        empty = {at for at, value in enumerate(full) if value is None}
        optional = self._optional | empty | (self._tensors ^ held if self._tensors else set())
        tensors = (self._tensors | held) - optional
        if (tensors, optional) != (self._tensors, self._optional):
            self._tensors, self._optional = tensors, optional
            self._prepare()

    def _prepare(self) -> None:
        self._revision += 1
        self._forms.clear()
        self.pick = self._picker(range(len(self.names)))
        used = (self.names.index(name) for name in self._used)
        self.reach = 1 + max([*used, *self._tensors, *self._optional], default=-1)

    def _picker(self, places: Sequence[int]) -> Picker:
        """Takes what a memo consists of; places: where the value of each parameter is."""
        parts = [f"{self._revision}", *(f"v[{places[self.names.index(n)]}]" for n in self._used)]
        for at in range(len(self.names)):
            if at in self._tensors:
                parts.append(f"v[{places[at]}].dtype")
            elif at in self._optional:
                parts.append(f"getattr(v[{places[at]}], 'dtype', None)")
            elif at < min(self._tensors, default=0):
                # If an earlier argument becomes a tensor, the dim `dtype` is taken from it.
                parts.append(f"v[{places[at]}].__class__")
        source = f"lambda v: ({', '.join(parts)},)"
        return eval(source)  # type: ignore[no-any-return]  # made of positions alone

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of all parameters in their order."""
        given, defaults = len(args), self.defaults
        if given >= len(self.names):
            return args[: len(self.names)]
        return args + tuple(
            kwargs[name] if name in kwargs else defaults.get(name, _ABSENT)
            for name in self.names[given:]
        )

    def _name(self, full: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = zip(self.names, full, strict=True)
        return {**{name: value for name, value in bound if value is not _ABSENT}, **kwargs}

    def _values(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The dims that key_map, or the functions in dims, compute from the arguments."""
        if self.key_map is not None:
            return {name: _plain(value) for name, value in self.key_map(named).items()}
        return {dim: _plain(source(named)) for dim, source in self.dims.items() if callable(source)}

    # -- workloads -----------------------------------------------------------------------------
    def name_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a launch by name, with defaults."""
        return self._name(self._bind(args, kwargs), kwargs)

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
        full = self._bind(args, kwargs)
        named = TrackedArguments(self._name(full, kwargs))
        tensor = next((value for value in full if hasattr(value, "dtype")), None)
        dtype = None if tensor is None else _text(tensor.dtype)
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
            name: _text(value.dtype)
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
                key[dim] = _plain(source(named))
            elif source in named:
                key[dim] = _plain(named[source])
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


def _defaults(base: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(base).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {item.name: item.default for item in parameters if item.default is not item.empty}


def _plain(value: Any) -> Any:
    """An argument in the form of a table: dtypes as text, constants as their value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value)
    if kind.__name__ == "constexpr":
        return _plain(value.value)
    if kind.__name__ == "dtype":
        return _text(value)
    if kind.__module__ == "numpy" and hasattr(value, "item") and value.shape == ():
        return value.item()
    return value


def _text(dtype: Any) -> str:
    """`float16` of `torch.float16`."""
    return str(dtype).rpartition(".")[2]
