"""Runs after an edit: which configs are measured again, verified again or reused."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from forked_commands import run_command

from results_db import Store

KERNELS = Path(__file__).parents[1] / "spaces" / "identity_kernels"
CONFIG = """version: 1
pool: {kind: local, builders: 1}
measure: {final_pairs: 8, warm_ms: 1, baselines: []}
campaigns:
  c:
    targets: [TARGET]
    strategy: {name: exhaustive}
    tasks:
      - {kernel: "KERNEL", workloads: [{n: 96}]}
"""


class Folder:
    """A folder with kernels and a campaign of one of them; every command is a new process."""

    def __init__(self, path: Path, kernel: str, target: str) -> None:
        self.path = path
        shutil.copytree(KERNELS, path, dirs_exist_ok=True)
        text = CONFIG.replace("KERNEL", kernel).replace("TARGET", target)
        (path / "config.yaml").write_text(text)

    def tuner(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command([*arguments], self.path)

    def run(self) -> Counter[tuple[str, str]]:
        """Run the campaign and count the run's trials by source and status."""
        done = self.tuner("run", "c", "--no-report")
        assert done.returncode in (0, 1), done.stderr
        print(done.stderr)
        self.nothing_measured = "2 of 2 reused, nothing measured" in done.stderr
        with Store.open(f"sqlite:///{self.path / 'results' / 'tuner.db'}", create=False) as store:
            last = store.last_run()
            assert last is not None, done.stderr
            trials = [t for task in store.tasks(last.run_id) for t in store.trials(task.task_id)]
        return Counter((trial.source, f"{trial.status}") for trial in trials)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.path / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def test_edits_of_a_cpu_kernel(tmp_path):
    folder = Folder(tmp_path, "on_cpu.py:Leaky", "cpu")
    assert folder.run() == {("measured", "correct"): 2}
    assert not folder.nothing_measured
    assert folder.tuner("export", "-o", "tables").returncode == 0
    # Layout changes nothing.
    folder.edit("on_cpu.py", "THREADS = 1", "# One thread.\n\nTHREADS = 1")
    assert folder.run() == {("reused", "correct"): 2}
    assert folder.nothing_measured
    # Other checks are another kernel.
    folder.edit("checking.py", "RELATIVE = 1e-5", "RELATIVE = 1e-4")
    stale = folder.tuner("check", "tables", "--run", "1")
    assert stale.returncode == 1
    assert "a module that it can reach has changed" in stale.stdout
    assert folder.run() == {("measured", "correct"): 2}
    # Other mathematics in an imported module: nothing holds.
    folder.edit("ops.py", "return torch.maximum(x, SLOPE * x)", "return torch.maximum(x, 0.6 * x)")
    stale = folder.tuner("check", "tables", "--run", "1")
    assert stale.returncode == 1
    assert "a module that it can reach has changed" in stale.stdout
    assert folder.run() == {("measured", "correctness"): 2}
    # The mistake was the reference's: its failures are not kept.
    folder.edit("checking.py", "torch.maximum(x, 0.5 * x)", "torch.maximum(x, 0.6 * x)")
    assert folder.run() == {("measured", "correct"): 2}


@pytest.mark.full
def test_an_edited_helper_of_another_module_is_seen(tmp_path):
    """Compiled for a device that is not here, and verified by Triton's interpreter."""
    folder = Folder(tmp_path, "adopted.py:double", "cuda:90")
    assert folder.run() == {("built", "correct"): 2}
    folder.edit("helpers.py", "tl.constexpr(2.0)", "tl.constexpr(3.0)")
    assert folder.run() == {("built", "correctness"): 2}
    # The declaration is in another file than the kernel, and was wrong.
    folder.edit("adopted.py", "2.0 * (t", "3.0 * (t")
    assert folder.run() == {("built", "correct"): 2}
