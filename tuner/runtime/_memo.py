"""Memos: hashable keys of everything in a launch that its workload depends on.

A memo is read from the arguments at prepared places, which are positions or names of keywords. A
value counts where the workload has it, and the dtype of every tensor does. Which parameters hold
tensors is learned from launches; every change of that makes a new revision, which is part of the
memos, so that those of before are unknown from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from ._call_key import is_descriptor, is_tensor
from ._device import current_device, several_models

#: The position of an argument, or its name among the keywords.
Place: TypeAlias = Any
#: Takes from positional arguments, or from keywords, what counts.
Read: TypeAlias = Callable[[Any], Any]
#: Places of values, places of tensors, and what reads the rest.
Places: TypeAlias = tuple[Sequence[Place], Sequence[Place], Sequence[Read]]
#: Makes the memo of positional arguments, keywords and grid, in one form of call.
MakeMemo: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any], Any], tuple[Any, ...]]

#: Forms of call that are cached per kernel.
MAX_FORMS = 64
#: The value of an argument that is neither passed nor has a default.
ABSENT: Any = object()
_SCALARS = (bool, int, float, str)


class Memos:
    """Makes memos of one kernel's launches.

    names: the kernel's parameters in order. defaults: their values by name. wanted: those whose
    values count. text: a wanted value that is no scalar as one that has a hash. typed: whether True
    and 1 are different values. captured: whether the grid counts, and shapes where it is a
    function; with a tuple, launches of equal memos are one and the same to the kernel. shaped:
    whether shapes always count.
    """

    def __init__(
        self,
        names: Sequence[str],
        defaults: Mapping[str, Any],
        wanted: Collection[str],
        text: Callable[[Any], Any],
        *,
        typed: bool = False,
        captured: bool = False,
        shaped: bool = False,
    ) -> None:
        self.names = tuple(names)
        self.wanted = frozenset(names).intersection(wanted)
        self.typed = typed
        self._captured, self._shaped = captured, shaped
        self._text = text
        self._fallbacks = tuple(defaults.get(name, ABSENT) for name in self.names)
        #: Kinds of the values that each parameter has had.
        self._kinds: list[frozenset[str]] = [frozenset()] * len(self.names)
        self._revision = 0
        #: By form of call: the number of positional arguments, with the names of keywords; and the
        #: class of the grid.
        self.makers: dict[Any, MakeMemo] = {}
        #: Those of the latest forms, by the class of the grid. For a launch of another form they
        #: raise, or its memo is unknown.
        self.latest: dict[type, MakeMemo] = {}

    def _renew(self) -> None:
        self._revision += 1
        self.makers.clear()
        self.latest.clear()

    # -- what counts ---------------------------------------------------------------------------
    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of all parameters in their order; `ABSENT` for one without a value."""
        given, names = len(args), self.names
        if given >= len(names):
            return args[: len(names)]
        rest = zip(names[given:], self._fallbacks[given:], strict=True)
        return args + tuple(kwargs.get(name, fallback) for name, fallback in rest)

    def want(self, names: Collection[str], typed: bool) -> bool:
        """Add what counts; True if memos have changed."""
        wanted, typed = self.wanted.union(names).intersection(self.names), self.typed or typed
        if (wanted, typed) == (self.wanted, self.typed):
            return False
        self.wanted, self.typed = wanted, typed
        self._renew()
        return True

    def learn(self, full: Sequence[Any]) -> None:
        """Learn the kinds of the values of a launch."""
        kinds = [known | {_kind(value)} for known, value in zip(self._kinds, full, strict=True)]
        if kinds != self._kinds:
            self._kinds = kinds
            self._renew()

    def _counts(self, at: int) -> bool:
        """Whether anything of a parameter counts.

        The dim `dtype` is that of the first tensor, so what comes before it counts. What is None
        may be a tensor later.
        """
        tensors = (at for at, kinds in enumerate(self._kinds) if "tensor" in kinds)
        return (
            self.names[at] in self.wanted
            or bool(self._kinds[at] - {"scalar"})
            or at < next(tensors, 0)
        )

    # -- forms of call -------------------------------------------------------------------------
    def maker(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any = None) -> MakeMemo:
        """The function that makes the memos of launches in the form of this one."""
        self.learn(self.bind(args, kwargs))
        form = _form_of(args, kwargs, grid)
        make = self.makers.get(form)
        if make is None:
            if len(self.makers) >= MAX_FORMS:
                self.makers.clear()
            make = self.makers[form] = self._make(grid, len(args), kwargs)
        self.latest[type(grid)] = make
        return make

    def recall(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> MakeMemo:
        """The same for a form that was launched before, from what was learned then: for arguments
        of other kinds it raises, or their memo is unknown. Raises KeyError for another form."""
        make = self.makers[_form_of(args, kwargs, grid)]
        self.latest[type(grid)] = make
        return make

    def _make(self, grid: Any, given: int, keywords: Collection[str]) -> MakeMemo:
        is_function = callable(grid)
        shaped = self._shaped or (self._captured and is_function)
        named = {at: name for at, name in enumerate(self.names) if name in keywords}
        counted = {at: name for at, name in named.items() if self._counts(at)}
        places = range(min(given, len(self.names)))
        positional = {at: at for at in places if at not in named and self._counts(at)}
        values, tensors, more = self._sort(counted)
        # An argument that has its default may replace a keyword that does not count.
        is_fixed = len(counted) == len(keywords) or len(named) + given >= len(self.names)
        keyword = _read_all((values, tensors, more if is_fixed else [*more, tuple]), shaped)
        first, free = 2 * self._revision + is_function, is_function or not self._captured
        make = _read_launch(first, free, shaped, keyword, self._sort(positional))
        if not free and not isinstance(grid, tuple):
            make = _with_tuple(make)
        return _with_device(make) if several_models() else make

    def _sort(self, places: Mapping[int, Place]) -> Places:
        values: list[Place] = []
        tensors: list[Place] = []
        more: list[Read] = []
        for at, place in places.items():
            kinds, is_wanted = self._kinds[at], self.names[at] in self.wanted
            if kinds == {"tensor"}:
                tensors.append(place)
            elif kinds == {"none"} or (is_wanted and kinds <= {"scalar", "none"}):
                values.append(place)  # One that is a tensor later has an unknown memo.
            elif is_wanted:
                get = self._read_other if "other" in kinds else _read_optional
                more.append(_read_each(get, [place]))
            else:
                more.append(_read_each(_read_kind, [place]))
        if self.typed and values:
            more.append(_read_each(type, values))
        return values, tensors, more

    def _read_other(self, value: Any) -> Any:
        text = None if is_tensor(value) and not self._captured else self._text(value)
        return text, text.__class__, getattr(value, "dtype", None)


def _form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> Any:
    return ((len(args), *kwargs) if kwargs else len(args), type(grid))


def _read_launch(first: int, free: bool, shaped: bool, keyword: Read, places: Places) -> MakeMemo:
    """Reads positional arguments and keywords, and the grid unless memos are free of it.

    This adds to every launch, so a few values and tensors are written out. Reading a place twice
    does no harm.
    """
    values, tensors, more = places
    if not values or not tensors:
        rest = _read_all(places, shaped)
        return lambda a, k, g: (first, len(a), len(k), keyword(k), rest(a), free or g)
    rest = _read_all((values[4:], tensors[3 if shaped else 5 :], more), shaped)
    p, q, r, s = (*values, *values, *values, *values)[:4]
    u, v, x, y, z = (*tensors, *tensors, *tensors, *tensors, *tensors)[:5]
    # fmt: off
    if shaped:
        return (
            lambda a, k, g: (
                first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
                a[u].dtype, a[u].shape),
            lambda a, k, g: (
                first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
                a[u].dtype, a[u].shape, a[v].dtype, a[v].shape),
            lambda a, k, g: (
                first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
                a[u].dtype, a[u].shape, a[v].dtype, a[v].shape, a[x].dtype, a[x].shape),
        )[min(len(tensors), 3) - 1]
    if rest is len and keyword is len and len(tensors) <= 3:
        return lambda a, k, g: (
            first, len(a), len(k), a[p], a[q], a[r], a[s], free or g,
            a[u].dtype, a[v].dtype, a[x].dtype)
    return (
        lambda a, k, g: (
            first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
            a[u].dtype, a[v].dtype),
        lambda a, k, g: (
            first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
            a[u].dtype, a[v].dtype, a[x].dtype),
        lambda a, k, g: (
            first, len(a), len(k), keyword(k), rest(a), a[p], a[q], a[r], a[s], free or g,
            a[u].dtype, a[v].dtype, a[x].dtype, a[y].dtype, a[z].dtype),
    )[(len(tensors) > 2) + (len(tensors) > 3)]
    # fmt: on


def _read_all(places: Places, shaped: bool) -> Read:
    values, tensors, more = places
    read = _join([*more, itemgetter(*values)] if values else more)
    for at in range(0, len(tensors), 2):
        read = _add_tensors(read, tensors[at], tensors[at : at + 2][-1], shaped)
    return read


def _add_tensors(read: Read, x: Place, y: Place, shaped: bool) -> Read:
    if shaped:
        return lambda v: (read(v), v[x].dtype, v[x].shape, v[y].dtype, v[y].shape)
    return lambda v: (read(v), v[x].dtype, v[y].dtype)


def _join(reads: Sequence[Read]) -> Read:
    if len(reads) < 2:
        return reads[0] if reads else len
    one, other = reads[0], _join(reads[1:])
    return lambda v: (one(v), other(v))


def _read_each(get: Read, places: Sequence[Place]) -> Read:
    take, at = itemgetter(*places), places[0]
    if len(places) == 1:
        return lambda v: get(v[at])
    return lambda v: (*map(get, take(v)),)


def _with_tuple(make: MakeMemo) -> MakeMemo:
    return lambda a, k, g: make(a, k, tuple(g) if isinstance(g, Sequence) else (g,))


def _with_device(make: MakeMemo) -> MakeMemo:
    return lambda a, k, g: (*make(a, k, g), current_device())


def _kind(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, _SCALARS) or value is ABSENT:
        return "scalar"
    return "tensor" if is_tensor(value) and not is_descriptor(value) else "other"


def _read_kind(value: Any) -> Any:
    """What counts of a value that is not wanted: the dtype of a tensor, else the class."""
    return getattr(value, "dtype", value.__class__)


def _read_optional(value: Any) -> Any:
    """What counts of a wanted value that is a tensor in some launches and a scalar in others."""
    if hasattr(value, "dtype"):
        return value.dtype, value.shape
    return value, value.__class__
