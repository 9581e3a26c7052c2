"""A few variants looked at by people: measured side by side, or only checked.

The farm's own builders and runners do both, on this machine and with the farm's protocol. The
database is read where its winner is wanted, and never written.
"""

from __future__ import annotations

from tuner.bench.named_configs import Variant, candidates, variants
from tuner.bench.session import LocalSession, Tell
from tuner.bench.side_by_side import Pass, Row, baselines_of, bench
from tuner.bench.target import BenchTarget, subject
from tuner.bench.verification import Checked, points, verify

__all__ = [
    "LocalSession",
    "Checked",
    "Pass",
    "Row",
    "BenchTarget",
    "Tell",
    "Variant",
    "baselines_of",
    "bench",
    "candidates",
    "points",
    "subject",
    "variants",
    "verify",
]
