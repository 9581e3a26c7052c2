"""Sessions: warm workers for several calls, edits of kernels, threads, interrupts, the end.

What does not look at processes replays a recording in virtual time; `make test-all` also repeats it
on a local pool.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from api_kernels import KERNEL, SETTINGS
from made_up_spaces import synthesize
from processes import below, parents, wait_until

import tuner
from tuner.progress import Progress

ROOT = Path(__file__).parents[2]
QUICK = {"pool": {"builders": 1}, "measure": {"warm_ms": 0}}


@pytest.fixture
def simulated(recorded):
    """Arguments of `Session.tune` for a recorded space."""
    return {"kernel": recorded["kernel"], "workload": recorded["workload"], "budget": 10}


@pytest.fixture(params=["virtual", pytest.param("local", marks=pytest.mark.full)])
def session(request, simulated):
    """A session of each pool."""
    with tuner.session(settings=QUICK, pool=request.param) as opened:
        yield opened


def children() -> set[int]:
    return set(below(os.getpid()))


def test_a_second_call_uses_the_same_processes(simulated):
    before = children()
    with tuner.session(settings=QUICK) as session:
        first = session.tune(**simulated)
        workers = children() - before
        second = session.tune(**simulated, seed=1, fresh=True)
        # A reaper and the standby below it were replaced after the confirmation.
        assert len(workers & children()) >= len(workers) - 2 > 2
    wait_until(lambda: not children() - before)
    assert (len(first.trials), len(second.trials)) == (10, 10)
    assert set(second.trials["source"]) == {"measured"}
    with pytest.raises(tuner.TunerError, match="session is closed"):
        session.tune(**simulated)
    session.close()


def test_results_of_earlier_calls_are_reused_and_fresh_measures_again(simulated, session):
    assert set(session.tune(**simulated).trials["source"]) == {"measured"}
    assert set(session.tune(**simulated).trials["source"]) == {"reused"}
    assert set(session.tune(**simulated, fresh=True).trials["source"]) == {"measured"}


def test_calls_of_several_threads_are_served_one_after_the_other(simulated, session):
    found: dict[int, tuner.TuneResult] = {}
    at_work: list[int] = []

    def call(seed: int) -> None:
        def check(_: object) -> None:
            at_work.append(seed)

        found[seed] = session.tune(**simulated, seed=seed, fresh=True, on_progress=check)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2]
    assert all(len(each.trials) == 10 for each in found.values())
    switches = sum(a != b for a, b in itertools.pairwise(at_work))
    assert switches == 2, "no call worked while another one did"


@pytest.mark.parametrize("way", ["tune", "close"])
def test_a_callback_that_calls_its_session_is_refused(simulated, session, way):
    def again(_: object) -> None:
        session.tune(**simulated) if way == "tune" else session.close()

    with pytest.raises(tuner.TunerError, match="calls its own session"):
        session.tune(**simulated, on_progress=again)
    assert len(session.tune(**simulated).trials) == 10


def test_an_interrupt_leaves_the_session_usable(simulated):
    before = children()

    def interrupt(progress: Progress) -> None:
        if progress.tasks_total:  # the workers are at work
            raise KeyboardInterrupt

    with tuner.session(settings=QUICK) as session:
        with pytest.raises(KeyboardInterrupt):
            session.tune(**simulated, on_progress=interrupt)
        resumed = session.tune(**simulated)
        assert len(resumed.trials) == 10
        assert resumed.run_id == 1, "the interrupted run"
    wait_until(lambda: not children() - before)


def test_a_failed_call_leaves_the_session_usable(simulated, session):
    with pytest.raises(tuner.TunerError, match="unknown strategy"):
        session.tune(**simulated, strategy="absent")
    with pytest.raises(tuner.TunerError, match="there is no file"):
        session.tune("absent.py:Kernel", {"n": 1})
    assert len(session.tune(**simulated).trials) == 10


def test_killed_workers_are_replaced(simulated):
    before = children()
    with tuner.session(settings=QUICK) as session:
        session.tune(**simulated)
        for pid in children() - before:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended with another one
                continue
        found = session.tune(**simulated, seed=1, fresh=True)
    assert len(found.trials) == 10
    assert found.ships


def test_a_session_without_close_ends_its_workers_when_it_is_collected(simulated, scratch):
    before = children()
    session = tuner.session(settings=QUICK)
    found = session.tune(**simulated)
    assert children() - before
    del session
    gc.collect()
    wait_until(lambda: not children() - before)
    assert len(found.trials) == 10, "the result keeps the database"
    del found
    gc.collect()
    wait_until(lambda: not list(scratch.iterdir()))


def test_a_recording_that_changed_is_read_again(simulated, session, folder):
    first = session.tune(**simulated)
    synthesize(60, seed=6).save(folder / "space.json")
    second = session.tune(**simulated)
    assert "reused" not in set(second.trials["source"])
    assert first.median_us != second.median_us


@pytest.mark.full
def test_a_recording_that_changed_is_read_by_new_workers(simulated, folder):
    before = children()
    with tuner.session(settings=QUICK) as session:
        session.tune(**simulated)
        old = children() - before
        synthesize(60, seed=6).save(folder / "space.json")
        session.tune(**simulated)
        servers = {pid for pid, parent in parents().items() if parent == os.getpid()} - before
        assert old & children() == servers, "the fork servers stay, all workers are new"
    wait_until(lambda: not children() - before)


SCRIPT = """
import tuner

if __name__ == "__main__":
    space = tuner.RecordedSpace.load("space.json")
    session = tuner.session(settings={settings})
    found = session.tune("recorded:space.json", space.workload, budget=10)
    print(found.verdict, len(found.trials))
"""


def test_a_script_that_forgets_its_session_leaves_no_process_and_no_file(tmp_path):
    place = tmp_path / "scratch"
    place.mkdir()
    synthesize(60, seed=5).save(tmp_path / "space.json")
    (tmp_path / "script.py").write_text(SCRIPT.format(settings=QUICK))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)},
        capture_output=True,  # returns when no process holds the pipes
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "10"
    assert not done.stderr
    wait_until(lambda: not list(place.iterdir()))


# -- edits -----------------------------------------------------------------------------------------
HELPED = KERNEL.replace("FACTOR = 2.0", "from scale_helper import FACTOR")


@pytest.mark.slow
@pytest.mark.parametrize(
    "edited", [pytest.param("scale.py", marks=pytest.mark.full), "scale_helper.py"]
)
def test_an_edited_kernel_is_never_measured_with_old_code(folder, edited, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "scale_helper.py").write_text("FACTOR = 2.0\n")
    (folder / "scale.py").write_text(HELPED if edited == "scale_helper.py" else KERNEL)
    before, file = set(sys.modules), folder / edited
    try:
        with tuner.session(settings=SETTINGS) as session:
            arguments = {"kernel": "scale.py:Scale", "workload": {"n": 3000}, "strategy": "grid"}
            right = session.tune(**arguments)
            assert right.ships == {"way": "plain"}
            assert list(right.trials["status"]) == ["correct"] * 2
            # A wrong factor: of the same size, within a second perhaps.
            file.write_text(file.read_text().replace("FACTOR = 2.0", "FACTOR = 3.0"))
            wrong = session.tune(**arguments)
            assert list(wrong.trials["status"]) == ["correctness"] * 2
            assert set(wrong.trials["source"]) == {"measured"}
            assert "none of 2 variants is correct" in wrong.note
    finally:
        for name in sys.modules.keys() - before:
            if "scale" in name:
                del sys.modules[name]


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_is_stored_after_a_file_has_changed_during_the_call(simulated, folder, interrupted):
    url = f"sqlite:///{folder / 'mine.db'}"
    stored: list[int] = []

    def trials(run_id: int) -> int:
        with tuner.Store.open(url) as store:
            return sum(len(store.trials(task.task_id)) for task in store.tasks(run_id))

    def edit(progress: Progress) -> None:
        if progress.done and not stored:
            os.utime(folder / "space.json", (time.time() + 5, time.time() + 5))
            stored.append(trials(2))
            if interrupted:
                raise KeyboardInterrupt

    with tuner.session(settings=QUICK, database=url, pool="virtual") as session:
        session.tune(**simulated, seed=1)
        error = KeyboardInterrupt if interrupted else tuner.TunerError
        match = None if interrupted else "space.json changed while it was measured"
        with pytest.raises(error, match=match):
            session.tune(**{**simulated, "budget": 40}, fresh=True, on_progress=edit)
        assert (trials(1), trials(2)) == (10, *stored)
        with tuner.Store.open(url) as store:
            assert store.tasks(1)[0].selection is not None
            assert store.tasks(2)[0].selection is None
        assert len(session.tune(**simulated, seed=2).trials) == 10
