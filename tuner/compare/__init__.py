"""Given configs: comparisons and checks of a few variants on this machine.

`tuner bench`, `verify`, `upgrade-check` and new measurements of stored results are tasks of the
engine that evaluate given configs (`given_tasks.py`), on the farm's own builders and runners. They
read the database where the config `best` is named, and never write to it.
"""

from __future__ import annotations

from tuner.compare.assembly import build_assembly
from tuner.compare.bench_rows import BenchRow, Pass, chosen_baselines, compare, make_pass
from tuner.compare.given_tasks import Evaluated, GivenTask, evaluate
from tuner.compare.named_configs import Variant, bench_variants, default_of, named_variants
from tuner.compare.remeasurement import remeasure
from tuner.compare.targets import BenchTarget, bench_target, find_spec
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
    "CheckedVariant",
    "Evaluated",
    "GivenTask",
    "Pass",
    "Variant",
    "VariantSelection",
    "bench_target",
    "bench_variants",
    "build_assembly",
    "compare",
    "chosen_baselines",
    "default_of",
    "elsewhere_variants",
    "evaluate",
    "find_spec",
    "make_pass",
    "named_variants",
    "remeasure",
    "space_variants",
    "verify",
]
