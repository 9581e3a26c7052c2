"""`tuner.optimize`: from one step of a program, or a whole one, to tables that make it faster.

- `optimization.py` has `optimize` and its parts in order, and the same for a program.
- `step_record.py`: the kinds of calls of a step, and their time.
- `worthwhile_calls.py`: which of them are worth tuning.
- `candidate_tables.py`: tunes them, and collects winners in a folder of their own.
- `step_comparison.py`: the step with and without these tables.
- `program_record.py`, `program.py`: the calls of a whole program, and its runs in turn.
- `optimize_result.py`: what was found, as text and fields.
"""

from __future__ import annotations

from tuner.optimizing.optimization import optimize
from tuner.optimizing.optimize_result import OptimizeResult

__all__ = ["OptimizeResult", "optimize"]
