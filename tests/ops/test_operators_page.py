"""The page on operators: its examples run, and its table names all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean

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
    operators = set(ops.__all__) - {
        "numerics",
        "patch",
        "prefer_tuned",
        "replaced",
        "report",
        "unpatch",
        "warm",
    }
    assert named == operators


def rows_of(text):
    """The cells of a table's rows, without quotes."""
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip("` ") for cell in row] for row in rows[1:]]


def rows_of_workloads(found):
    """Kernel, workloads, and geometric mean and least of the ratios that were timed."""
    for name in sorted({row["kernel"] for row in found["workloads"]}):
        rows = [row for row in found["workloads"] if row["kernel"] == name]
        ratios = [row["over"] for row in rows if "over" in row]
        yield [name, f"{len(rows)}", f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x"]


def test_the_figures_are_those_of_the_file():
    place = "benchmarks/results/h100/ops_workloads.json"
    block = PAGE.partition(f"<!-- figures: {place} -->")[2].partition("<!-- end of figures -->")[0]
    known = list(rows_of_workloads(json.loads((ROOT / place).read_text())))
    assert (rows := rows_of(block))
    assert [row for row in rows if row not in known] == []


def test_the_figures_of_the_cards_are_those_of_their_tables():
    names = "over the fastest but compile", "over all"
    for card in ("H100", "H200"):
        file = ROOT / "benchmarks/results" / card.lower() / "ops_tables.json"
        but, over_all = (json.loads(file.read_text())[name] for name in names)
        means = (f"{each['geometric mean']:.2f}x" for each in (but, over_all))
        share, least = f"{over_all['at least 0.99']:.0%}".replace("%", " %"), over_all["least"]
        row = [card, f"{over_all['workloads']}", *means, share, f"{least:.2f}x"]
        assert f"| {' | '.join(row)} |" in PAGE


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
