"""The tables that a library ships for a device: what is there, what is missing, what is wrong.

- `library_folders.py` finds the folders of an installed or unpacked library; `states.py` examines
  the files.
- `expectations.py` says, from stored results, what tuning a table would gain and cost.
- `kernels.py` examines the kernels of libraries without tables of their own.
- `fix.py` tunes missing tables and writes the folder that the library reads.
"""

from __future__ import annotations

from tuner.library_doctor.expectations import Expectation, Expectations
from tuner.library_doctor.fix import Fixed, fix
from tuner.library_doctor.kernels import (
    ExaminedLaunch,
    entries_of,
    examine_entries,
    examine_launches,
)
from tuner.library_doctor.library_folders import Library, library_in
from tuner.library_doctor.states import Examined, TableState, examine_files, examine_shapes

__all__ = [
    "Examined",
    "ExaminedLaunch",
    "Expectation",
    "Expectations",
    "Fixed",
    "Library",
    "TableState",
    "entries_of",
    "examine_entries",
    "examine_files",
    "examine_launches",
    "examine_shapes",
    "fix",
    "library_in",
]
