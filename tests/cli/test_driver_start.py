"""What the driver does before the first build: it loads no torch for a built-in family."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces import registry

ROOT = Path(__file__).parents[2]
#: Runs a campaign over every workload of one kernel on a pool that only takes orders, and prints
#: which builds the driver orders.
FIRST_BUILDS = '''
import json, sys

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

from tuner.campaign import Control, RunOptions, run_campaign
from tuner.settings import validated
from workers import device
from workers.records import WorkerInfo, WorkerReady
from workers import backend_kinds

name, kind, target, folder = sys.argv[1:]
control = Control()

class OrdersOnly:
    builders, runners, warm = 4, 1, False

    def __init__(self):
        self.ordered = []

    def start(self):
        found = device.offline(target) if target else device.found(kind)[0]
        tools = backend_kinds.spec(kind).toolchain()
        self.events = [WorkerReady(WorkerInfo(f"{kind}-0", found, tools))]

    def submit_build(self, job):
        self.ordered.append(job.workload.key)
        control.kill()

    def submit_measure(self, worker_id, job):
        pass

    def poll(self, timeout_s):
        events, self.events = self.events, []
        return events

    def close(self, *, kill=False):
        pass

pool = OrdersOnly()
campaign = {"targets": [kind], "tasks": [{"kernel": name}], "budget": {"trials": 4}}
settings = validated(
    {"database": {"url": f"sqlite:///{folder}/tuner.db"}, "campaigns": {"c": campaign}}, str
)
options = RunOptions(report=False, export=False)
outcome = run_campaign(settings, "c", options=options, control=control, pool=pool)
loaded = [n for n in ("torch", "pandas", "plotly", "ray") if n in sys.modules]
print(json.dumps([outcome.status, outcome.tasks, pool.ordered, loaded]))
'''


def first_builds(name: str, kind: str, target: str, folder: Path) -> list:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_BUILDS, name, kind, target, f"{folder}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_builds_of_a_built_in_family_are_ordered_without_torch(name, tmp_path):
    kernel = registry.load(name)
    kinds = {"cuda": "cuda:90", "hip": "hip:gfx942", "cpu": ""}
    for kind in kernel.kinds:
        folder = tmp_path / kind
        folder.mkdir()
        status, tasks, ordered, loaded = first_builds(name, kind, kinds[kind], folder)
        assert (status, tasks, loaded) == ("interrupted", len(kernel.workloads()), [])
        assert ordered
        assert set(ordered) <= {workload.key for workload in kernel.workloads()}
