"""Given configs: comparisons and checks of a few variants on this machine.

`tuner bench`, `verify`, `check` and new measurements of stored results are tasks of the
engine that evaluate given configs (`given_tasks.py`), on the farm's own builders and runners. They
read the database where the config `best` is named, and never write to it.

- `bench_rows` has the rows of a comparison, `verification` those of a check, `remeasurement` and
  `row_comparison` compare again what is stored or what a library launches today.
- `entry_check` checks the entries of tables (`tables_here`) after a new Triton, driver or card,
  and decides what became of each winner; `retune` tunes those again that flipped.
- `restamp` carries results and tables over an edit that changes no launch.
"""

from __future__ import annotations

from tuner.compare.assembly import build_assembly
from tuner.compare.bench_rows import BenchRow, Pass, chosen_baselines, compare
from tuner.compare.entry_check import CheckOptions, EntryOutcome, check_entries
from tuner.compare.given_tasks import GivenTask
from tuner.compare.named_configs import Variant, bench_variants, named_variants
from tuner.compare.remeasurement import remeasure
from tuner.compare.restamp import Carried, restamp_results, restamp_tables
from tuner.compare.retune import Retuned, retune
from tuner.compare.tables_here import Refused, TableHere, tables_here
from tuner.compare.targets import BenchTarget, bench_target
from tuner.compare.verification import (
    CheckedVariant,
    VariantSelection,
    elsewhere_variants,
    space_variants,
    verify,
)

__all__ = [
    "BenchRow",
    "BenchTarget",
    "Carried",
    "CheckOptions",
    "CheckedVariant",
    "EntryOutcome",
    "GivenTask",
    "Pass",
    "Refused",
    "Retuned",
    "TableHere",
    "Variant",
    "VariantSelection",
    "bench_target",
    "bench_variants",
    "build_assembly",
    "check_entries",
    "chosen_baselines",
    "compare",
    "elsewhere_variants",
    "named_variants",
    "remeasure",
    "restamp_results",
    "restamp_tables",
    "retune",
    "space_variants",
    "tables_here",
    "verify",
]
