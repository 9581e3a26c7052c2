"""Killing processes is what `pools` does too, and whole farms what `farm` does."""

from __future__ import annotations

import sys
from pathlib import Path

for _folder in ("pools", "farm"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))
