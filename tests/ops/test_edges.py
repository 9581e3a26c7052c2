"""Random calls at the edges of dtypes and shapes are those of torch, on torch and on kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from edge_samples import Sampler, difference
from operator_cases import CASES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("name", CASES)
def test_calls_at_the_edges_are_those_of_torch(name):
    for seed in range(40):
        assert difference(CASES[name].edges(Sampler(seed))) == "", f"seed {seed}"


def test_kernels_at_the_edges_are_torch(tmp_path):
    """In the interpreter, which a process has to begin with."""
    script = [sys.executable, "benchmarks/operator_edges.py", "--calls", "220", "--kernels"]
    done = subprocess.run(
        [*script, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "TUNER_DEVICE": "NVIDIA H200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads((tmp_path / "operator_edges.json").read_text())
    assert found["operators"]["softmax"]["kernels"]
