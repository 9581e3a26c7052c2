"""The part that a kernel library imports: tables, lookups, a replacement for `@triton.autotune`.

- `_launches.py`: launches from tables. `_arguments.py` maps one to a workload, `_memo.py` to a
  cache key, `_plan.py` checks a config before it. `_launch.py` is the decorator.
- `_lookup.py`: a config by workload. `_table_files.py` finds the table, `_nearest.py` has the
  nearest-lookup rule, `_read.py` decodes the file format.
- `_ranks.py`: ranks of a process group choose alike.
- `_applications.py`: tables for kernels of libraries that import nothing of ours.
- `_bundle.py`: tables and compiled kernels of other machines; `_compile_mode.py`: TUNER_COMPILE.
- `_traced_launch.py`: launches that torch traces into a graph.
- `identity.py`: the digest of a kernel's code.

Imports the standard library only; torch and triton are used where the process has loaded them. The
folder imports no other package of tuner, so a library may carry a copy of it.
"""

from __future__ import annotations

from ._applications import (
    Application,
    KernelUse,
    applications,
    applied,
    apply,
    apply_environment,
)
from ._arguments import Arguments
from ._bundle import load_bundle, load_environment
from ._call_key import call_key
from ._compile_mode import NotCompiled, compile_mode, never_compiles, without_compiler
from ._device import current_device
from ._device_facts import DeviceFacts
from ._entry import Entry, Hit, Rule, Span, key_order
from ._launch import Autotuned, autotune
from ._lookup import clear, find_tables, lookup
from ._names import file_stem, slug
from ._nearest import move_towards
from ._ranks import Silent, find_ranks, is_writer
from ._read import TableError, read
from ._table import SCHEMA, Table
from ._table_files import is_for_device, load, staleness
from .device_code import kernel_hash

__all__ = [
    "SCHEMA",
    "Application",
    "Arguments",
    "Autotuned",
    "DeviceFacts",
    "Entry",
    "Hit",
    "KernelUse",
    "NotCompiled",
    "Rule",
    "Silent",
    "Span",
    "Table",
    "TableError",
    "applications",
    "applied",
    "apply",
    "apply_environment",
    "autotune",
    "call_key",
    "clear",
    "compile_mode",
    "current_device",
    "file_stem",
    "find_ranks",
    "find_tables",
    "is_for_device",
    "is_writer",
    "kernel_hash",
    "key_order",
    "load",
    "load_bundle",
    "load_environment",
    "lookup",
    "move_towards",
    "never_compiles",
    "read",
    "slug",
    "staleness",
    "without_compiler",
]
