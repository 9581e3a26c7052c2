"""Which scalar arguments of a kernel are free: the work is equal whatever their value.

The TTIR of a compiled launch is read as text. From every value that an operation gives there are
edges to the values that depend on it. A scalar is free if no chain of edges leads from it to an
address, a mask, the bound or condition of a loop or branch, or an operation that is not known to do
the same work for all values. What is stored through a pointer argument may be loaded through it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_LOCATION = re.compile(r'\s*loc\((?:"[^"]*"|[^()"]|\((?:[^()]|\([^()]*\))*\))*\)')
_FUNCTION = re.compile(r"\s*tt\.func public @[^(]*\((.*)\)[^()]*\{$")
_PARAMETER = re.compile(r'(%[\w$.-]+): ([^%]*?)(?: loc\("([^"]*)"[^%]*?)?(?=, %|$)')
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))? = (.*)")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_BLOCK = re.compile(r"\^\w+\((.*)\):")
_ITERATION = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
#: Operations of the dialect `tt` that do the same for all values of their operands.
_PURE = frozenset(
    f"tt.{name}"
    for name in (
        *("splat", "unsplat", "broadcast", "expand_dims", "reshape", "trans", "cat", "join"),
        *("split", "bitcast", "fp_to_fp", "mulhiui", "precise_sqrt", "precise_divf", "clampf"),
        *("dot", "dot_scaled", "reduce", "scan", "reduce.return", "scan.return"),
    )
)
_MEMORY = frozenset(
    f"tt.{name}"
    for name in ("addptr", "load", "store", "atomic_rmw", "descriptor_load", "descriptor_store")
)
#: Where values end up that decide what is done.
_SINK = "sink"


def free_scalars(ttir: str) -> frozenset[str]:
    """The names of the free scalar arguments; of none where the text is not understood."""
    lines = ttir.splitlines()
    start = next((at for at, line in enumerate(lines) if "tt.func public" in line), None)
    if start is None:
        return frozenset()
    flow = _Flow()
    scalars = flow.begin(lines[start])
    for line in lines[start + 1 :]:
        if "tt.func " in line:
            break
        flow.read(_LOCATION.sub("", line).strip())
    return frozenset(name for value, name in scalars.items() if not flow.decides(value))


class _Flow:
    """The edges between the values of one function."""

    def __init__(self) -> None:
        self._after: dict[str, set[str]] = defaultdict(set)
        #: From a pointer to those that it is made of.
        self._origins: dict[str, set[str]] = defaultdict(set)
        self._stores: list[tuple[str, str]] = []
        self._loads: list[tuple[str, str]] = []
        #: The operations whose regions are open: name, results and arguments of its blocks.
        self._open: list[tuple[str, list[str], list[str]]] = []
        self._pointers: set[str] = set()

    def begin(self, line: str) -> dict[str, str]:
        """The scalar parameters: their values and names."""
        scalars = {}
        found = _FUNCTION.match(line)
        for value, kind, name in _PARAMETER.findall(found[1] if found else ""):
            if re.match(r"(i|f|bf)\d+\b", kind):
                scalars[value] = name or value[1:]
            else:
                self._pointers.add(value)
        return scalars

    def decides(self, value: str) -> bool:
        """Whether a value may change what is done."""
        self._join_memory()
        seen, waiting = {value}, [value]
        while waiting:
            following = self._after[waiting.pop()] - seen
            seen |= following
            waiting += following
        return _SINK in seen

    def _join_memory(self) -> None:
        loads, self._loads = self._loads, []
        for pointer, stored in self._stores if loads else ():
            bases = self._bases(pointer)
            for other, result in loads:
                if bases & self._bases(other):
                    self._after[stored].add(result)

    def _bases(self, pointer: str) -> set[str]:
        seen, waiting = {pointer}, [pointer]
        while waiting:
            following = self._origins[waiting.pop()] - seen
            seen |= following
            waiting += following
        # Of a pointer that is not traced to an argument, all are possible.
        return seen & self._pointers or self._pointers

    # -- operations --------------------------------------------------------------------------------
    def read(self, line: str) -> None:
        """Take note of one line."""
        if line.startswith("}"):
            operation = self._open.pop() if self._open else ("", [], [])
            if line.endswith("{"):
                self._open.append(operation)
            return
        if block := _BLOCK.match(line):
            self._link_block(_VALUE.findall(block[1]))
            return
        found = _RESULT.match(line)
        results, text = [], line
        if found:
            count, text = int(found[2] or 0), found[3]
            results = [f"{found[1]}#{at}" for at in range(count)] or [found[1]]
        if text:
            self._read_operation(text, results, line.endswith("{"))

    def _read_operation(self, text: str, results: list[str], opens: bool) -> None:
        name = re.split(r"[\s(<]", text.lstrip('"'), maxsplit=1)[0].rstrip('"')
        operands = _VALUE.findall(text)
        inner: list[str] = []
        if name in ("scf.for", "scf.while"):
            inner = self._link_for(text, results) if name == "scf.for" else self._link_while(text)
        elif name in ("scf.yield", "scf.condition"):
            self._link_yield(name, operands)
        elif name in _MEMORY:
            self._read_access(name, text, operands, results)
        elif _is_pure(name, text):
            self._trace(operands, results)
        else:  # such as scf.if
            self._sink(operands)
        if name in ("tt.reduce", "tt.scan"):
            inner = list(operands)
        elif name in ("tt.reduce.return", "tt.scan.return") and self._open:
            self._link_all(operands, self._open[-1][1])
        if opens:
            self._open.append((name, results, inner))

    def _read_access(self, name: str, text: str, operands: list[str], results: list[str]) -> None:
        pointer, *rest = operands
        deciding, data = rest, rest[:0]
        if name == "tt.addptr":
            self._trace([pointer], results)
        elif name == "tt.load":
            deciding, data = rest[:1], rest[1:]
        elif name == "tt.descriptor_store":
            deciding, data = _VALUE.findall(text.rpartition("]")[0]), rest[-1:]
        elif name in ("tt.store", "tt.atomic_rmw"):
            deciding, data = rest[1:], rest[:1]
        self._sink(deciding)
        self._link_all(data, results)
        if name != "tt.addptr":
            self._sink([pointer])
            self._loads += [(pointer, result) for result in results]
            self._stores += [(pointer, value) for value in data if name != "tt.load"]

    def _link_for(self, text: str, results: list[str]) -> list[str]:
        head, _, rest = text.partition("iter_args(")
        counter, *bounds = _VALUE.findall(head)
        self._sink([counter, *bounds])
        pairs = _ITERATION.findall(rest.partition(") ->")[0])
        inner = [value for value, _ in pairs]
        self._link_each([start for _, start in pairs], inner)
        self._link_each([start for _, start in pairs], results)
        return inner

    def _link_while(self, text: str) -> list[str]:
        pairs = _ITERATION.findall(text)
        inner = [value for value, _ in pairs]
        self._link_each([start for _, start in pairs], inner)
        return inner

    def _link_yield(self, name: str, operands: list[str]) -> None:
        """What a region passes on: to the results, and to the next turn of a loop."""
        operation, results, inner = self._open[-1] if self._open else ("", [], [])
        if name == "scf.condition":
            self._sink(operands[:1])
            self._link_each(operands[1:], results)
            # The second region of a while loop has blocks of its own, linked by position.
            self._open[-1] = operation, results, [*inner, *operands[1:]]
        elif operation == "scf.while":
            self._link_each(operands, inner[: len(operands)])
        else:
            self._link_each(operands, results)
            if operation == "scf.for":
                self._link_each(operands, inner)

    def _link_block(self, values: list[str]) -> None:
        operation, _, inner = self._open[-1] if self._open else ("", [], [])
        if operation in ("tt.reduce", "tt.scan"):
            self._link_all(inner, values)
        elif operation == "scf.while":
            self._link_each(inner[-len(values) :], values)
        # What a branch passes to a block is a sink already.

    # -- edges -------------------------------------------------------------------------------------
    def _sink(self, values: Iterable[str]) -> None:
        self._link_all(values, [_SINK])

    def _trace(self, values: Iterable[str], results: Iterable[str]) -> None:
        """An edge, also between pointers."""
        values = list(values)
        self._link_all(values, results)
        for result in results:
            self._origins[result].update(values)

    def _link_all(self, values: Iterable[str], results: Iterable[str]) -> None:
        results = list(results)
        for value in values:
            self._after[value].update(results)

    def _link_each(self, values: Iterable[str], results: Iterable[str]) -> None:
        for value, result in zip(values, results, strict=False):
            self._trace([value], [result])


def _is_pure(name: str, text: str) -> bool:
    if name in ("tt.extern_elementwise", "tt.elementwise_inline_asm"):
        return "pure = true" in text
    return name in _PURE or name.startswith(("arith.", "math."))
