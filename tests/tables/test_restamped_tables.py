"""Entries of a table pass to rearranged code that compiles to the binaries they were timed with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scripts", "search_spaces", "tuner", "workers", "results_db")
TABLE = next((ROOT / "tuner/tables").glob("matmul@NVIDIA_H200*.json"))
FAMILY = "search_spaces/kernels/matmul/triton_kernels.py"
#: Timed with pointers, and with the default of pointers.
ODD = {"K": 997, "M": 1000, "N": 1003, "dtype": "float16"}


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


@pytest.fixture
def table(tmp_path):
    """Two entries: the odd shape, and one whose config loads by descriptors."""
    document = json.loads(TABLE.read_text())
    by_descriptor = [
        entry for entry in document["entries"] if entry["config"].get("loads") == "descriptor"
    ]
    odd = [entry for entry in document["entries"] if entry["key"] == ODD]
    document["entries"] = odd[:1] + by_descriptor[:1]
    assert len(document["entries"]) == 2
    path = tmp_path / TABLE.name
    path.write_text(json.dumps(document))
    return path


def script(tree, name, *arguments):
    command = [sys.executable, tree / "scripts" / name, *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def keys(table):
    return [entry["key"] for entry in json.loads(table.read_text())["entries"]]


def test_equal_binaries_pass_and_others_leave_the_table(tree, table):
    before = table.read_text()
    refused = script(tree, "restamp_tables.py", "HEAD", table)
    assert refused.returncode == 1, refused.stderr
    assert "device code" in refused.stdout
    assert table.read_text() == before

    both = keys(table)
    moved = script(tree, "restamp_tables.py", "--changed-code", "HEAD", table)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert keys(table) == both
    stamped = json.loads(table.read_text())["kernel"]["kernel_hashes"]
    assert stamped != json.loads(before)["kernel"]["kernel_hashes"]

    change_descriptor_tiles(tree)
    table.write_text(before)
    part = script(tree, "restamp_tables.py", "--changed-code", "HEAD", table)
    assert part.returncode == 1, part.stderr
    assert keys(table) == [ODD]
    assert "left out" in part.stdout
    assert json.loads(table.read_text())["kernel"]["kernel_hashes"] != stamped


@pytest.mark.full  # compared as above, by another script
def test_variants_of_two_revisions_are_compared(tree):
    few = ("--configs", "0", "--workloads", "1", "HEAD", "matmul")
    equal = script(tree, "compare_binaries.py", *few)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "1 of 1 variants" in equal.stdout

    change_descriptor_tiles(tree)
    changed = script(tree, "compare_binaries.py", *few)
    assert changed.returncode == 1, changed.stderr
    assert "differs" in changed.stdout
