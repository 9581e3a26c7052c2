"""Files that anybody may have written: each is refused in one line, and breaks no lookup."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_documents import SCHEMA, document, written

from tuner import runtime
from tuner.runtime import DeviceFacts, TableError

GOOD = document([({"n": 64, "dtype": "float16"}, {"BLOCK": 1})], default={"BLOCK": 2})
DEVICE = DeviceFacts("NVIDIA H200")


def changed(*path, to):
    """A good table with one thing put in a place."""
    whole = copy.deepcopy(GOOD)
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return whole


#: Spans that are refused for an entry of size 64: malformed, not positive, or without 64.
WRONG_SPANS = (
    *(64, [64], [1, 64, 1, 1], ["1", "64"], [True, 64], [1.0, 64.0]),
    *([0, 64], [1, 64, 0], [65, 128], [128, 1]),
)
BAD = {
    "empty": b"",
    "truncated": json.dumps(GOOD)[:-40],
    "not text": b"\xff\xfe\x00\x01",
    "not JSON": "import os; os.abort()",
    "nan": json.dumps(changed("entries", 0, "median_us", to=float("nan"))),
    "infinity": json.dumps(changed("entries", 0, "config", "BLOCK", to=float("inf"))),
    "overflow": json.dumps(GOOD).replace('"BLOCK": 1', '"BLOCK": 1e999'),
    "digits": json.dumps(GOOD).replace('"BLOCK": 1', '"BLOCK": ' + "9" * 5000),
    "deep": "[" * 200_000,
    "deep object": '{"a":' * 100_000,
    "400 digits": changed("device", "memory_bytes", to=10**400),
    "big memory": changed("device", "memory_bytes", to=1e308),
    "big distance": changed("lookup", "max_distance", to=10**400),
    "big size": changed("entries", 0, "key", "n", to=10**400),
    "big value": changed("entries", 0, "config", "BLOCK", to=-(10**400)),
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "vLLM": '{"triton_version": "3.4.0", "1": {"BLOCK_SIZE_M": 16}}',
    "newer": changed("schema", to="tuner-table/2"),
    "foreign": changed("schema", to="other/1"),
    "schema list": changed("schema", to=["tuner-table/1"]),
    "name twice": json.dumps(GOOD).replace('"default"', '"default": null, "default"'),
    "kernel": changed("kernel", to="scale"),
    "kernel name": changed("kernel", "name", to=None),
    "device": changed("device", to=[]),
    "negative": changed("device", "sm_count", to=-1),
    "boolean number": changed("device", "sm_count", to=True),
    "toolchain": changed("toolchain", to={"triton": 3}),
    "rule": changed("lookup", "rule", to="eval"),
    "distance": changed("lookup", "max_distance", to="1"),
    "numeric": changed("lookup", "numeric", to=[["n"]]),
    "entries": changed("entries", to={}),
    "entry": changed("entries", 0, to=None),
    "key": changed("entries", 0, "key", to=["n", 64]),
    "key value": changed("entries", 0, "key", "n", to=[64]),
    "config": changed("entries", 0, "config", to=None),
    "config value": changed("entries", 0, "config", "BLOCK", to={"__class__": "x"}),
    "verdict": changed("entries", 0, "verdict", to="best"),
    "interval": changed("entries", 0, "interval", to=[1.0]),
    "median": changed("entries", 0, "median_us", to="10"),
    "tie set": changed("entries", 0, "tie_set", to=[3]),
    "sizes": changed("entries", 0, "sizes", to=[["n", 1, 64]]),
    "span of no dim": changed("entries", 0, "sizes", to={"m": [1, 64]}),
    "big span": changed("entries", 0, "sizes", to={"n": [1, 10**400]}),
    **{f"span {wrong}": changed("entries", 0, "sizes", to={"n": wrong}) for wrong in WRONG_SPANS},
    "provenance": changed("provenance", to={"run": {}}),
    "default": changed("default", to=[1]),
    "key twice": changed("entries", to=GOOD["entries"] * 2),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line_and_falls_back(name, tmp_path, caplog):
    path = written(tmp_path / "scale@x.json", BAD[name])
    with pytest.raises(TableError) as raised:
        runtime.read(path)
    assert str(raised.value).isprintable()
    for n in (64, 65):
        requested = {"n": n, "dtype": "float16"}
        more = {"tables": tmp_path, "device": DEVICE, "default": {"BLOCK": 9}}
        assert runtime.lookup("scale", requested, **more).how == "default"
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_a_good_file_is_read_and_fits_the_schema(tmp_path):
    jsonschema.validate(GOOD, SCHEMA, cls=jsonschema.Draft202012Validator)
    table = runtime.read(written(tmp_path / "t.json", GOOD))
    assert table.kernel == "scale"
    assert table.find({"dtype": "float16", "n": 64}).config == {"BLOCK": 1}
    (tmp_path / "old.json").write_text(json.dumps({**GOOD, "comment": "ours"}))
    assert runtime.read(tmp_path / "old.json").entries == table.entries


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = written(tmp_path / "t.json", b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert runtime.read(path).kernel == "scale"


@pytest.mark.parametrize("path", ["a\0b", "a\0b.json", "x" * 5000, "x" * 5000 + ".json"])
def test_a_path_that_cannot_be_is_said_once(path, caplog):
    for n in (64, 65):
        assert runtime.lookup("scale", {"n": n}, tables=path, device=DEVICE) is None
    assert len(caplog.records) == 1
    assert runtime.load(path) is None


@pytest.mark.parametrize("endless", ["/dev/zero", "/proc/kmsg", "/proc/self/status", "pipe"])
def test_a_link_to_what_has_no_end_is_not_read(tmp_path, endless):
    """In a process of its own, which ends with the test if it waits."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "scale@x.json").symlink_to(tmp_path / endless)
    code = f"""
from tuner import runtime
assert runtime.lookup("scale", {{"n": 1}}, tables={str(tmp_path)!r}, device="NVIDIA H200") is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "scale@x.json" in done.stderr


def test_things_that_are_no_files(tmp_path, caplog):
    os.mkfifo(tmp_path / "scale@pipe.json")
    (tmp_path / "scale@loop.json").symlink_to(tmp_path / "scale@loop.json")
    (tmp_path / "scale@folder.json").mkdir()
    huge = tmp_path / "scale@huge.json"
    with huge.open("wb") as file:
        file.truncate(2**34)
    for name in ("pipe", "loop", "folder", "huge", "absent"):
        with pytest.raises(TableError):
            runtime.read(tmp_path / f"scale@{name}.json")
    assert runtime.lookup("scale", {"n": 1}, tables=tmp_path, device=DEVICE) is None
    assert len(caplog.records) == 1


def test_a_bad_table_does_not_hide_a_good_one(tmp_path, caplog):
    written(tmp_path / "mine" / "scale@x.json", "{")
    good = written(tmp_path / "packaged" / "scale@x.json", GOOD)
    folders = [tmp_path / "mine", tmp_path / "packaged"]
    requested = {"n": 64, "dtype": "float16"}
    hit = runtime.lookup("scale", requested, tables=folders, device=DEVICE)
    assert hit.table == str(good)
    assert len(caplog.records) == 1
    assert f"using {good}" in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data(), value=json_values)
def test_any_change_is_read_or_refused_but_never_breaks(tmp_path, data, value):
    """A table with any one thing replaced or removed; what is read must also be findable."""
    whole = copy.deepcopy(GOOD)
    place, step = whole, data.draw(st.sampled_from(sorted(whole)))
    while isinstance(place[step], dict | list) and place[step] and data.draw(st.booleans()):
        place = place[step]
        step = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else [0]))
    if data.draw(st.booleans()):
        place[step] = value
    else:
        del place[step]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    refusal, table = "", None
    try:
        table = runtime.read(path)
    except TableError as error:
        refusal = f"{error}"
    assert refusal.isprintable()
    if table is None:
        return
    table.find({"n": 65, "dtype": "float16"})
    for entry in table.entries:
        assert table.find(entry.key).how == "exact"
