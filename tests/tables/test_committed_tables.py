"""Committed and shipped tables are those of today's code; else run `tuner restamp`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces import registry

ROOT = Path(__file__).parents[2]
TABLES = [
    path for name in ("tables", "tuner/tables") for path in sorted((ROOT / name).glob("*.json"))
]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.relative_to(ROOT)}")
def test_a_committed_table_has_the_identity_of_its_kernel(path):
    stored = json.loads(path.read_text())["kernel"]
    kernel = registry.load(stored["name"])
    assert stored["launch_hash"] == kernel.launch_hash()
    assert tuple(stored["kernel_hashes"]) == kernel.kernel_hashes()
