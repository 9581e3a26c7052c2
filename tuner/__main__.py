"""`python -m tuner` is `tuner`."""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    # Python puts the working folder first; a `copy.py` there would hide the standard library's.
    sys.path.append(sys.path.pop(0))

from tuner.cli import main

main()
