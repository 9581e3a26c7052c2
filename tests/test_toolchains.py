"""Constraints of all supported pairs of torch and Triton, and the versions in the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from search_spaces import triton_versions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, f"{ROOT / 'scripts'}")

import refresh_constraints  # noqa: E402


@pytest.mark.parametrize("name", sorted(refresh_constraints.PAIRS))
def test_constraints_differ_in_the_pair_alone(name):
    path = refresh_constraints.PAIRS[name]
    pair = refresh_constraints.pair_of(path)
    assert sorted(pair) == ["torch", "triton"]
    fresh = refresh_constraints.text_with(pair)
    assert path.read_text() == fresh, "run scripts/refresh_constraints.py"


def test_the_pairs_are_the_versions_that_the_code_names():
    of = {
        name: refresh_constraints.pair_of(path) for name, path in refresh_constraints.PAIRS.items()
    }
    assert of["oldest"]["triton"].startswith(triton_versions.format_version(triton_versions.OLDEST))
    assert of["newest"]["triton"].startswith(triton_versions.format_version(triton_versions.NEWEST))
    bounds = (ROOT / "pyproject.toml").read_text()
    least = re.search(r'"triton>=([\d.]+)', bounds)
    assert least is not None
    assert least[1] == triton_versions.format_version(triton_versions.OLDEST)
    assert of["oldest"]["torch"].startswith(re.search(r'"torch>=([\d.]+)', bounds)[1])


def test_the_documented_pairs_are_those_of_the_constraints():
    page = (ROOT / "docs" / "installation.md").read_text()
    files = ROOT.glob("constraints*.txt")
    pairs = {path.name: refresh_constraints.pair_of(path) for path in files}
    rows = re.findall(r"^\| \w+ \| ([\d.]+) \| ([\d.]+) \| `(.+)` \|$", page, re.MULTILINE)
    assert {name: {"triton": triton, "torch": torch} for triton, torch, name in rows} == pairs
    versions = [pair["triton"].split(".") for pair in pairs.values()]
    least, most = (".".join(found(versions)[:2]) for found in (min, max))
    assert f"Every Triton from {least} to {most} is supported" in page
    # The table of results has one of these Tritons in each row, with the pinned torch.
    ran = re.findall(r"Triton ([\d.]+), torch ([\d.]+)", page)
    assert {triton for triton, _ in ran} <= {pair["triton"] for pair in pairs.values()}
    assert {torch for _, torch in ran} == {pairs["constraints.txt"]["torch"]}
