"""Export the results of a run: tables for kernels, and the formats of other tools.

- `results.py` reads a run and makes its tables, `valid_sizes.py` the sizes of their entries,
  `range_entries.py` the entries of ranges, `text.py` encodes them. `tuner.runtime` reads them.
- `exporters.py` has the exporters by name and writes files; `table_check.py` compares files with
  today's code and results.
"""

from __future__ import annotations

from tuner.tables.exporters import Exporter, File, available, export
from tuner.tables.range_entries import describe_coverage, list_coverage_lines
from tuner.tables.results import Results, build
from tuner.tables.table_check import check, check_export
from tuner.tables.text import file_name, text_of

__all__ = [
    "Exporter",
    "File",
    "Results",
    "available",
    "build",
    "check",
    "check_export",
    "describe_coverage",
    "export",
    "file_name",
    "list_coverage_lines",
    "text_of",
]
