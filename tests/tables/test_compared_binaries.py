"""What two revisions launch is compared: `scripts/compare_binaries.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scripts", "search_spaces", "tuner", "workers", "results_db")
FAMILY = "search_spaces/kernels/matmul/triton_kernels.py"


def git(tree, *arguments):
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *author, *arguments], cwd=tree, check=True, capture_output=True)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def change_descriptor_tiles(tree):
    edit(tree / FAMILY, "acc.to(out_desc.dtype)", "(acc + 1.0).to(out_desc.dtype)")


@pytest.fixture
def tree(tmp_path):
    """A repository of the source, with another name of a jitted function in its working tree."""
    root = tmp_path / "repository"
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=skipped)
    git(tmp_path, "init", "-q", root)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "old")
    edit(root / FAMILY, "_descriptor_tile", "_tile_by_descriptors")
    return root


def script(tree, name, *arguments):
    command = [sys.executable, tree / "scripts" / name, *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_variants_of_two_revisions_are_compared(tree):
    few = ("--configs", "0", "--workloads", "1", "HEAD", "matmul")
    equal = script(tree, "compare_binaries.py", *few)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "1 of 1 variants" in equal.stdout

    change_descriptor_tiles(tree)
    changed = script(tree, "compare_binaries.py", *few)
    assert changed.returncode == 1, changed.stderr
    assert "differs" in changed.stdout
