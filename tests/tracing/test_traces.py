"""Spans of several processes and threads, recorded and joined into one trace file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trace_reader import Trace

from search_spaces.errors import TunerError
from tuner.base import tracing
from tuner.traces import record, timeline_so_far, trace_events
from tuner.traces import timeline as timelines
from workers.processes.fork_server import ForkServer
from workers.processes.supervised_child import ChildDied, SupervisedChild

CHILD = """
import os, signal, time
from tuner.base.tracing import span

class Worker:
    def __init__(self, cache_dir):
        pass
    def work(self):
        with span("outer", "job", way="slow"):
            with span("inner", "timing"):
                time.sleep(0.02)
        return os.getpid()
    def die(self):
        with span("outer", "job"):
            with span("last", "build"):
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_threads_and_arguments(tmp_path):
    path = tmp_path / "trace.json"

    def work() -> None:
        with tracing.span("in the thread", "build"):
            time.sleep(0.01)

    with record(path, "test"), tracing.span("outer", "database", table="trial") as outer:
        thread = threading.Thread(target=work, name="builder-3")
        thread.start()
        thread.join()
        outer.add(rows=3)
    trace = Trace(path)
    (span,) = trace.named("outer", "driver")
    assert span["args"] == {"table": "trial", "rows": 3}
    assert span["cat"] == "database"
    (inner,) = trace.named("in the thread")
    assert trace.threads[inner["pid"], inner["tid"]] == "builder-3"
    assert span["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= span["ts"] + span["dur"]
    (around,) = trace.named("test")
    assert around["cat"] == "run"


def test_an_exception_is_named_and_the_file_written(tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError), record(path, "test"), tracing.span("a", "build"):
        _ = 1 / 0
    assert [span["args"] for span in Trace(path).named("a")] == [{"error": "ZeroDivisionError"}]


def test_supervised_children_are_in_the_trace(tmp_path):
    (tmp_path / "service.py").write_text(CHILD)
    path = tmp_path / "trace.json"
    with record(path, "test"):
        server = ForkServer("runner-7", paths=(f"{tmp_path}",))
        child = SupervisedChild("service:Worker", server=server, own_server=True, name="runner-7")
        pid = child.request("work", timeout_s=60)
        with pytest.raises(ChildDied):
            child.request("die", timeout_s=60)
        child.close()
    trace = Trace(path)
    first, second = trace.named("outer", "runner-7")
    assert first["pid"] == pid
    assert first["args"] == {"way": "slow"}
    (inner,) = trace.named("inner", "runner-7")
    assert first["ts"] <= inner["ts"]
    assert "fork server runner-7" in trace.processes.values()
    # The kill left two spans without an end.
    (last,) = trace.named("last", "runner-7")
    assert second["args"]["killed"] is True
    assert last["args"]["killed"] is True
    assert last["dur"] >= 50_000
    assert trace.named("start of Python", "fork server")


def test_a_child_of_an_older_server_joins_and_leaves_with_the_trace(tmp_path):
    """A session's fork server may be older than the trace; children follow the driver."""
    (tmp_path / "service.py").write_text(CHILD)
    path = tmp_path / "trace.json"

    server = ForkServer("old", paths=(f"{tmp_path}",))
    before = SupervisedChild("service:Worker", server=server, name="before")
    during = SupervisedChild("service:Worker", server=server, name="during")
    after = SupervisedChild("service:Worker", server=server, name="after")
    try:
        before.request("work", timeout_s=60)
        with record(path, "test"):
            during.request("work", timeout_s=60)
        after.request("work", timeout_s=60)
    finally:
        for child in (before, during, after):
            child.close()
        server.close()
    assert set(Trace(path).processes.values()) == {"driver", "during"}


def test_forks_write_files_of_their_own(tmp_path):
    path = tmp_path / "trace.json"
    with record(path, "test"), tracing.span("around the fork", "start"):
        pid = os.fork()
        if pid == 0:
            with tracing.span("in the fork", "job"):
                pass
            os._exit(0)
        os.waitpid(pid, 0)
    trace = Trace(path)
    assert len(trace.named("around the fork")) == 1
    (span,) = trace.named("in the fork")
    assert trace.processes[span["pid"]] == "fork of driver"


def test_nothing_is_recorded_without_a_trace(tmp_path):
    assert tracing.VARIABLE not in os.environ
    assert tracing.span("a", "build") is tracing.span("b", "job")
    with tracing.span("a", "build") as span:
        span.add(rows=1)
    assert timeline_so_far() is None
    with record(None, "test"):
        assert tracing.VARIABLE not in os.environ


def test_the_first_process_shows_its_start(tmp_path):
    program = (
        "from pathlib import Path\nfrom tuner.traces import record\n"
        "with record(Path('trace.json'), 'test'):\n    import sqlite3\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    trace = Trace(tmp_path / "trace.json")
    (start,) = trace.named("start of Python", "driver")
    assert start["ts"] == 0
    assert start["dur"] > 0


@pytest.mark.parametrize("place", [".", "missing/trace.json", "file/trace.json", "/dev/null"])
def test_a_bad_path_is_refused_before_the_work(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(TunerError, match="cannot be written"), record(Path(place), "test"):
        pytest.fail("the work began")
    assert tracing.VARIABLE not in os.environ


def test_a_second_trace_of_the_process_is_refused(tmp_path):
    other = record(tmp_path / "other.json", "test")
    refused = pytest.raises(TunerError, match="records a trace already")
    with record(tmp_path / "trace.json", "test"), refused, other:
        pytest.fail("the work began")
    assert not (tmp_path / "other.json").exists()
    assert Trace(tmp_path / "trace.json").spans


def test_hostile_names_stay_text(tmp_path):
    names = ["</script><b>", 'a"b\\c\n', "\ud800", "\x00\x1b[31m"]
    path = tmp_path / "trace.json"
    with record(path, "test"):
        for name in names:
            with tracing.span(name, "build", config=name):
                pass
    found = [span["name"] for span in Trace(path).spans if span["cat"] == "build"]
    assert found == names


def write_events(folder: Path, pid: int, name: str, *spans: tuple[str, float, float]) -> Path:
    """The file of a process: its name, and spans of its first thread."""
    own = {"pid": pid, "tid": pid, "args": {}}
    found = [own | {"ph": "M", "name": "process_name", "args": {"name": name}}]
    for title, ts, dur in spans:
        found.append(own | {"ph": "X", "cat": "build", "name": title, "ts": ts, "dur": dur})
    number = len(list(folder.iterdir()))
    path = folder / f"{tracing.boot()}-{pid}-{number}.jsonl"
    path.write_text("".join(f"{json.dumps(event)}\n" for event in found))
    return path


def test_a_cut_line_of_a_killed_process_costs_only_itself(tmp_path):
    path = write_events(tmp_path, 7, "builder-0", ("whole", 1.0, 0.5), ("cut", 2.0, 0.5))
    path.write_text(path.read_text()[:-20] + "\n[]\n{}\n")
    (process,) = trace_events.join_files(tmp_path)
    assert [each["name"] for each in process.spans] == ["whole"]


def test_a_process_without_spans_knows_when_another_ended(tmp_path):
    begin = {"ph": "B", "pid": 7, "tid": 7, "id": 0, "cat": "build", "name": "b", "args": {}}
    exited = {"ph": "i", "name": "exit", "pid": 8, "ts": 5.0, "args": {"pid": 7}}
    with write_events(tmp_path, 7, "builder-0").open("a") as file:
        file.write(json.dumps(begin | {"ts": 1.0, "tts": 0.5}) + "\n")
    with write_events(tmp_path, 8, "fork server").open("a") as file:
        file.write(json.dumps(exited) + "\n")
    (process,) = trace_events.join_files(tmp_path)
    (span,) = process.spans
    assert (span["ph"], span["dur"], span["args"]) == ("X", 4.0, {"killed": True})


def test_processes_of_another_machine_are_left_out(tmp_path):
    path = write_events(tmp_path, 7, "x", ("elsewhere", 1.0, 0.5))
    path.rename(tmp_path / "other-7-1.jsonl")
    assert trace_events.join_files(tmp_path) == []


def test_a_long_trace_keeps_its_longest_spans(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_events, "MOST_SPANS", 10)
    write_events(tmp_path, 7, "builder-0", *((f"{i}", float(i), float(i)) for i in range(1, 50)))
    (process,) = trace_events.join_files(tmp_path)
    assert [int(span["name"]) for span in process.spans] == list(range(40, 50))


def test_a_long_run_writes_fewer_short_spans(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "_SPANS_PER_STEP", 100)
    monkeypatch.setattr(tracing, "_FIRST_LIMIT_US", 1.0)
    path = tmp_path / "trace.json"
    with record(path, "test"):
        start = time.monotonic_ns()
        for _ in range(1000):
            tracing.record("short", "build", start, start + 999)
        tracing.record("long", "build", start, start + 1000)
        for _ in range(100):
            tracing.record("of the next step", "build", start, start + 1999)
    trace = Trace(path)
    assert len(trace.named("short")) <= 100
    assert len(trace.named("long")) == 1
    # The limit has doubled once as many again were written.
    assert len(trace.named("of the next step")) <= 100


def test_the_time_line_has_lanes_depths_and_the_longest_spans(monkeypatch):
    def span(tid: int, start_ms: int, end_ms: int, category: str, name: str, **facts: object):
        times = {"ts": start_ms * 1000, "dur": (end_ms - start_ms) * 1000}
        return {"tid": tid, "cat": category, "name": name, "args": facts, **times}

    spans = [
        span(1, 0, 900, "run", "all"),
        span(1, 0, 500, "start", "a"),
        span(1, 10, 400, "start", "b"),
        span(2, 100, 150, "database", "write"),
        span(1, 500, 509, "build", "too short"),
        span(1, 600, 900, "build", "open", killed=True),
        *(span(1, 600 + n, 880 - n, "build", f"{n}") for n in range(1, 6)),
    ]
    process = trace_events.TracedProcess(1, "driver", {1: "MainThread", 2: "writer"}, spans)
    found = timelines.timeline([process])
    assert found["lanes"] == ["driver", "driver: writer"]
    assert found["spans"] == [
        [0, 0.0, 500.0, 0, "start", "a"],
        [0, 10.0, 390.0, 1, "start", "b"],
        [1, 100.0, 50.0, 0, "database", "write"],
        [0, 600.0, 300.0, 0, "build", "open", "killed"],
        [0, 601.0, 278.0, 1, "build", "1"],
        [0, 602.0, 276.0, 2, "build", "2"],
        [0, 603.0, 274.0, 3, "build", "3"],
    ]
    monkeypatch.setattr(timelines, "MOST_SPANS", 2)
    found = timelines.timeline([process])
    assert [row[5] for row in found["spans"]] == ["a", "b"]
    assert found["spans_left_out"] == 5
    assert timelines.timeline([])["spans"] == []


def test_the_second_run_of_a_trace_gets_a_time_line_of_its_own(tmp_path):
    with record(tmp_path / "trace.json", "test"):
        with tracing.span("first", "build"):
            time.sleep(0.02)
        first = timeline_so_far()
        with tracing.span("second", "build"):
            time.sleep(0.02)
        second = timeline_so_far()
    assert [row[5] for row in first["spans"] if row[4] == "build"] == ["first"]
    assert [row[5] for row in second["spans"]] == ["second"]
    assert second["spans"][0][1] == 0.0
    assert len(Trace(tmp_path / "trace.json").named("first")) == 1


def test_processes_of_one_name_have_different_names_in_the_trace(tmp_path):
    lives = {7: (1.0, 9.0), 8: (2.0, 4.0), 9: (10.0, 11.0)}
    for pid, (start, end) in lives.items():
        write_events(tmp_path, pid, "cuda-0", ("race", start, 0.1), ("race", end - 0.1, 0.1))
    names = {process.pid: process.name for process in trace_events.join_files(tmp_path)}
    assert names == {7: "cuda-0", 8: "cuda-0 standby", 9: "cuda-0 (2)"}


def test_a_process_id_that_was_used_twice_has_two_numbers(tmp_path):
    for number in (1, 2):
        write_events(tmp_path, 7, f"builder-{number}", ("b", float(number), 0.1))
    first, second = trace_events.join_files(tmp_path)
    assert first.pid == 7
    assert second.pid != 7


def test_waiting_and_computing_have_different_processor_times(tmp_path):
    path = tmp_path / "trace.json"
    with record(path, "test"):
        with tracing.span("waiting", "waiting"):
            time.sleep(0.3)
        with tracing.span("computing", "build"):
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
    trace = Trace(path)
    (waiting,), (computing,) = trace.named("waiting"), trace.named("computing")
    assert waiting["tdur"] < waiting["dur"] / 2
    assert computing["tdur"] >= 100_000
