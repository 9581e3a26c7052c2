"""The commands of the documentation are run as written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
CONFIG = """version: 1
pool: {kind: local, builders: 1}
campaigns:
  c:
    targets: ["cuda:90"]
    budget: {trials: 2}
    tasks:
      - kernel: kernels/scale_add.py:scale_add
"""


def snippet(page: str, word: str) -> str:
    """The first Python block of a page that holds a word."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return next(block for block in blocks if word in block)


@pytest.fixture
def adopted(folder):
    (folder / "kernels").mkdir()
    source = snippet("search_spaces.md", "scale_add_kernel")
    (folder / "kernels" / "scale_add.py").write_text(source)
    (folder / "config.yaml").write_text(CONFIG)


def test_the_adopted_kernel_is_declared_well(tuner, adopted):
    shown = tuner("spaces", "show", "kernels/scale_add.py:scale_add", "--validate")
    assert shown.code == 0, shown.out
    assert "2 workloads are fine" in shown.err


def test_the_adopted_kernel_is_compiled_and_verified_without_a_gpu(tuner, adopted):
    result = tuner("run", "c", "--quiet", "--no-report")
    assert result.code == 0, result.err
    tasks = json.loads(tuner("status", "--format", "json").out)
    assert [(task["trials"], task["failed"]) for task in tasks] == [(2, 0), (2, 0)]


def test_a_parameter_list_and_its_constraint(folder):
    from search_spaces.records import Workload
    from workers.device import offline

    names: dict[str, object] = {}
    exec(snippet("search_spaces.md", "def fits_shared"), names)
    exec(snippet("search_spaces.md", "space = SearchSpace("), names)
    bound = names["space"].bind(Workload.of(M=64), offline("cuda:90"))
    assert 0 < bound.size() < bound.cardinality()
    asked = snippet("search_spaces.md", "bound.why_not")
    (message,) = re.findall(r'why_not.*# "(.*)"', asked)
    assert bound.why_not({"BLOCK_M": 48}) == message
