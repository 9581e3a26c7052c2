"""Measure or check a few variants on this machine, for `tuner bench` and `tuner verify`.

Both use the farm's own builders and runners and its measuring protocol. They read the database
where the config `best` is named, and never write to it.
"""

from __future__ import annotations

from tuner.bench.assembly import build_assembly
from tuner.bench.local_session import LocalSession, ProgressCallback
from tuner.bench.named_configs import Variant, bench_variants, default_of, named_variants
from tuner.bench.remeasurement import remeasure
from tuner.bench.side_by_side import BenchRow, Pass, SideBySide, bench, chosen_baselines
from tuner.bench.targets import BenchTarget, bench_target, find_spec, group_by_pool
from tuner.bench.verification import (
    CheckedVariant,
    VariantSelection,
    check_variants,
    elsewhere_variants,
    space_variants,
    verify,
)

__all__ = [
    "LocalSession",
    "CheckedVariant",
    "Pass",
    "SideBySide",
    "ProgressCallback",
    "BenchRow",
    "VariantSelection",
    "BenchTarget",
    "Variant",
    "bench",
    "build_assembly",
    "bench_target",
    "bench_variants",
    "check_variants",
    "chosen_baselines",
    "default_of",
    "elsewhere_variants",
    "find_spec",
    "group_by_pool",
    "named_variants",
    "remeasure",
    "space_variants",
    "verify",
]
