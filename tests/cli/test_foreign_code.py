"""Modules and strategies of others that print, raise, exit or do not return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from cli_samples import replay_campaign
from installed_plugins import install_plugins
from made_up_spaces import synthesize

from results_db import Store
from search_spaces.foreign_imports import contain_foreign_code

KERNEL = """
{first}
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload

class Twice(Kernel):
    name = "twice"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=64)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device):
        import torch
        return {{"x": torch.ones(workload.size("n"), device=device)}}
    def outputs(self, workload): return {{"out": TensorSpec((workload.size("n"),), "float32")}}
    def reference(self, workload, inputs): return {{"out": inputs["x"].double() * 2}}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(1.0, 8.0)
    def space(self, workload):
        return SearchSpace([Choice("way", list(range(6)))], [], kernel=self.name)
    def default_config(self, workload, device): return {{"way": 0}}
    def baselines(self, workload): return {{}}
    def cpu_callable(self, workload, config):
        return lambda inputs: {{"out": inputs["x"] * 2}}
"""
STRATEGY = """
import os, time
class Own:
    name, replays = "own", False
    def __init__(self, space, seed):
        self.space, self.asked = space, 0
    def ask(self, n):
        self.asked += 1
        configs = list(self.space.enumerate())
        if self.asked > len(configs):
            return []
        # The trial of the strategy before a run has a space of another size.
        if len(configs) == 40 and self.asked == 3 and os.path.exists("fault"):
            {fault}
        return [configs[self.asked - 1]]
    def tell(self, config, score, status): pass
"""
FAULTS = {
    "raise ValueError('no idea')": "fails in ask: ValueError: no idea",
    "raise SystemExit(0)": "fails in ask: SystemExit: 0",
    "os._exit(0)": "fails in ask: SystemExit: os._exit(0)",
    "return None": "returns None from ask(1), not a list of configs",
    "return [{'way': 99}]": "suggests {'way': 99}, which is no config of the space",
    "return ['way']": "suggests 'way', which is no config of the space",
}


@pytest.fixture
def show(tuner, folder):
    """Shows the space of a kernel whose file begins with the given lines."""

    def show(first: str, name: str = "Twice"):
        (folder / "twice.py").write_text(KERNEL.format(first=first))
        return tuner("spaces", "show", f"twice.py:{name}", "-f", "json")

    return show


@pytest.fixture
def install(folder, monkeypatch, forgotten_modules):
    """Installs a strategy that has a fault while there is a file `fault`."""
    synthesize(40, seed=5).save(folder / "space.json")
    limits = "budget: {trials: 6}, strategy: {name: own}"
    replay_campaign(folder, "space.json", limits=limits)
    monkeypatch.syspath_prepend(folder)

    def install(fault: str) -> None:
        (folder / "fault").touch()
        (folder / "own_strategy.py").write_text(STRATEGY.format(fault=fault))
        install_plugins(folder, "own-search", "tuner.strategies", {"own": "own_strategy:Own"})

    return install


def test_what_a_module_prints_at_import_does_not_reach_stdout(show):
    shown = show("print('hello')")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)
    assert "hello" in shown.err


@pytest.mark.parametrize("last", ["import os; os._exit(0)", "raise SystemExit(0)", "exit(0)"])
def test_a_module_that_ends_the_process_at_import_is_named(show, last):
    shown = show(last)
    assert shown.code == 2
    assert "kernel twice.py:Twice: importing it fails with SystemExit" in shown.err


@pytest.mark.parametrize("fault", ["print('hello')", "raise SystemExit(0)"])
def test_a_function_that_makes_a_kernel_is_contained_too(show, fault):
    shown = show(f"def make():\n    {fault}\n    return Twice()", "make")
    if "print" in fault:
        assert shown.code == 0, shown.err
        assert json.loads(shown.out)
    else:
        assert shown.code == 2
        assert "twice.py:make: making it fails with SystemExit: 0 (twice.py:3)" in shown.err


@pytest.mark.parametrize("fault", FAULTS)
def test_a_strategy_at_fault_is_named_and_results_are_kept(tuner, folder, url, install, fault):
    install(fault)
    run = tuner("run", "c", "--no-report")
    assert run.code == 2, run.err
    assert f"strategy 'own' {FAULTS[fault]}" in run.error
    assert "own-search" in run.hint
    (folder / "fault").unlink()
    again = tuner("run", "c", "--no-report")
    assert again.code == 0, again.err
    with Store.open(url, create=False) as store:
        (run,) = store.runs()
        (task,) = store.tasks(run.run_id)
        assert len(store.trials(task.task_id)) == 6


#: A command that is soon out of patience.
IMPATIENT = """
from tuner.cli import main, stop_signals
from tuner.strategies import guarded
stop_signals.PATIENCE_S = guarded.SLOW_S = 0.5
main()
"""


def test_a_strategy_that_does_not_return_is_named_and_can_be_ended(folder, install):
    install("time.sleep(3600)")
    run = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "run", "c", "--no-report"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([f"{folder}", *filter(None, sys.path)])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    try:
        said = next(line for line in run.stderr if "strategy 'own' has not returned" in line)
        assert "from ask for" in said
        # Its code has the driver, which does not see that the run is to stop. A second signal that
        # comes before the first was handled would be the same one.
        run.send_signal(signal.SIGINT)
        assert any("once more to stop at once" in line for line in run.stderr)
        run.send_signal(signal.SIGINT)
        assert any("interrupting what it waits for" in line for line in run.stderr)
        assert run.wait() == 130
    finally:
        run.kill()


def test_contexts_of_several_threads_overlap_in_any_order(capsys):
    """A context belongs to its thread; whichever ends last restores what was there."""
    stdout, leave = sys.stdout, os._exit
    opened, end = threading.Event(), threading.Event()

    def first():
        with contain_foreign_code():
            print("first")
            opened.set()
            end.wait()

    thread = threading.Thread(target=first)
    thread.start()
    opened.wait()
    print("outside")
    with contain_foreign_code():
        print("second")
        with contain_foreign_code():
            print("nested")
        end.set()
        thread.join()
        print("last")
        with pytest.raises(SystemExit):
            os._exit(0)
    assert (sys.stdout, os._exit) == (stdout, leave)
    assert capsys.readouterr() == ("outside\n", "first\nsecond\nnested\nlast\n")


def test_a_forked_child_may_exit(capfd):
    with contain_foreign_code():
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
