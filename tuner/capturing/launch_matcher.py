"""Recognise a launch like one that was recorded, in a microsecond.

A matcher is a function that is compiled for the structure of one launch: which arguments are
scalars, tensors, tuples or descriptors. Its source consists of positions; the values of the launch
are cells of it, so that launches of one structure share the compiled code. It holds no tensor. It
accepts only launches whose `specialization.key_of` is that of its own. It may refuse such a launch,
as one whose tensor has another class; its key then decides. Its code is generated because closures
made a launch 45 to 136 % slower (docs/decisions/0017-generated-matcher.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeAlias

from tuner.capturing.call_records import ALIGNMENT
from tuner.capturing.specialization import (
    DESCRIPTOR_OPTIONS,
    SIZES,
    Span,
    held_part,
    is_scalar,
    overlapping,
    span_of,
)
from tuner.runtime._tensor_check import check_of

#: Whether a launch, by its positional and keyword arguments, is like that of the matcher.
Match: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]

#: Stretches of memory of which all pairs are compared; for more, the order of addresses is tried.
_MOST_PAIRED = 4


def matcher_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Match | None:
    """The matcher of launches like this one; None for arguments that it cannot compare.

    Raises an error of the arguments, such as that of a tensor without memory.
    """
    writer = _Writer(args, kwargs)
    return writer.matcher() if writer.is_complete else None


class _Writer:
    """Writes the source of a matcher; each line returns False where the launch differs."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.is_complete = True
        self._constants: list[Any] = []
        self._tensors: list[Any] = []
        self._locals = 0
        given, names = len(args), self._constant(tuple(kwargs))
        self._lines = [f"if len(args) != {given} or (*kwargs,) != {names}: return False"]
        self._grid_lines: list[str] = []
        positional = [self._local() for _ in args]
        named = [self._local() for _ in kwargs]
        for locals_, source in ((positional, "args"), (named, "kwargs.values()")):
            if locals_:
                self._lines.append(f"{', '.join(locals_)}, = {source}")
        for local, value in zip(positional, args, strict=True):
            self._compare(local, value)
        for local, (name, value) in zip(named, kwargs.items(), strict=True):
            if name == "grid":
                self._grid(local, value)
            else:
                self._compare(local, value)
        self._memory()
        self._lines += self._grid_lines

    def matcher(self) -> Match:
        names = ", ".join(f"c{at}" for at in range(len(self._constants)))
        body = "\n        ".join([*self._lines, "return True"])
        source = (
            f"def make({names}):\n    def match(args, kwargs):\n        {body}\n    return match"
        )
        made: Match = _compile(source)(*self._constants)
        return made

    # -- arguments -----------------------------------------------------------------------------
    def _constant(self, value: Any) -> str:
        self._constants.append(value)
        return f"c{len(self._constants) - 1}"

    def _local(self) -> str:
        self._locals += 1
        return f"v{self._locals - 1}"

    def _require(self, condition: str) -> None:
        self._lines.append(f"if not ({condition}): return False")

    def _compare(self, local: str, value: Any) -> None:
        if is_scalar(value):
            self._require(self._is_scalar(local, value))
        elif hasattr(value, "storage_offset"):
            self._lines.append(f"t{len(self._tensors)} = {local}")
            self._tensors.append(value)
        elif isinstance(value, tuple | list):
            kind, size = self._constant(type(value)), len(value)
            self._require(f"type({local}) is {kind} and len({local}) == {size}")
            for at, part in enumerate(value):
                inner = self._local()
                self._lines.append(f"{inner} = {local}[{at}]")
                self._compare(inner, part)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            self._descriptor(local, value)
        elif hasattr(value, "data_ptr"):
            self.is_complete = False
        else:
            self._require(f"{local} is {self._constant(value)}")

    def _is_scalar(self, local: str, value: Any) -> str:
        if value is None or type(value) is bool:
            return f"{local} is {value}"
        if type(value) is float and value != value:
            return f"type({local}) is float and {local} != {local}"
        if type(value) is float and not value:
            return f"type({local}) is float and repr({local}) == '{value!r}'"
        constant, kind = self._constant(value), type(value).__name__
        return f"{local} is {constant} or type({local}) is {kind} and {local} == {constant}"

    def _descriptor(self, local: str, value: Any) -> None:
        tests = [f"type({local}) is {self._constant(type(value))}"]
        for name in SIZES:
            sizes = getattr(value, name)
            sizes = list(sizes) if isinstance(sizes, list) else sizes  # a list may change
            tests.append(f"{local}.{name} == {self._constant(sizes)}")
        tests += [
            f"{local}.{name} == {self._constant(getattr(value, name))}"
            for name in DESCRIPTOR_OPTIONS
            if hasattr(value, name)
        ]
        self._require(" and ".join(tests))
        base = self._local()
        self._lines.append(f"{base} = {local}.base")
        self._compare(base, value.base)

    # -- memory --------------------------------------------------------------------------------
    def _memory(self) -> None:
        if not self._tensors:
            return
        self._properties()
        spans = [span_of(tensor) for tensor in self._tensors]
        self._lines += [f"p{at} = t{at}.data_ptr()" for at in range(len(spans))]
        groups = overlapping(spans)
        for group in groups:
            for at in group[1:]:
                distance = self._constant(spans[at][0] - spans[group[0]][0])
                self._require(f"p{at} == p{group[0]} + {distance}")
        self._alignment([group[0] for group in groups], spans)
        self._apart([group for group in groups if spans[group[0]][0] < spans[group[0]][1]], spans)

    def _properties(self) -> None:
        check = check_of(self._tensors)
        if check is not None:
            tensors = ", ".join(f"t{at}" for at in range(len(self._tensors)))
            self._require(f"{self._constant(check)}({tensors})")
            return
        for at, tensor in enumerate(self._tensors):
            tests = (
                ("dtype", tensor.dtype),
                ("shape", tensor.shape),
                ("stride()", tensor.stride()),
            )
            self._require(
                " and ".join(f"t{at}.{name} == {self._constant(value)}" for name, value in tests)
            )

    def _alignment(self, firsts: Sequence[int], spans: Sequence[Span]) -> None:
        aligned = [f"p{at}" for at in firsts if not spans[at][0] % ALIGNMENT]
        if aligned:
            self._require(f"not ({' | '.join(aligned)}) & {ALIGNMENT - 1}")
        for at in firsts:
            if spans[at][0] % ALIGNMENT:
                self._require(f"p{at} & {ALIGNMENT - 1} == {spans[at][0] % ALIGNMENT}")

    def _apart(self, groups: Sequence[Sequence[int]], spans: Sequence[Span]) -> None:
        """That groups still do not overlap, by the distances of their first members."""
        ends = []
        for group in groups:
            first = spans[group[0]][0]
            low = min(spans[at][0] for at in group) - first
            high = max(spans[at][1] for at in group) - first
            ends.append((group[0], low, high, first))
        if len(ends) > _MOST_PAIRED:
            self._in_order(ends)
            return
        for at, (one, low, high, _) in enumerate(ends):
            for other, other_low, other_high, _ in ends[at + 1 :]:
                below, above = self._constant(low - other_high), self._constant(high - other_low)
                self._require(f"not {below} < p{other} - p{one} < {above}")

    def _in_order(self, ends: Sequence[tuple[int, int, int, int]]) -> None:
        """That groups are in the order of this launch, else that no two of them overlap."""
        ordered = sorted(ends, key=lambda end: end[3] + end[1])
        tests, listed = [], []
        for at, (one, low, high, _) in enumerate(ordered):
            listed.append(f"(p{one} + {self._constant(low)}, p{one} + {self._constant(high)})")
            if at:
                before, _, end, _ = ordered[at - 1]
                tests.append(f"p{one} - p{before} >= {self._constant(end - low)}")
        apart = self._constant(_are_apart)
        self._require(f"{' and '.join(tests)} or {apart}({', '.join(listed)})")

    # -- the grid ------------------------------------------------------------------------------
    def _grid(self, local: str, grid: Any) -> None:
        lines, self._lines = self._lines, self._grid_lines
        if type(grid) is FunctionType:
            self._function(local, grid)
        elif callable(grid):
            self.is_complete = False
        else:
            sizes = self._constant(tuple(grid))
            other = f"not callable({local}) and tuple({local}) == {sizes}"
            self._require(f"{local} == {sizes} if type({local}) is tuple else {other}")
        self._lines = lines

    def _function(self, local: str, grid: FunctionType) -> None:
        self.is_complete = grid.__kwdefaults__ is None and self.is_complete
        code = self._constant(grid.__code__)
        self._require(f"type({local}) is {self._constant(FunctionType)}")
        self._require(f"{local}.__code__ is {code} and {local}.__kwdefaults__ is None")
        if grid.__defaults__ is None:
            self._require(f"{local}.__defaults__ is None")
        else:
            held = self._local()
            self._lines.append(f"{held} = {local}.__defaults__ or ()")
            self._require(f"len({held}) == {len(grid.__defaults__)}")
            for at, value in enumerate(grid.__defaults__):
                self._hold(f"{held}[{at}]", value)
        if grid.__closure__:  # as many cells as any function of this code has
            cells = self._local()
            self._lines.append(f"{cells} = {local}.__closure__")
            for at, cell in enumerate(grid.__closure__):
                self._hold(f"{cells}[{at}].cell_contents", cell.cell_contents)

    def _hold(self, source: str, value: Any) -> None:
        """A value that the grid holds."""
        held = self._local()
        self._lines.append(f"{held} = {source}")
        if is_scalar(value):
            self._require(self._is_scalar(held, value))
        elif hasattr(value, "storage_offset"):
            shape = self._constant(tuple(value.shape))
            self._require(
                f"type({held}) is {self._constant(type(value))} and {held}.shape == {shape}"
            )
        elif isinstance(value, tuple | list):
            part = self._constant(held_part(value))
            self._require(f"{self._constant(held_part)}({held}) == {part}")
        else:
            self._require(f"type({held}) is {self._constant(type(value))}")


def _are_apart(*spans: Span) -> bool:
    return len(overlapping(spans)) == len(spans)


@lru_cache(maxsize=512)
def _compile(source: str) -> Callable[..., Match]:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    made: Callable[..., Match] = namespace["make"]
    return made
