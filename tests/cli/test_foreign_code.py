"""Modules and strategies of others that print, raise, exit or do not return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from installed_plugins import install_plugins

from results_db import Store
from search_spaces.foreign_imports import contain_foreign_code
from search_spaces.recorded.recorded_kernel import synthesize

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
        if len(configs) == 40 and self.asked == 3:
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

#: For these faults, a later run with a correct strategy reuses the results. The other faults stop
#: the run at the same point.
RESUMED = ("raise ValueError('no idea')", "os._exit(0)")


@pytest.fixture
def command(tmp_path):
    synthesize(40, seed=5).save(tmp_path / "space.json")

    def start(*arguments, first="", strategy="random"):
        (tmp_path / "twice.py").write_text(KERNEL.format(first=first))
        (tmp_path / "config.yaml").write_text(
            "version: 1\npool: {kind: local, builders: 1}\n"
            "campaigns: {c: {targets: ['simulated:space.json'], budget: {trials: 6},\n"
            f"  strategy: {{name: {strategy}}}, tasks: [{{kernel: 'recorded:space.json'}}]}}}}\n"
        )
        return subprocess.Popen(
            [sys.executable, "-m", "tuner", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def write_strategy(folder, fault):
    (folder / "own_strategy.py").write_text(STRATEGY.format(fault=fault))


def install_strategy(folder, fault):
    write_strategy(folder, fault)
    install_plugins(folder, "own-search", "tuner.strategies", {"own": "own_strategy:Own"})


def test_what_a_module_prints_at_import_does_not_reach_stdout(command):
    shown = command("spaces", "show", "twice.py:Twice", "-f", "json", first="print('hello')")
    out, err = shown.communicate()
    assert shown.returncode == 0, err
    assert json.loads(out)
    assert "hello" in err


@pytest.mark.parametrize("last", ["import os; os._exit(0)", "raise SystemExit(0)", "exit(0)"])
def test_a_module_that_ends_the_process_at_import_is_named(command, last):
    shown = command("spaces", "show", "twice.py:Twice", first=last)
    _, err = shown.communicate()
    assert shown.returncode == 2
    assert "kernel twice.py:Twice: importing it fails with SystemExit" in err


@pytest.mark.parametrize("fault", ["print('hello')", "raise SystemExit(0)"])
def test_a_function_that_makes_a_kernel_is_contained_too(command, fault):
    first = f"def make():\n    {fault}\n    return Twice()"
    shown = command("spaces", "show", "twice.py:make", "-f", "json", first=first)
    out, err = shown.communicate()
    if "print" in fault:
        assert shown.returncode == 0, err
        assert json.loads(out)
    else:
        assert shown.returncode == 2
        assert "twice.py:make: making it fails with SystemExit: 0 (twice.py:3)" in err


@pytest.mark.parametrize("fault", FAULTS)
def test_a_strategy_at_fault_is_named_and_results_are_kept(command, tmp_path, fault):
    install_strategy(tmp_path, fault)
    run = command("run", "c", "--no-report", strategy="own")
    _, err = run.communicate()
    assert run.returncode == 2, err
    assert f"error: strategy 'own' {FAULTS[fault]}" in err
    assert "own-search" in err
    if fault not in RESUMED:
        return
    write_strategy(tmp_path, "pass")
    again = command("run", "c", "--no-report", strategy="own")
    _, err = again.communicate()
    assert again.returncode == 0, err
    with Store.open(f"sqlite:///{tmp_path / 'results/tuner.db'}", create=False) as store:
        (run,) = store.runs()
        (task,) = store.tasks(run.run_id)
        assert len(store.trials(task.task_id)) == 6


def test_a_strategy_that_does_not_return_is_named_and_can_be_ended(command, tmp_path):
    install_strategy(tmp_path, "time.sleep(3600)")
    run = command("run", "c", "--no-report", strategy="own")
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
