"""Tables whose entries serve parts of a range: lookup in it and beyond, and what is refused."""

from __future__ import annotations

import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import runtime
from tuner.runtime import DeviceFacts, Entry, Rule, Span, Table, TableError
from tuner.tables import text_of

H200 = DeviceFacts("NVIDIA H200", kind="cuda", target="cuda:90", sm_count=132)
ALL = Span(1, 2**31 - 1)


def of_entries(*entries, **more) -> Table:
    return Table("k", "", H200, {}, entries, Rule("sizes"), launch_hash="aa", **more)


def table(switches=(64, 700), low=1, high=8192, sizes=ALL, others=({"N": 4096},)) -> Table:
    """Entries for the parts of a range that end at the switches, for each of the other dims."""
    ends = [low - 1, *switches, high]
    entries = [
        Entry(
            {"M": first + 1, **other},
            {"BLOCK": number},
            sizes={"M": sizes},
            serves={"M": Span(first + 1, last)},
        )
        for other in others
        for number, (first, last) in enumerate(pairwise(ends))
    ]
    return of_entries(*entries)


@given(st.sets(st.integers(2, 8191), max_size=6), st.integers(1, 20000))
def test_every_size_of_a_range_has_the_config_of_its_part(switches, size):
    switches = sorted(switches)
    hit = table(switches, others=({"N": 8}, {"N": 4096})).find({"M": size, "N": 4096})
    assert hit.config == {"BLOCK": sum(size > switch for switch in switches)}
    assert hit.entry.key["N"] == 4096
    if size <= 8192:
        assert (hit.how, hit.distance) in (("range", 0.0), ("exact", 0.0))
    else:
        assert hit.how == "nearest"
        assert 0 < hit.distance < 1.3


def test_another_size_of_a_fixed_dim_misses():
    assert table().find({"M": 5, "N": 4097}) is None
    assert table().find({"N": 4096}) is None
    assert table().find({"M": "five", "N": 4096}) is None
    assert table().find({"M": True, "N": 4096}).how in ("range", "exact")  # 1 equals True


def test_a_part_is_used_only_where_its_config_is_valid():
    assert table(sizes=Span(1, 10**6)).find({"M": 8193, "N": 4096}).how == "nearest"
    bounded = of_entries(
        Entry({"M": 64}, {"B": 1}, sizes={"M": Span(16, 4096, 16)}, serves={"M": Span(1, 512)}),
        Entry({"M": 777}, {"B": 2}, sizes={"M": ALL}, serves={"M": Span(513, 4096)}),
    )
    assert bounded.find({"M": 48}).config == {"B": 1}
    other = bounded.find({"M": 49})  # no multiple of 16: the nearest that is right
    assert (other.how, other.config) == ("nearest", {"B": 2})


def test_an_own_entry_comes_before_a_range():
    own = Entry({"M": 100, "N": 4096}, {"BLOCK": 99})
    found = of_entries(*table().entries, own)
    assert found.find({"M": 100, "N": 4096}).config == {"BLOCK": 99}
    assert found.find({"M": 101, "N": 4096}).config == {"BLOCK": 1}


def test_a_table_of_ranges_survives_its_file(tmp_path):
    path = tmp_path / "k@NVIDIA_H200.json"
    coverage = ({"dim": "M", "sizes": "1..8192", "of": "N=4096", "worst_loss": 0.01},)
    written = of_entries(*table().entries, coverage=coverage)
    path.write_text(text_of(written))
    read = runtime.read(path)
    assert read.entries == written.entries
    assert read.coverage == coverage


@pytest.mark.parametrize("quiet", [False, True])
def test_a_size_beyond_the_ranges_is_said_once(tmp_path, caplog, quiet):
    (tmp_path / "k@NVIDIA_H200.json").write_text(text_of(table()))
    with caplog.at_level(logging.WARNING, "tuner.runtime"):
        for size in (100, 8192, 10_000, 20_000, 10_000):
            hit = runtime.lookup(
                "k", {"M": size, "N": 4096}, tables=tmp_path, device=H200, stale="use", quiet=quiet
            )
            assert hit.config
    if quiet:
        assert not caplog.records
        return
    said = [record.message for record in caplog.records if "outside" in record.message]
    assert len(said) == 1
    assert "M=10000 N=4096 is outside the ranges" in said[0]
    assert "M=701..8192, 0.3 octaves away" in said[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"serves": {"M": [100, 200]}}, "entries[0].serves.M does not hold the entry's size"),
        ({"serves": {"M": [2, 1]}}, "does not hold the entry's size"),
        ({"serves": {"N": [4096, 4096]}}, "entries[0].serves.N has no sizes"),
        ({"serves": {"M": [0, 5]}}, "entries[0].serves.M is out of range"),
        ({"serves": {"M": [1.0, 5]}}, "in integers"),
        ({"serves": {"M": "all"}}, "entries[0].serves.M is not a list"),
        ({"serves": 3}, "entries[0].serves is not an object"),
        ({"serves": {"M": [1, 65]}}, "serves.M: two entries serve 65"),
        *(({"coverage": wrong}, "coverage") for wrong in ([3], {"a": 1}, [{"a": []}])),
        ({"coverage": [{"a": 2**70}]}, "coverage"),
    ],
)
def test_contradictory_parts_and_hostile_coverage_are_refused_in_one_line(tmp_path, changes, said):
    path = tmp_path / "k@NVIDIA_H200.json"
    data = json.loads(text_of(table()))
    (data if "coverage" in changes else data["entries"][0]).update(changes)
    path.write_text(json.dumps(data))
    with pytest.raises(TableError) as error:
        runtime.read(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
