"""All that a kernel reaches is part of its identity: every function and constant, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from identity_edits import SILENT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS = "search_spaces.kernels"
FAMILIES = {
    f"{KERNELS}.softmax.kernel:Softmax": "kernels/softmax/kernel kernels/softmax/triton_kernels "
    "kernels/softmax/space kernels/rows kernels/dtypes block_sizes tensors kernel",
    f"{KERNELS}.matmul.kernel:Matmul": "kernels/matmul/kernel kernels/matmul/triton_kernels "
    "kernels/matmul/gluon_kernels kernels/matmul/gluon_launch kernels/matmul/gluon_space "
    "kernels/matmul/space kernels/limits kernels/dtypes dims kernel",
    f"{KERNELS}.attention.kernel:Attention": "kernels/attention/kernel "
    "kernels/attention/triton_kernels kernels/attention/gluon_kernels "
    "kernels/attention/gluon_launch kernels/dtypes",
    f"{KERNELS}.normalization.kernel:LayerNorm": "kernels/normalization/kernel "
    "kernels/normalization/triton_kernels kernels/rows",
    f"{KERNELS}.normalization.kernel:RmsNorm": "kernels/normalization/kernel kernels/rows",
    f"{KERNELS}.cpu_pointwise.kernel:CpuPointwise": "kernels/cpu_pointwise/kernel",
}
if os.environ.get("FAMILIES") == "few":  # the one in Triton and Gluon
    FAMILIES = {spec: names for spec, names in FAMILIES.items() if spec.endswith(":Matmul")}
USERS = {
    "adopted:double": ["helpers.py", "device.py", "checking.py", "adopted.py"],
    "on_cpu:Leaky": ["ops.py", "checking.py", "on_cpu.py"],
}


def edited(folder: Path, files: dict[str, list[str]]) -> dict[str, dict[str, list[list]]]:
    """What every edit of these files changed, by kernel."""
    arguments = [f"{spec}={','.join(names)}" for spec, names in files.items()]
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "identity_edits.py"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for package in ("search_spaces", "tuner"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    files = {
        spec: [f"search_spaces/{name}.py" for name in names.split()]
        for spec, names in FAMILIES.items()
    }
    return edited(folder, files)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users") / "kernels"
    shutil.copytree(HERE / "identity_kernels", folder)
    return edited(folder, USERS)


def assert_seen(report, *, least: int) -> None:
    """Each place counts where it is reached; most count nowhere else."""
    unseen = [edit for edit in report["edits"] if not set(edit[2]) <= set(edit[3])]
    assert not unseen, "reached, but not in the identity"
    assert sum(bool(expected) for _, _, expected, _ in report["edits"]) >= least
    assert all(equal for _, equal in report["cosmetic"]), "comments, docstrings or lines count"


@pytest.mark.parametrize("spec", FAMILIES)
def test_each_place_a_family_reaches_is_in_its_identity(families, spec):
    report = families[spec]
    assert_seen(report, least=10)
    for file, name, _, changed in report["edits"]:
        assert not (name in SILENT and changed), (file, name)


@pytest.mark.parametrize("spec", USERS)
def test_each_place_a_users_kernel_reaches_is_in_its_identity(users, spec):
    report = users[spec]
    assert_seen(report, least=12)
    changed = {(file, name): halves for file, name, _, halves in report["edits"]}
    expected = {
        "adopted:double": {
            ("helpers.py", "FACTOR"): ["launch"],
            ("helpers.py", "_shifted"): ["launch"],
            ("helpers.py", "is_even"): ["launch"],
            ("device.py", "CONFIGS"): [],
            ("adopted.py", "PAD"): ["launch"],
            ("adopted.py", "vector"): ["launch", "check"],
            ("checking.py", "RELATIVE"): ["check"],
        },
        "on_cpu:Leaky": {
            ("ops.py", "SLOPE"): ["launch"],
            ("ops.py", "LIMITS"): ["launch"],
            ("ops.py", "_clipped"): ["launch"],
            ("ops.py", "__call__"): ["launch"],
            ("on_cpu.py", "workloads"): [],
            ("on_cpu.py", "THREADS"): ["launch"],
            ("checking.py", "exact"): ["check"],
        },
    }[spec]
    assert {place: changed[place] for place in expected} == expected
