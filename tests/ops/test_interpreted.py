"""What operators launch, without a GPU: in the interpreter, which a process has to begin with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "cases",
    [["interpreted", "decomposed", "patched"], ["gradient"]],  # which makes other settings
)
def test_kernels_run_through_their_operators(cases):
    settings = {"TRITON_INTERPRET": "1", "TUNER_DEVICE": "NVIDIA H200", "TUNER_TABLES": ""}
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"{HERE / each}_cases.py" for each in cases)],
        env={**os.environ, **settings, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
