"""Memos: cache keys of everything in a launch that a table's keys depend on, in half a microsecond.

A memo is made by a function that was compiled for one form of call: how many arguments are
positional, which keywords there are, and which arguments are tensors. Its source consists of
positions and of the kernel's own parameter names. Where a launch does not have the form, the
function raises, or its memo is unknown; the caller then asks `Memos.of` for the right one. A grid
that is a function has another form than a tuple.

Of captured launches the memo has shapes of tensors only where the grid is a function. With a tuple,
launches of equal memos are one and the same to the kernel, so the first of them decides for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from ._call_key import describe, is_descriptor, is_tensor

#: Makes the memo of positional arguments, keyword arguments and grid.
MakeMemo: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], Any], tuple[Any, ...]]

#: Forms of call that are cached per kernel.
MAX_FORMS = 64
_SCALARS = (type(None), bool, int, float, str)


class Memos:
    """Makes memos of one kernel's launches.

    names: the kernel's parameters in order. wanted: those that keys depend on. captured: whether
    keys describe launches. typed: whether True and 1 are different values.
    """

    def __init__(
        self,
        names: Sequence[str],
        wanted: Collection[str],
        *,
        captured: bool = False,
        typed: bool = False,
    ) -> None:
        self._names = tuple(names)
        self._wanted = frozenset(names).intersection(wanted)
        self._captured = captured
        self._typed = typed
        self._made: dict[tuple[Any, ...], MakeMemo] = {}
        #: Per form of call, the kind of value that each argument has had.
        self._kinds: dict[tuple[Any, ...], dict[str, str]] = {}

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> MakeMemo:
        """The function that makes the memos of launches like this one."""
        form = (len(args), *kwargs)
        kinds = self._classify(form, {**dict(zip(self._names, args, strict=False)), **kwargs})
        made = (form, callable(grid), *kinds.items())
        if made not in self._made:
            if len(self._made) >= MAX_FORMS:
                self._made.clear()
            self._made[made] = self._compile(len(args), kinds, callable(grid))
        return self._made[made]

    def _classify(self, form: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, str]:
        """The kind of each argument that counts, over all launches of this form."""
        if len(self._kinds) >= MAX_FORMS:
            self._kinds.clear()
        known = self._kinds.setdefault(form, {})
        seen_tensor = False
        for name in self._names:
            if name not in named:
                continue
            kind = _kind(named[name])
            # Dtypes of all tensors count, and the dim `dtype` is that of the first one, so what
            # comes before counts too. What is None may be a tensor later.
            is_typed = kind == "tensor" or named[name] is None or name in known
            if name in self._wanted or is_typed or not seen_tensor:
                known[name] = _either(kind, known.get(name, kind))
            seen_tensor = seen_tensor or kind == "tensor"
        return known

    def _compile(self, given: int, kinds: Mapping[str, str], is_function: bool) -> MakeMemo:
        parts = [f"{is_function}", "len(a)", "len(k)"]
        if not self._wanted <= kinds.keys():
            parts.append("(*k,)")  # An argument has its default, which a keyword may replace.
        if self._captured and not is_function:
            parts.append("g if g.__class__ is tuple else grid_of(g)")
        shaped = self._captured and is_function
        for name, kind in kinds.items():
            at = self._names.index(name)
            value = f"a[{at}]" if at < given else f"k[{name!r}]"
            parts += _parts(value, kind, shaped, self._typed)
        source = f"lambda a, k, g: ({', '.join(parts)},)"
        return eval(source, {"describe": describe, "grid_of": _grid})  # type: ignore[no-any-return]


def _parts(value: str, kind: str, shaped: bool, typed: bool) -> list[str]:
    """Expressions for an argument, given by an expression."""
    if kind == "tensor":
        return [f"{value}.dtype", *([f"{value}.shape"] if shaped else [])]
    if kind == "scalar":
        return [value, *([f"{value}.__class__"] if typed else [])]
    if kind == "optional":
        shape = [f"getattr({value}, 'shape', None)"] if shaped else []
        return [f"getattr({value}, 'dtype', {value})", *shape]
    return [f"describe({value})"]


def _kind(value: Any) -> str:
    if isinstance(value, _SCALARS):
        return "scalar"
    return "tensor" if is_tensor(value) and not is_descriptor(value) else "other"


def _either(kind: str, known: str) -> str:
    """The kind of an argument that has had both kinds."""
    if kind == known:
        return kind
    return "other" if "other" in (kind, known) else "optional"


def _grid(grid: Any) -> tuple[Any, ...]:
    return tuple(grid) if isinstance(grid, Sequence) else (grid,)
