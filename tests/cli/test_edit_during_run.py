"""A kernel's file that is edited while `tuner run` measures it: no result of other code is kept."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from results_db import Store
from search_spaces.errors import SourceChangedError
from search_spaces.registry import load
from search_spaces.source_changes import contents
from tuner.campaign import RunOptions, run_campaign
from tuner.progress import Progress
from tuner.settings import validate
from workers.job_records import KernelRef
from workers.processes.kernel_loading import load_kernel
from workers.processes.machine_faults import MachineFault

KERNELS = Path(__file__).parents[1] / "spaces" / "identity_kernels"
CAMPAIGN = {
    "targets": ["cpu"],
    "strategy": {"name": "exhaustive"},
    "tasks": [{"kernel": "on_cpu.py:Leaky", "workloads": [{"n": 96}]}],
}


@pytest.fixture
def folder(tmp_path, monkeypatch, forgotten_modules):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shutil.copytree(KERNELS, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.py"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    return tmp_path


def edit(file: Path) -> None:
    """Another slope: what the reference does not compute."""
    text = file.read_text()
    assert "SLOPE * x" in text
    file.write_text(text.replace("SLOPE * x", "0.75 * x"))


def run(folder: Path, **options) -> int:
    settings = validate(
        {
            "version": 1,
            "pool": {"kind": "local", "builders": 1},
            "measure": {"final_pairs": 8, "warm_ms": 1, "baselines": []},
            "database": {"url": f"sqlite:///{folder / 'tuner.db'}"},
            "campaigns": {"c": CAMPAIGN},
        },
        lambda _: "the test",
    )
    done = run_campaign(
        settings, "c", options=RunOptions(base=folder, report=False, export=False), **options
    )
    return done.run_id


def begun(folder: Path) -> bool:
    """Whether the run has its record, and so may have results."""
    if not (folder / "tuner.db").exists():
        return False
    with Store.open(f"sqlite:///{folder / 'tuner.db'}") as store:
        return store.last_run() is not None


def stored(folder: Path, run_id: int) -> list[str]:
    with Store.open(f"sqlite:///{folder / 'tuner.db'}") as store:
        return [
            f"{trial.status}"
            for task in store.tasks(run_id)
            for trial in store.trials(task.task_id)
        ]


@pytest.mark.parametrize("when", ["loading", "searching"])
def test_a_run_ends_with_the_name_of_the_edited_file(folder, when):
    edited = []

    def on_progress(progress: Progress) -> None:
        opened = when == "loading" or begun(folder)
        if opened and not edited and "on_cpu" in " ".join(sys.modules):
            edited.append(stored(folder, 1) if when == "searching" else [])
            edit(folder / "ops.py")

    with pytest.raises(SourceChangedError, match=r"^ops\.py changed while it was measured"):
        run(folder, on_progress=on_progress)
    with Store.open(f"sqlite:///{folder / 'tuner.db'}") as store:
        if store.last_run() is not None:
            assert stored(folder, 1) == edited[0]
            assert store.last_run().status == "failed"
            assert "ops.py" in store.last_run().summary["summary"]
    # The same process and a new run: the file is imported again, and nothing is reused.
    assert stored(folder, run(folder)) == ["correctness"] * 2


def test_a_new_child_refuses_other_files_than_the_driver_has_read(folder):
    kernel = load(f"{folder / 'on_cpu.py'}:Leaky", (str(folder),))
    ref = KernelRef(kernel.spec, (str(folder),), contents(kernel))
    assert {Path(file).name for file, _ in ref.sources} == {"on_cpu.py", "ops.py", "checking.py"}
    assert load_kernel(ref).name == kernel.name
    # Times do not count, because a node of a cluster has a copy.
    os.utime(folder / "ops.py")
    assert load_kernel(ref).name == kernel.name
    edit(folder / "ops.py")
    with pytest.raises(MachineFault, match=r"^ops\.py is not the file that the driver has read"):
        load_kernel(ref)
    (folder / "ops.py").unlink()
    assert load_kernel(ref).name == kernel.name, "it may lie elsewhere on this node"
