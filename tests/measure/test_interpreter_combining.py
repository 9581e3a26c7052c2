"""Reductions and scans with a kernel's own functions, in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TILES = Path(__file__).with_name("combined_tiles.py")


def test_functions_combine_in_order_and_may_be_for_scalars_only():
    """Along rows, columns and all, forwards and backwards, with several values at once."""
    done = subprocess.run(
        [sys.executable, "-W", "error", f"{TILES}"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) < 1e-12
