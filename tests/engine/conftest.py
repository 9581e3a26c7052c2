"""The helpers for campaigns in this process are those of `pools`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "pools"))
