"""Lookup of a workload: exact, nearest, bounded, deterministic, cached, with one warning."""

from __future__ import annotations

import logging
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_documents import document, written

from tuner import runtime
from tuner.runtime import DeviceFacts, Entry, Rule, Span, Table

sizes = st.integers(1, 2**20)
keys = st.fixed_dictionaries(
    {"M": sizes, "N": sizes, "dtype": st.sampled_from(["float16", "float32"])}
)
H200 = DeviceFacts("NVIDIA H200", target="cuda:90", sm_count=132, memory_bytes=150_100_000_000)


def table(entry_keys, rule=None) -> Table:
    entries = tuple(Entry(key, {"at": number}) for number, key in enumerate(entry_keys))
    rule = rule or Rule("nearest_log2", 1.0, ("M", "N"))
    return Table("k", "", DeviceFacts("d"), {}, entries, rule)


def distance(a, b) -> float:
    if a["dtype"] != b["dtype"]:
        return math.inf
    return math.hypot(*(math.log2(a[name]) - math.log2(b[name]) for name in ("M", "N")))


@given(st.lists(keys, min_size=1, max_size=8, unique_by=lambda k: tuple(k.items())), keys)
def test_nearest_matches_its_definition(entry_keys, requested):
    entry_keys = [dict(key) for key in entry_keys]
    hit = table(entry_keys).find(requested)
    best = min(distance(requested, key) for key in entry_keys)
    if requested in entry_keys:
        assert (hit.how, hit.entry.key) == ("exact", requested)
    elif best <= 1.0 - 1e-9:
        assert (hit.how, hit.distance) == ("nearest", pytest.approx(best, abs=1e-9))
        assert distance(requested, hit.entry.key) == pytest.approx(best, abs=1e-9)
    elif best > 1.0 + 1e-9:
        assert hit is None


@given(
    st.lists(keys, min_size=2, max_size=8, unique_by=lambda k: tuple(k.items())),
    keys,
    st.randoms(use_true_random=False),
)
def test_the_order_of_entries_and_names_does_not_matter(entry_keys, requested, rng: random.Random):
    shuffled = [dict(rng.sample(list(key.items()), len(key))) for key in entry_keys]
    rng.shuffle(shuffled)
    found = [table(given).find(requested) for given in (entry_keys, shuffled)]
    one, other = (hit and hit.entry.key for hit in found)
    assert one == other


spans = st.fixed_dictionaries(
    {}, optional={name: st.tuples(sizes, sizes, st.sampled_from([1, 2, 8])) for name in ("M", "N")}
)


def spanned(key, given) -> dict[str, Span]:
    """Spans of a key that hold it."""
    found = {}
    for name, (one, other, multiple) in given.items():
        multiple = multiple if key[name] % multiple == 0 else 1
        found[name] = Span(min(one, key[name]), max(other, key[name]), multiple)
    return found


@given(
    st.lists(st.tuples(keys, spans), min_size=1, max_size=8, unique_by=lambda e: str(e[0])), keys
)
def test_the_nearest_entry_whose_sizes_hold_the_workload_serves_it(pairs, requested):
    entries = [Entry(dict(key), {"at": at}, sizes=spanned(key, given))
               for at, (key, given) in enumerate(pairs)]  # fmt: skip
    hit = Table("k", "", DeviceFacts("d"), {}, tuple(entries), Rule("sizes")).find(requested)
    holding = [
        entry
        for entry in entries
        if all(
            requested[name] in entry.sizes[name]
            if name in entry.sizes
            else requested[name] == value
            for name, value in entry.key.items()
        )
    ]
    if not holding and requested not in [entry.key for entry in entries]:
        assert hit is None
    elif requested in [entry.key for entry in entries]:
        assert hit.how == "exact"
    else:
        least = min(distance(requested, entry.key) for entry in holding)
        assert hit.distance == pytest.approx(least, abs=1e-9)
        assert hit.entry in holding


@pytest.mark.parametrize("value", [True, 8.0, "8", None, 7, 17, 12])
def test_what_is_no_size_of_a_span_is_outside(value):
    assert 8 in Span(8, 16, 8)
    assert value not in Span(8, 16, 8)


def test_equal_distances_go_to_the_smaller_key():
    ends = [{"M": 8, "N": 4, "dtype": "x"}, {"M": 2, "N": 4, "dtype": "x"}]
    assert table(ends).find({"M": 4, "N": 4, "dtype": "x"}).entry.key["M"] == 2


KEY = {"M": 4, "N": 4, "dtype": "x"}


@pytest.mark.parametrize(
    "requested",
    [
        *({**KEY, "M": value} for value in (0, -4, math.nan, math.inf, True, None, "4")),
        *({"M": 4}, {**KEY, "extra": 1}, {**KEY, "dtype": "y"}, {}),
    ],
)
def test_a_key_without_a_neighbour_is_a_miss(requested):
    assert table([KEY]).find(requested) is None


def test_booleans_text_and_none_match_as_adopted():
    flags = [True, False, None, 0, 2, "none", "True"]
    entries = tuple(
        Entry({"M": 64, "flag": flag}, {"at": number}) for number, flag in enumerate(flags)
    )
    found = Table("k", "", DeviceFacts("d"), {}, entries, Rule("nearest_log2", 1, ("M", "flag")))
    for number, flag in enumerate(flags):
        assert found.find({"M": 64, "flag": flag}).config["at"] == number
        near = found.find({"M": 65, "flag": flag})
        assert (near.how, near.config["at"]) == ("nearest", number)
    assert found.find({"M": 64, "flag": 1}).config["at"] == 0  # as Triton's own key has it
    assert found.find({"M": 64, "flag": "2"}) is None
    assert found.find({"M": 64, "flag": 3}).config["at"] == 4
    both = table([{"M": True}, {"M": 1}], Rule())
    assert [both.find({"M": value}).config["at"] for value in (True, 1, 1.0)] == [0, 1, 1]


def put(folder, block=1, n=64, file="scale@x.json", **facts):
    """A table of one entry in a folder."""
    return written(folder / file, document([({"n": n}, {"BLOCK": block})], **facts))


def look(folder, n=64, device=H200, **more):
    return runtime.lookup("scale", {"n": n}, tables=folder, device=device, **more)


def test_a_flag_and_a_number_are_remembered_apart(tmp_path):
    both = [({"n": True}, {"BLOCK": 1}), ({"n": 1}, {"BLOCK": 2})]
    written(tmp_path / "scale@x.json", document(both))
    for n, block in ((True, 1), (1, 2), (True, 1)):
        assert look(tmp_path, n).config["BLOCK"] == block


def test_all_tables_of_a_kernel_together_have_the_bytes_of_one(tmp_path, caplog):
    """The file that goes beyond is named where it is missed; smaller ones after it are read."""
    padding = " " * (9 * 2**20)
    for name, size in (("scale@a.json", 1), ("scale@b.json", 2), ("scale@c.json", 3)):
        path = put(tmp_path, size, size, name, rule="exact")
        if name != "scale@c.json":
            path.write_text(path.read_text() + padding)
    # What is refused by its own size is not read, and does not count.
    (tmp_path / "scale@0.json").write_text(2 * padding)
    other = DeviceFacts("NVIDIA B200", target="cuda:100", sm_count=148)
    assert look(tmp_path, 1, other) is None
    assert f"table {tmp_path / 'scale@b.json'} is not read: the tables of scale in" in caplog.text
    assert look(tmp_path, 1).config == {"BLOCK": 1}
    (tmp_path / "scale@a.json").unlink()
    runtime.clear()
    assert look(tmp_path, 2).config == {"BLOCK": 2}


def test_the_rule_decides_what_a_miss_gets():
    near, far = {**KEY, "M": 5}, {**KEY, "M": 99}
    assert table([KEY], Rule("exact", 1.0, ("M",))).find(near) is None
    assert table([KEY], Rule("nearest_log2", 1.0, ("M",))).find(far) is None
    assert table([KEY], Rule("nearest_log2", 1.0, ("N",))).find(near) is None
    entries = (Entry(KEY, {"at": 0}),)
    full = Table("k", "", DeviceFacts("d"), {}, entries, Rule("fallback", 1.0, ("M",)), {"at": 9})
    found = [full.find(key) for key in (KEY, near, far)]
    assert [(hit.how, hit.config["at"]) for hit in found] == [
        ("exact", 0),
        ("nearest", 0),
        ("default", 9),
    ]


def test_lookup_finds_the_table_of_kernel_and_device(tmp_path, caplog):
    put(tmp_path, 1, file="scale@NVIDIA_H200-1.json")
    put(tmp_path, 2, file="scale@NVIDIA_H100.json", device="NVIDIA H100")
    put(tmp_path, 3, file="scale_up@NVIDIA_H200.json", kernel="scale_up")
    for device, block in (("NVIDIA H200", 1), (H200, 1), ("NVIDIA H100", 2)):
        hit = look(tmp_path, device=device)
        assert hit.config["BLOCK"] == block
        assert look(tmp_path, device=device) is hit
    assert look([tmp_path], 90).how == "nearest"
    assert not caplog.records


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts("NVIDIA H200 NVL"),
        DeviceFacts("NVIDIA H200", target="cuda:100"),
        DeviceFacts("NVIDIA H200", target="cuda:90", sm_count=16),
        DeviceFacts("NVIDIA H200", target="cuda:90", memory_bytes=18_000_000_000),
    ],
)
def test_another_card_or_a_slice_of_one_is_another_device(tmp_path, caplog, facts):
    put(tmp_path)
    for _ in range(3):
        assert look(tmp_path, device=facts) is None
    assert len(caplog.records) == 1
    assert facts.name in caplog.text
    assert str(tmp_path) in caplog.text


def test_tables_of_cpu_kernels_are_found_on_the_cpu_they_were_made_on(tmp_path):
    """The farm and the runtime name a processor and count its cores alike."""
    from workers.host import cpu_device

    ours = cpu_device()
    content = document([({"n": 64}, {"BLOCK": 1})], device=ours.name)
    facts = {"kind": "cpu", "target": ours.target, "sm_count": ours.sm_count, "memory_bytes": 1}
    content["device"] |= facts
    written(tmp_path / "scale@x.json", content)
    assert look(tmp_path, device=None).config == {"BLOCK": 1}
    runtime.clear()
    content["device"]["sm_count"] += 1
    written(tmp_path / "scale@x.json", content)
    assert look(tmp_path, device=None) is None


def test_a_miss_gives_the_default_and_one_warning(tmp_path, caplog):
    put(tmp_path)
    for n in (1000, 2000, 3000):
        hit = look(tmp_path, n, default={"BLOCK": 7})
        assert (hit.how, hit.config) == ("default", {"BLOCK": 7})
    assert len(caplog.records) == 1
    assert "n=1000" in caplog.text


def test_keys_that_cannot_be_hashed_are_misses(tmp_path):
    put(tmp_path)
    for value in ([64], {}, {64}):
        assert look(tmp_path, value) is None


def test_tables_of_the_environment_come_before_the_packaged(tmp_path, monkeypatch):
    first, second = tmp_path / "a", tmp_path / "b"
    put(first, 1)
    put(second, 2)
    monkeypatch.setenv("TUNER_TABLES", f"{tmp_path / 'none'}:{second}:{first}")
    assert look(None).config["BLOCK"] == 2
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    assert look(None, device=None).config["BLOCK"] == 2


def test_without_a_device_nothing_is_assumed(tmp_path, caplog, monkeypatch):
    put(tmp_path)
    monkeypatch.setattr("tuner.runtime._lookup.current_device", lambda: None)
    assert look(tmp_path, device=None) is None
    assert "unknown device" in caplog.text


@pytest.mark.parametrize("made_with", [{"triton": "1.0"}, {"torch": "1.0"}])
def test_a_table_of_another_toolchain_is_aged(tmp_path, caplog, made_with):
    path = put(tmp_path, toolchain=made_with)
    for _ in range(2):
        assert look(tmp_path) is None
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert "1.0" in caplog.text
    assert look(tmp_path, stale="use") is not None


def test_a_table_of_other_source_is_aged_and_a_fresh_one_preferred(tmp_path, caplog):
    put(tmp_path, 1, file="scale@a.json", kernel_hash="aaaa")
    assert look(tmp_path, source="bb") is None
    assert "other source code" in caplog.text
    runtime.clear()
    put(tmp_path, 2, file="scale@b.json", kernel_hash="bb")
    assert look(tmp_path, source="bb").config["BLOCK"] == 2


def test_warnings_are_one_printable_line(tmp_path, caplog):
    hostile = "evil\n\x1b[2J" + "x" * 5000
    written(tmp_path / "scale.json", document(kernel=hostile))
    with caplog.at_level(logging.WARNING):
        look(tmp_path / "scale.json", hostile, hostile)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.isprintable()
    assert len(text) < 1000


def test_what_is_remembered_is_bounded(tmp_path):
    from tuner.runtime import _lookup

    put(tmp_path)
    for n in range(_lookup.MAX_CACHED + 10):
        look(tmp_path, n)
    assert len(_lookup._hits) <= _lookup.MAX_CACHED


def test_load_warns_once_and_read_raises(tmp_path, caplog):
    good = written(tmp_path / "good.json", document([({"n": 1}, {"B": 1})]))
    assert runtime.load(good) == runtime.read(good)
    bad = written(Path(tmp_path / "bad.json"), "{")
    assert runtime.load(bad) is None
    assert runtime.load(bad) is None
    assert len(caplog.records) == 1
    with pytest.raises(runtime.TableError, match="line 1"):
        runtime.read(bad)
