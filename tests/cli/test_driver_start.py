"""What the driver does before the first build.

It loads no torch for a built-in family, nor for a kernel whose file imports none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces import registry

ROOT = Path(__file__).parents[2]
#: Runs a campaign over a workload of each kernel on a pool that only takes orders, and prints
#: which builds the driver orders, or what it raises.
FIRST_BUILDS = '''
import json, sys, traceback

from importlib.machinery import PathFinder

class NoTorch:
    """Finds torch, whose version is read from its files, and does not import it."""

    def find_spec(self, name, path=None, target=None):
        found = PathFinder.find_spec(name, path) if name == "torch" else None
        if found is not None:
            found.loader = self
        return found

    def create_module(self, spec):
        raise ImportError("torch is imported before the first build")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, NoTorch())

from search_spaces import registry
from tuner.campaign import Control, RunOptions, run_campaign
from tuner.settings import validate
from workers import device
from workers.job_records import WorkerInfo, WorkerReady
from workers import backend_kinds
from workers.roles import Pool

kind, target, folder, *names = sys.argv[1:]

class OrdersOnly(Pool):
    builders, runners, warm = 4, 1, False

    def __init__(self, control):
        self.control, self.ordered = control, []

    def start(self):
        found = device.offline(target) if target else device.find_devices(kind)[0]
        tools = backend_kinds.spec(kind).toolchain()
        self.events = [WorkerReady(WorkerInfo(f"{kind}-0", found, tools))]

    def submit_build(self, job):
        self.ordered.append(job.workload.key)
        self.control.kill()

    def submit_measure(self, worker_id, job):
        pass

    def poll(self, timeout_s):
        events, self.events = self.events, []
        return events

    def close(self, *, kill=False):
        pass

def order(name):
    control = Control()
    pool = OrdersOnly(control)
    workloads = [each.as_dict() for each in registry.load(name).workloads()[:1]]
    task = {"kernel": name, "workloads": workloads}
    campaign = {"targets": [kind], "tasks": [task], "budget": {"trials": 4}}
    settings = validate(
        {"database": {"url": f"sqlite:///{folder}/tuner.db"}, "campaigns": {name: campaign}}, str
    )
    options = RunOptions(report=False, export=False)
    outcome = run_campaign(settings, name, options=options, control=control, pool=pool)
    return [outcome.status, outcome.tasks, pool.ordered]

found = {}
for name in names:
    try:
        found[name] = order(name)
    except Exception:
        found[name] = traceback.format_exc()
    found[name] = found[name], [n for n in ("torch", "pandas", "plotly", "ray") if n in sys.modules]
print(json.dumps(found))
'''


def first_builds(kind: str, folder: Path, names: list[str]) -> dict[str, list]:
    """What is ordered first for each kernel of a kind, and what is loaded by then; one process."""
    target = {"cuda": "cuda:90", "hip": "hip:gfx942", "cpu": ""}[kind]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_BUILDS, kind, target, f"{folder}", *names],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["cuda", pytest.param("hip", marks=pytest.mark.full), "cpu"])
def test_builds_of_built_in_families_are_ordered_without_torch(kind, tmp_path, in_turn):
    names = in_turn([name for name in registry.BUILT_IN if kind in registry.load(name).kinds])
    found = first_builds(kind, tmp_path, names)
    assert found.keys() == {*names}
    for name, (outcome, loaded) in found.items():
        kernel = registry.load(name)
        assert loaded == [], name
        assert isinstance(outcome, list), outcome
        status, tasks, ordered = outcome
        assert (status, tasks) == ("interrupted", 1), name
        assert ordered
        assert set(ordered) <= {workload.key for workload in kernel.workloads()}


#: A kernel of a file that imports no torch, and its run by a pool of processes.
NARROWED = """
from search_spaces.kernels.softmax.kernel import Softmax

class Narrowed(Softmax):
    name = "narrowed"
"""
WRONG = """
    def reference(self, workload, inputs):
        return {name: found[1:] for name, found in super().reference(workload, inputs).items()}
"""
ONE_TRIAL = """
import sys, tuner

if __name__ == "__main__":
    workload = {"rows": 64, "cols": 64, "dtype": "float32"}
    pool = {"pool": {"builders": 1}}
    try:
        tuned = tuner.tune(
            "narrowed.py:Narrowed", workload, budget=1, target="cuda:90", settings=pool,
            database="sqlite:///here.db",
        )
        print(len(tuned.trials))
    except tuner.TunerError as error:
        print(error.message)
    print("torch" in sys.modules)
"""


def tuned_in(folder: Path, kernel: str) -> list[str]:
    """What a script prints that tunes the kernel in a new process."""
    (folder / "narrowed.py").write_text(kernel)
    (folder / "script.py").write_text(ONE_TRIAL)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_whose_file_imports_no_torch_is_tuned_without_torch(tmp_path):
    assert tuned_in(tmp_path, NARROWED) == ["1", "False"]


def test_its_mistakes_are_found_without_torch_before_anything_is_stored(tmp_path):
    message, torch = tuned_in(tmp_path, NARROWED + WRONG)
    assert message.startswith("kernel narrowed: reference() for 'rows=")
    assert "outputs() declares" in message
    assert torch == "False"
    assert not (tmp_path / "here.db").exists()
