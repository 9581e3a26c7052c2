"""Kinds of calls: of a scope, of a process that missed entries, and their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, read_calls, write_calls
from tuner.ops.call_counts import MOST_FILES, rotate

HERE = Path(__file__).parent
SERVICE = """
import torch
from tuner import ops
x = torch.randn(4, 32)
for _ in range(3):
    ops.softmax(x)
for operator in ops.operator.OPERATORS.values():
    operator.forget()
ops.softmax(x)
ops.operator.BEFORE_FORGETTING[-1].__self__.write()
with torch.no_grad():
    ops.rms_norm(torch.randn(2, 64), (64,), torch.ones(64), 1e-5)
ops.softmax(torch.randn(4, 32, dtype=torch.float64))
"""
VALUES = st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.text(max_size=5))
CALLS = st.builds(
    ModelCall,
    st.text(min_size=1, max_size=5),
    st.dictionaries(st.text(min_size=1, max_size=5), VALUES, min_size=1, max_size=3),
    st.integers(1, 2**40),
    st.none() | st.floats(0, 1),
)


@given(calls=st.lists(CALLS, max_size=6, unique_by=lambda each: (each.kernel, each.workload)))
def test_what_is_written_is_read(calls, tmp_path_factory):
    path = write_calls(tmp_path_factory.mktemp("calls") / "calls.json", calls)
    found = read_calls(path)
    assert sorted(found, key=repr) == sorted(calls, key=repr)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "tuner-calls/2", "calls": []}',
     '{"schema": "tuner-calls/1", "calls": [1]}', '{"schema": "tuner-calls/1", "calls": {}}',
     *(json.dumps({"schema": "tuner-calls/1", "calls": [{
         "kernel": "k", "dims": {"n": 1}, "count": 1, "share": None, **wrong}]})
       for wrong in ({"count": 0}, {"count": True}, {"dims": {"n": [1]}}, {"dims": {}},
                     {"share": 2}, {"kernel": 3}, {"more": 1}))],
)  # fmt: skip
def test_another_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(TunerError, match="no file of calls") as caught:
        read_calls(path)
    assert "\n" not in caught.value.message


def test_a_process_writes_what_no_entry_served(tmp_path):
    for _ in range(2):
        environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_RECORD": f"{tmp_path}"}
        environment["TUNER_DEVICE"] = "NVIDIA Test"
        subprocess.run([sys.executable, "-c", SERVICE], env=environment, check=True)
    assert len([*tmp_path.iterdir()]) == 2
    found = {call.kernel: call for call in read_calls(tmp_path)}
    assert found["softmax"].dims == {"rows": 4, "cols": 32, "dtype": "float32"}
    assert {name: call.count for name, call in found.items()} == {"softmax": 8, "rms_norm": 2}


def test_the_oldest_records_are_deleted(tmp_path):
    for at in range(MOST_FILES + 3):
        (path := tmp_path / f"calls-{at}.json").write_text("")
        os.utime(path, (at, at))
    (tmp_path / "own.json").write_text("")
    rotate(tmp_path)
    kept = {each.name for each in tmp_path.iterdir()}
    assert kept == {"own.json", *(f"calls-{at}.json" for at in range(3, MOST_FILES + 3))}
