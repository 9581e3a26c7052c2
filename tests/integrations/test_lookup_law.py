"""The law of every lookup, and of every file that is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.integrations import SizeTable, adapters

ADAPTERS = adapters()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
@given(
    sides=st.dictionaries(st.integers(1, 10**6), st.sampled_from([16, 32, 64, 128]), min_size=1),
    size=st.integers(1, 2 * 10**6),
)
def test_the_nearest_row_wins_and_a_file_keeps_the_rule(adapter, sides, size):
    rows = {one: dict.fromkeys(adapter.required, side) for one, side in sides.items()}
    table = adapter.read(adapter.text_of(SizeTable(rows)), "file")
    picked = adapter.nearest(table.rows, size)
    nearest = min(abs(one - size) for one in sides)
    # Written in ascending order, so of two rows at one distance the smaller wins.
    assert picked == min(one for one in sides if abs(one - size) == nearest)
