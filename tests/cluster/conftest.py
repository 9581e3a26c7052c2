"""The helpers for processes are those of `pools`, and those for whole farms of `farm`."""

from __future__ import annotations

import sys
from pathlib import Path

for _folder in ("pools", "farm"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))
