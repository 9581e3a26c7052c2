"""The cost of a trial does not grow with the number of trials. It is counted, not timed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from acceptance import tuner_overhead

FEW, MANY = 100, 800


def lines_per_trial(trials: int) -> float:
    """Lines of the tuner's own code that run for one trial."""
    packages = tuple(f"/{name}/" for name in ("tuner", "results_db", "workers", "search_spaces"))
    ran = 0

    def line(frame, what, argument):
        nonlocal ran
        ran += what == "line"
        return line

    def call(frame, what, argument):
        file = frame.f_code.co_filename
        return line if any(package in file for package in packages) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        tuner_overhead.in_memory(trials, "exhaustive")
    finally:
        sys.settrace(before)
    return ran / trials


def test_a_trial_costs_as_much_after_hundreds_as_at_first():
    few = lines_per_trial(FEW)
    assert few > 50
    assert lines_per_trial(MANY) <= 1.15 * few


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_a_trial_is_one_transaction_of_a_lease_check_and_two_inserts(strategy):
    statements = []

    def note(connection, cursor, statement, *_):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        tuner_overhead.in_sqlite(FEW, strategy)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert sum(s.startswith("INSERT INTO trial ") for s in statements) == FEW
    assert sum(s.startswith("INSERT INTO measurement ") for s in statements) == FEW
    # A trial takes a BEGIN, a check of the lease and its two inserts; the outcome of the task takes
    # some more. Statements before the first trial, such as creating tables, do not count.
    first = next(at for at, s in enumerate(statements) if s.startswith("INSERT INTO trial "))
    assert len(statements) - first <= 4 * FEW + 50
