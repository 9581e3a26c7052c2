"""What a kernel library imports: tables, lookups and a decorator in place of `@triton.autotune`.

Standard library only; torch and triton are used where the process has already loaded them. The
folder has no other imports of the farm's, so a library may also carry a copy of it.
"""

from __future__ import annotations

from ._arguments import Arguments
from ._device import current_device
from ._launch import Autotuned, autotune
from ._names import file_stem, slug
from ._read import TableError, read
from ._search import clear, load, lookup, staleness
from ._source import source_hash
from ._table import SCHEMA, DeviceFacts, Entry, Hit, Rule, Table, key_order
from .identity import kernel_hash

__all__ = [
    "SCHEMA",
    "Arguments",
    "Autotuned",
    "DeviceFacts",
    "Entry",
    "Hit",
    "Rule",
    "Table",
    "TableError",
    "autotune",
    "clear",
    "current_device",
    "file_stem",
    "kernel_hash",
    "key_order",
    "load",
    "lookup",
    "read",
    "slug",
    "source_hash",
    "staleness",
]
