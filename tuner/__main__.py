"""`python -m tuner` is `tuner`."""

from __future__ import annotations

from tuner.cli import main

main()
