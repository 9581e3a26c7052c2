"""A table of vLLM from a range of tokens against the one that vLLM ships, at random sizes.

Imports the table that vLLM ships, so that searches begin with its rows, runs the campaign of
vllm_table.yaml, exports its table with and without `--never-worse`, and then compares, at each of
200 numbers of tokens that are drawn by another seed, what vLLM would launch by the exported table
with what it launches by the shipped one: both products of a layer, on our kernel, interleaved and
apart from the product (interleaved.py). A size counts as worse if it is slower beyond its interval
twice, the second time with eight times the pairs. PACKAGE is the folder of vLLM, with its tables at
model_executor/layers/fused_moe/configs. Usage:

    python benchmarks/vllm_table.py --package PACKAGE --out OUT [--sizes 200] [--compared 100]

The script writes OUT/vllm_table.json and, into the same folder, the exported tables.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from interleaved import judged  # noqa: E402
from matmul_tasks import facts  # noqa: E402

from search_spaces import registry  # noqa: E402
from search_spaces.records import Workload  # noqa: E402
from search_spaces.size_range import Range  # noqa: E402
from tuner.integrations import TableKey, adapter  # noqa: E402

CONFIG = ROOT / "benchmarks/vllm_table.yaml"
LAYER = {"experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768, "dtype": "bfloat16"}
MOST, PAIRS, AGAIN = 4096, 16, 128

Rows = Mapping[int, Mapping[str, Any]]


def call(*words: str, folder: Path) -> float:
    """Seconds of a command of tuner that writes into a folder."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words, "--config", str(folder / "config.yaml")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    seconds = time.monotonic() - began
    print(" ".join(words), f"rc {done.returncode}, {seconds:.1f} s")
    print(*done.stdout.splitlines()[-12:], sep="\n", flush=True)
    return round(seconds, 1)


def read_rows(path: Path) -> Rows:
    return {int(k): v for k, v in json.loads(path.read_text()).items() if k.isdigit()}


def nearest(rows: Rows, tokens: int) -> Mapping[str, Any]:
    """vLLM's lookup: the row with the least distance, the first of equal ones."""
    return rows[min(rows, key=lambda size: abs(size - tokens))]


def layer(tokens: int) -> Callable[[Mapping[str, Any]], Callable[[], None]]:
    """What launches both products of a layer by a row of a table."""
    kernel, vllm = registry.load("moe_matmul"), adapter("vllm-moe")
    parts = []
    for gemm in ("gate_up", "down"):
        workload = Workload.from_mapping({"tokens": tokens, "gemm": gemm, **LAYER})
        made = kernel.make_inputs(workload, 7, "cuda")
        spec = kernel.outputs(workload)["out"]
        out = torch.full(spec.shape, math.nan, dtype=torch.bfloat16, device="cuda")
        parts.append((workload, {**made, "out": out}))

    def bind(row: Mapping[str, Any]) -> Callable[[], None]:
        config = vllm.translate_back("moe_matmul", row)
        launches = [
            each
            for workload, tensors in parts
            for each in kernel.launches(workload, config, tensors)
        ]

        def run() -> None:
            for each in launches:
                each.fn[each.grid](*each.args, **each.kwargs)

        return run

    return bind


def judge(ours: Rows, shipped: Rows, sizes: list[int]) -> list[dict[str, Any]]:
    rows = []
    for tokens in sizes:
        mine, theirs = nearest(ours, tokens), nearest(shipped, tokens)
        found: dict[str, Any] = {"tokens": tokens, "speedup": 1.0, "equal": mine == theirs}
        if mine != theirs:
            bind = layer(tokens)
            one, other = bind(theirs), bind(mine)
            for pairs in (PAIRS, AGAIN):
                ratio = judged(one, other, lambda: None, pairs)
                found |= {name: ratio[name] for name in ("speedup", "interval", "pairs")}
                if ratio["interval"][1] >= 1:
                    break
        rows.append(found)
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    speedups = [row["speedup"] for row in rows]
    return {
        "sizes": len(rows),
        "equal launches": sum(row["equal"] for row in rows),
        "geometric mean": math.exp(sum(map(math.log, speedups)) / len(speedups)),
        "least": min(speedups),
        "surely slower": [row["tokens"] for row in rows if row.get("interval", [1, 1])[1] < 1],
        "surely faster": sum(row.get("interval", [1, 1])[0] > 1 for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--compared", type=int, default=100)
    options = parser.parse_args()
    folder = options.out.resolve()
    (folder / "config.yaml").write_text(CONFIG.read_text())
    result: dict[str, Any] = {"toolchain": facts(), "seconds": {}}
    seconds = result["seconds"]
    vllm = adapter("vllm-moe")
    problem = TableKey((("E", LAYER["experts"]), ("N", LAYER["intermediate"])))
    file = vllm.file_name(problem, torch.cuda.get_device_name())
    shipped = options.package / vllm.folder / file
    call("import", str(shipped), folder=folder)
    seconds["campaign"] = call("run", "vllm_table", "--quiet", folder=folder)
    tables = {name: folder / name for name in ("as tuned", "never worse")}
    export = ["export", "--format", "vllm"]
    seconds["export"] = call(*export, "-o", str(tables["as tuned"]), folder=folder)
    guard = ["--never-worse", "--package", str(options.package), "--sizes", str(options.compared)]
    seconds["never worse"] = call(*export, "-o", str(tables["never worse"]), *guard, folder=folder)
    drawn = dict.fromkeys(Range(1, MOST).draw(16 * options.sizes, seed=3))
    sizes = sorted([*drawn][: options.sizes])
    for name, place in tables.items():
        ours, theirs = read_rows(place / file), read_rows(shipped)
        judged_rows = judge(ours, theirs, sizes)
        result[name] = {
            "rows": {"ours": len(ours), "shipped": len(theirs)},
            "table": ours,
            **summarise(judged_rows),
            "judged": judged_rows,
        }
        shown = {k: v for k, v in result[name].items() if k not in ("judged", "table")}
        print(name, json.dumps(shown), flush=True)
        (folder / "vllm_table.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
