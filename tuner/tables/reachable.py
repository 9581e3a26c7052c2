"""Find tables of adopted kernels that no launch can hit."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.adoption.autotuned import AutotuneParts
from tuner.runtime import Arguments, Table
from tuner.tables.results import Results


def unreachable(results: Results) -> list[str]:
    """One line per table whose workloads no launch of the kernel can have.

    Only adopted kernels are examined; the launch code of other kernels is unknown.
    """
    return [line for table in results.tables for line in _obstacles(results, table)]


def _obstacles(results: Results, table: Table) -> Iterator[str]:
    parts = getattr(results.kernel(table.kernel), "parts", None)
    if not isinstance(parts, AutotuneParts):
        return
    arguments = getattr(parts.tuner, "arguments", None)
    if not isinstance(arguments, Arguments):
        arguments = Arguments(parts.arg_names, parts.fn.fn, parts.tuner.keys)
    computed = {name for rules in (*parts.outer, *parts.inner) for name in rules}
    for entry in table.entries:
        if reason := arguments.obstacle(entry.key, computed):
            yield f"the table of kernel {table.kernel!r} {reason}; all launches miss it until then"
            return
