"""The page on operators: its examples run, and its table names all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tuner import ops

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ops.md").read_text()


def test_the_examples_run(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "add_rms_norm" in done.stdout
    assert "torch.Size([3, 4])" in done.stdout


def test_the_table_names_every_operator():
    table = PAGE.partition("## The operators")[2].partition("## What runs")[0]
    named = {name for row in table.splitlines() if row.startswith("| `")
             for name in re.findall(r"`(\w+)`", row.split("|")[1])}  # fmt: skip
    operators = {name for name in ops.__all__ if name.islower()} - {"report", "warm"}
    assert named == operators


def test_blocks_on_operators_are_those_on_torch():
    code = """
import torch
from blocks import OPS, TORCH, DitBlock, LlamaBlock

torch.manual_seed(0)
x, angles, condition = torch.randn(2, 5, 64), torch.rand(10, 8), torch.randn(2, 64)
cases = [
    (LlamaBlock, {"dim": 64, "heads": 4, "kv_heads": 2, "inner": 96}, (angles.cos(), angles.sin())),
    (DitBlock, {"dim": 64, "heads": 4}, (condition,)),
]
for block, sizes, rest in cases:
    ours, plain = block(OPS, **sizes), block(TORCH, **sizes)
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x, *rest), plain(x, *rest))
print("equal")
"""
    folder = ROOT / "examples" / "operators"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr
