"""The times of training of operators: every case runs, and its gradients are those of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_case_runs_on_small_tensors(tmp_path):
    script = [sys.executable, "benchmarks/training_operators.py", "--small", "--passes", "1"]
    subprocess.run([*script, "--out", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    found = json.loads((tmp_path / "training_operators.json").read_text())
    assert "linear cross_entropy" in found["cases"]
    for name, case in found["cases"].items():
        assert case["gradients from eager"]["ops"] < 0.02, name
        assert case["device"]["ops"]["us"] > 0
