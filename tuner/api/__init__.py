"""The farm from Python, for notebooks and libraries: the same engine as the command line.

    result = tuner.tune("softmax", {"rows": 8192, "cols": 8192, "dtype": "bfloat16"})

- `tuning.py` has `tune`.
- `result.py` has the result, `html.py` its table in a notebook.
- `range_result.py` has the result of a range of sizes.
- `sessions.py` keeps workers warm between calls.
- `databases.py` keeps a temporary database for as long as a result needs it.
"""

from __future__ import annotations

from tuner.api.range_result import RangeResult
from tuner.api.result import TuneResult
from tuner.api.sessions import Session, session
from tuner.api.tuning import tune

__all__ = ["RangeResult", "Session", "TuneResult", "session", "tune"]
