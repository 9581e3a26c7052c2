"""Probes for vector instructions: positive results are kept for the user's later builders."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs probes of x86")

PROBE = """
import sys
from pathlib import Path
from workers.compiling import isa
isa.probe_once(Path(sys.argv[1]))
from torch._inductor.cpu_vec_isa import valid_vec_isa_list
print(len(valid_vec_isa_list()), len(isa.probe_file(Path(sys.argv[1])).read_text()))
"""
#: Compiles an empty program instead of the one it is given, or nothing, and counts its runs.
COMPILER = """#!/bin/sh
case "$*" in *--version*) exec g++ "$@";; esac
echo >> {runs}
test -e {broken} && exit 1
while [ $# -gt 0 ]; do test "$1" = -o && out=$2; shift; done
echo | exec g++ -x c++ -shared -o "$out" -
"""


class Machine:
    """A compiler and a user's cache."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._builders = folder, 0
        self.runs, self.broken = folder / "runs", folder / "broken"
        compiler = folder / "c++"
        compiler.write_text(COMPILER.format(runs=self.runs, broken=self.broken))
        compiler.chmod(0o755)

    def builder(self) -> tuple[int, str]:
        """How often a new builder runs the compiler, and what it finds."""
        self._builders += 1
        self.runs.write_text("")
        # In a new process: one that has imported Inductor has found its instructions.
        done = subprocess.run(
            [sys.executable, "-c", PROBE, f"{self._folder / f'builder-{self._builders}'}"],
            env=os.environ
            | {"CXX": f"{self._folder / 'c++'}", "TUNER_CACHE_DIR": f"{self._folder / 'cache'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return self.runs.read_text().count("\n"), done.stdout.strip()

    def kept(self) -> dict[str, bool]:
        """The results in the user's cache."""
        (file,) = (self._folder / "cache" / "isa").glob("*.json")
        found: dict[str, bool] = json.loads(file.read_text())
        return found


def test_positive_results_are_kept_and_negative_ones_are_probed_again(tmp_path):
    machine = Machine(tmp_path)
    machine.broken.touch()
    runs, _ = machine.builder()
    assert runs > 0
    machine.broken.unlink()
    runs, found = machine.builder()
    assert runs > 0
    assert set(machine.kept().values()) == {True}
    assert machine.builder() == (0, found)
