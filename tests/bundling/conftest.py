"""Bundles. Processes that fork are started by the helper of `spaces`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "spaces"))
