"""Check tables after a new Triton, driver or card, and tune again only what changed.

- `tables_here.py` finds the kernel and device of each table; `evidence.py` reads what the database
  knows of an entry.
- `entry_check.py` builds the winner, its runners-up and the default config of each entry and
  measures them where a binary has changed; `entry_outcome.py` decides what became of the winner.
- `retune.py` tunes the entries again whose winner flipped, and writes their tables.
- `restamp.py` carries results and tables over an edit that changes no launch.
"""

from __future__ import annotations

from tuner.upgrade.entry_check import CheckOptions, check_entries
from tuner.upgrade.entry_outcome import EntryOutcome, Result
from tuner.upgrade.restamp import Carried, restamp_results, restamp_tables
from tuner.upgrade.retune import Retuned, retune
from tuner.upgrade.tables_here import Refused, TableHere, tables_here

__all__ = [
    "Carried",
    "CheckOptions",
    "EntryOutcome",
    "Refused",
    "Result",
    "Retuned",
    "TableHere",
    "check_entries",
    "restamp_results",
    "restamp_tables",
    "retune",
    "tables_here",
]
