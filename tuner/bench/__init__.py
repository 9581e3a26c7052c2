"""A few variants looked at by people: measured side by side, or only checked.

The farm's own builders and runners do both, on this machine and with the farm's protocol. The
database is read where its winner is wanted, and never written.
"""

from __future__ import annotations

from tuner.bench._measured import Pass, Row, baselines_of, bench
from tuner.bench._session import LocalSession, Tell
from tuner.bench._target import BenchTarget, subject
from tuner.bench._variants import Variant, candidates, variants
from tuner.bench._verified import Checked, points, verify

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
