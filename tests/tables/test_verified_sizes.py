"""The sizes between which configs of captured calls were verified, from the trials of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from search_spaces.records import Status
from tuner.runtime import Entry, Span
from tuner.tables.valid_sizes import add_verified

SMALL, LARGE = {"BLOCK": 64}, {"BLOCK": 128}
KERNEL = SimpleNamespace(compiled_in=frozenset({"TOP"}))


def call(n, m=64, top=2, dtype="float32"):
    return {"x": f"{dtype}[{n},{m}]@8", "index": f"int32[{n}]", "n": n, "m": m, "TOP": top}


def spans(*calls, kernel=KERNEL):
    """The sizes of entries. calls: of each the key, its config, and what else passed there."""
    entries = [
        (SimpleNamespace(task_id=at), Entry(key, config))
        for at, (key, config, *_) in enumerate(calls)
    ]

    def trials(task):
        _, config, *others = calls[task]
        correct = [SimpleNamespace(config=one, status=Status.CORRECT) for one in (config, *others)]
        wrong = SimpleNamespace(config={"BLOCK": 1}, status=Status.CORRECTNESS)
        return [*correct, wrong]

    return [dict(entry.sizes) for entry in add_verified(kernel, entries, trials)]


def test_a_config_is_right_between_the_sizes_where_it_passed():
    found = spans((call(32), SMALL), (call(517), LARGE, SMALL), (call(4000), LARGE))
    assert found == [{"n": Span(32, 517)}, {"n": Span(517, 4000)}, {"n": Span(517, 4000)}]
    assert spans((call(32), SMALL), (call(517), LARGE)) == [{}, {}]
    assert spans((call(32), {"BLOCK": 1}), (call(517), LARGE)) == [{}, {}]


@pytest.mark.parametrize(
    "other", [call(517, top=4), call(517, dtype="float16"), {**call(517), "more": 3}, call(1)]
)
def test_calls_of_another_kind_show_nothing(other):
    assert spans((call(32), SMALL), (other, SMALL)) == [{}, {}]


def test_sizes_that_are_mixed_of_two_calls_are_not_implied():
    assert spans((call(32, 4000), SMALL), (call(517, 64), SMALL)) == [{}, {}]
    assert (
        spans((call(32, 64), SMALL), (call(517, 4000), SMALL))
        == [{"n": Span(32, 517), "m": Span(64, 4000)}] * 2
    )


def test_a_declared_kernel_says_itself_where_a_config_is_right():
    assert spans((call(32), SMALL), (call(517), SMALL), kernel=None) == [{}, {}]
