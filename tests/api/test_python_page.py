"""The page on the Python API names what exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tuner
from tuner.api.stored_results import failed_result
from tuner.progress import Progress

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_of_attributes_names_attributes_of_a_result():
    result = failed_result("softmax", tuner.Workload.of(rows=1), "nothing ran")
    table = PAGE.partition("## The result")[2].partition("\n\n`result.report")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 15
    for name in names:
        assert name in dir(result) or name in vars(result), name
    fields = {name for name in vars(result) if not name.startswith("_")}
    assert fields <= set(names), "the table is complete"


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_call_what_exists(block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tuner":
            assert hasattr(tuner, node.attr)


def test_the_fields_of_progress_that_the_page_names_exist():
    for name in ("stage", "activity"):
        assert f"`{name}`" in PAGE
        assert hasattr(Progress.of_stage("racing"), name)
