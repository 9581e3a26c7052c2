"""Measure or check a few variants on this machine, for `tuner bench` and `tuner verify`.

Both use the farm's own builders and runners and its measuring protocol. They read the database
where the config `best` is named, and never write to it.
"""

from __future__ import annotations

from tuner.bench.local_session import LocalSession, ProgressCallback
from tuner.bench.named_configs import Variant, bench_variants, default_of, named_variants
from tuner.bench.side_by_side import BenchRow, Pass, bench, chosen_baselines, device_of, one_pass
from tuner.bench.targets import BenchTarget, bench_target
from tuner.bench.verification import CheckedVariant, VariantSelection, space_variants, verify

__all__ = [
    "LocalSession",
    "CheckedVariant",
    "Pass",
    "ProgressCallback",
    "BenchRow",
    "VariantSelection",
    "BenchTarget",
    "Variant",
    "bench",
    "bench_target",
    "bench_variants",
    "chosen_baselines",
    "default_of",
    "device_of",
    "named_variants",
    "one_pass",
    "space_variants",
    "verify",
]
