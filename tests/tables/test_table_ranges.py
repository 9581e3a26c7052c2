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
    return Table("k", "", H200, {}, tuple(entries), Rule("sizes"), launch_hash="aa")


@given(st.sets(st.integers(2, 8191), max_size=6), st.integers(1, 20000))
def test_every_size_of_a_range_has_the_config_of_its_part(switches, size):
    switches = sorted(switches)
    hit = table(switches).find({"M": size, "N": 4096})
    assert hit.config == {"BLOCK": sum(size > switch for switch in switches)}
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
    even = table(sizes=Span(1, 10**6)).find({"M": 8193, "N": 4096})
    assert even.how == "nearest"
    bounded = Table(
        "k", "", H200, {},
        (
            Entry({"M": 64}, {"B": 1}, sizes={"M": Span(16, 4096, 16)}, serves={"M": Span(1, 512)}),
            Entry({"M": 777}, {"B": 2}, sizes={"M": ALL}, serves={"M": Span(513, 4096)}),
        ),
        Rule("sizes"),
    )  # fmt: skip
    assert bounded.find({"M": 48}).config == {"B": 1}
    assert bounded.find({"M": 49}).config == {
        "B": 2
    }  # no multiple of 16: the nearest that is right
    assert bounded.find({"M": 49}).how == "nearest"


def test_boxes_of_two_dims():
    entries = [
        Entry(
            {"rows": rows, "cols": cols},
            {"at": f"{rows} {cols}"},
            sizes={"rows": ALL, "cols": ALL},
            serves={"rows": Span(*of_rows), "cols": Span(*of_cols)},
        )
        for rows, of_rows in ((16, (1, 64)), (512, (65, 1024)))
        for cols, of_cols in ((128, (1, 256)), (4096, (257, 8192)))
    ]
    found = Table("k", "", H200, {}, tuple(entries), Rule("sizes"))
    assert found.find({"rows": 64, "cols": 256}).config == {"at": "16 128"}
    assert found.find({"rows": 65, "cols": 256}).config == {"at": "512 128"}
    assert found.find({"rows": 65, "cols": 257}).config == {"at": "512 4096"}
    beyond = found.find({"rows": 65, "cols": 10**6})
    assert (beyond.how, beyond.config) == ("nearest", {"at": "512 4096"})


def test_an_own_entry_comes_before_a_range():
    own = Entry({"M": 100, "N": 4096}, {"BLOCK": 99})
    found = Table("k", "", H200, {}, (*table().entries, own), Rule("sizes"))
    assert found.find({"M": 100, "N": 4096}).config == {"BLOCK": 99}
    assert found.find({"M": 101, "N": 4096}).config == {"BLOCK": 1}


def test_a_table_of_ranges_survives_its_file(tmp_path):
    path = tmp_path / "k@NVIDIA_H200.json"
    coverage = ({"dim": "M", "sizes": "1..8192", "of": "N=4096", "worst_loss": 0.01},)
    written = Table(
        "k", "", H200, {}, table().entries, Rule("sizes"), launch_hash="aa", coverage=coverage
    )
    path.write_text(text_of(written))
    read = runtime.read(path)
    assert read.entries == written.entries
    assert read.coverage == coverage


@pytest.mark.parametrize("quiet", [False, True])
def test_a_size_beyond_the_ranges_is_said_once(tmp_path, caplog, monkeypatch, quiet):
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    runtime.clear()
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


def test_ten_thousand_entries_are_found_by_their_parts():
    others = [{"N": 8 * n, "K": k} for n in range(1, 101) for k in range(1, 26)]
    found = table(switches=(64, 700, 5000), others=others)
    assert len(found.entries) == 10_000
    for other in others[::97]:
        for size, block in ((3, 0), (66, 1), (703, 2), (8000, 3)):
            hit = found.find({**other, "M": size})
            assert (hit.how, hit.config) == ("range", {"BLOCK": block})


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
    ],
)
def test_contradictory_parts_are_refused_in_one_line(tmp_path, changes, said):
    path = tmp_path / "k@NVIDIA_H200.json"
    data = json.loads(text_of(table()))
    data["entries"][0] |= changes
    path.write_text(json.dumps(data))
    with pytest.raises(TableError) as error:
        runtime.read(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_parts_that_overlap_are_refused(tmp_path):
    path = tmp_path / "k@NVIDIA_H200.json"
    data = json.loads(text_of(table()))
    data["entries"][0]["serves"]["M"] = [1, 65]
    path.write_text(json.dumps(data))
    with pytest.raises(TableError) as error:
        runtime.read(path)
    assert "serves.M: two entries serve 65" in str(error.value)


@pytest.mark.parametrize("coverage", [[3], {"a": 1}, [{"a": []}], [{"a": 2**70}]])
def test_hostile_coverage_is_refused(tmp_path, coverage):
    path = tmp_path / "k@NVIDIA_H200.json"
    path.write_text(json.dumps({**json.loads(text_of(table())), "coverage": coverage}))
    with pytest.raises(TableError):
        runtime.read(path)
