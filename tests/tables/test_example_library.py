"""The example library, as its authors would test it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "kernel_library"


def test_its_own_tests_pass():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TUNER_DEVICE", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_it_is_importable_without_the_farm():
    """Users of the library load the runtime, not the tuner's parts."""
    code = (
        "import sys, kernel_library\n"
        "heavy = {'ray', 'optuna', 'plotly', 'sqlalchemy', 'pydantic', 'search_spaces'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLE}"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_its_campaign_is_one_the_farm_can_plan(monkeypatch):
    """The declaration keeps the contract, and its tables may be looked up by nearness."""
    from search_spaces.records import Device
    from search_spaces.registry import load
    from tuner.runtime import kernel_hash
    from tuner.tables.valid_sizes import valid_sizes

    pytest.importorskip("triton")
    spec = f"{EXAMPLE / 'kernel_library' / 'tuning.py'}:RmsNorm"
    before = set(sys.modules)
    try:
        kernel = load(spec, [str(EXAMPLE)])
        device = Device("cuda", "NVIDIA H200", "cuda:90", sm_count=132, shared_bytes=232_448)
        for workload in kernel.workloads():
            kernel.check_workload(workload)
            default = kernel.default_config(workload, device)
            assert kernel.space(workload).bind(workload, device).feasible(default)
            sizes = valid_sizes(kernel, device, workload.as_dict(), default)
            assert set(sizes) == {"cols", "rows"}
        decorated = sys.modules["kernel_library.rmsnorm"].rms_norm_kernel
        assert kernel.kernel_hashes() == (kernel_hash(decorated),)
    finally:
        for name in set(sys.modules) - before:
            if name.startswith(("kernel_library", "tuner_kernels_")):
                del sys.modules[name]
        sys.path[:] = [path for path in sys.path if path != str(EXAMPLE)]
