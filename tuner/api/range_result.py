"""The outcome of `tune` for a range of sizes: the fewest configs that serve it, and their loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from search_spaces.records import Config, Value
from tuner.api.result import TuneResult, format_html
from tuner.runtime import Table
from tuner.tables import build, describe_coverage

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from tuner.api.databases import CallDatabase


@dataclass(frozen=True)
class RangeResult:
    """The configs of a range of sizes. A notebook shows it as a table."""

    #: The kernel's name.
    kernel: str
    #: The result at each size at which the farm looked, in the order of the sizes.
    results: Sequence[TuneResult]
    #: The table that is exported; None where nothing is confirmed.
    table: Table | None = field(repr=False)

    @property
    def coverage(self) -> Sequence[Mapping[str, Value]]:
        """Of each range: the share of sizes that is served, and the loss at sizes held out."""
        return () if self.table is None else self.table.coverage

    def config(self, **sizes: int) -> Config | None:
        """The config for these sizes of the range's dims; None where no entry serves them."""
        if self.table is None or not self.table.entries:
            return None
        fixed = dict(self.results[0].workload.dims)
        if unknown := sizes.keys() - fixed.keys():
            known = ", ".join(fixed)
            raise TunerError(f"{self.kernel} has no dim {min(unknown)}", f"its dims are {known}")
        hit = self.table.find({**fixed, **sizes})
        return None if hit is None else dict(hit.config)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the HTML report of the run; returns the path."""
        return self.results[0].report(path)

    def export(self, path: str | Path, format: str = "tuner") -> list[Path]:
        """Write the run's results into the folder `path`, as `TuneResult.export` does."""
        return self.results[0].export(path, format)

    def __repr__(self) -> str:
        lines = [f"{sizes}  {config}" for sizes, config in self._rows()]
        return "\n".join([self.kernel, *(f"  {line}" for line in (*lines, *self._remarks()))])

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{escape(line)}</p>" for line in self._remarks())
        return format_html(self.kernel, self._rows()) + remarks

    def _rows(self) -> Iterator[tuple[str, str]]:
        for entry in () if self.table is None else self.table.entries:
            sizes = " ".join(f"{dim}={span.low}..{span.high}" for dim, span in entry.serves.items())
            yield sizes, " ".join(f"{name}={value}" for name, value in entry.config.items())

    def _remarks(self) -> list[str]:
        return [describe_coverage(each) for each in self.coverage] or ["nothing is confirmed"]


def range_result(
    database: CallDatabase, run_id: int, kernel: Kernel, results: Sequence[TuneResult]
) -> RangeResult:
    """The result of a run of one range. results: of its tasks."""
    with database.open() as store:
        found = build(store, run_id, {kernel.name: kernel})
    return RangeResult(kernel.name, results, found[0] if found else None)
