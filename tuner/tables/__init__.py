"""Tables: what runs found, written for kernels and for other tools.

`tuner.runtime` reads the format `tuner`; docs/tables.md describes it.
"""

from __future__ import annotations

from tuner.tables.build import build
from tuner.tables.check import check, check_export
from tuner.tables.exporters import Exporter, File, available, export
from tuner.tables.results import Results
from tuner.tables.text import file_name, text_of

__all__ = [
    "Exporter",
    "File",
    "Results",
    "available",
    "build",
    "check",
    "check_export",
    "export",
    "file_name",
    "text_of",
]
