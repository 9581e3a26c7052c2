"""Modules of `benchmarks/` are importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(f"{Path(__file__).resolve().parents[2] / 'benchmarks'}")
