"""The command line: one module per command of `tuner`.

Exit codes: 0 fine, 1 a finding, 2 usage, configuration or input/output, 130 interrupted.
"""

from __future__ import annotations

from tuner.cli.application import invoke, main, make_app

__all__ = ["invoke", "main", "make_app"]
