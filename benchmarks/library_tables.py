"""A table for vLLM's fused MoE kernel, tuned on that kernel, judged row by row.

The rows of a problem are tuned together. A row that is not faster than today's beyond its interval
becomes today's. Then vLLM's own lookup code loads the written file, and each row that it takes is
compared, interleaved, with the row of the table that vLLM ships, or with its default config where
it ships none. `--between` sizes between the keys are compared in the same
way, and rows are added where one is slower. Usage:

    python benchmarks/library_tables.py --out OUT [--problem qwen3-30b] [--rows 1 16 ...]

Writes OUT/library_tables_PROBLEM.json and the table in OUT/vllm. The package `vllm` may lie
anywhere on Python's import path; of it, fused_moe.py and its folder configs are read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = str(ROOT / "benchmarks")
sys.path[:0] = [str(ROOT), FOLDER]

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
WRITTEN = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps",
           "num_stages")  # fmt: skip


class Problem(NamedTuple):
    experts: int
    top_k: int
    hidden: int
    inner: int


PROBLEMS = {
    "qwen3-30b": Problem(128, 8, 2048, 768),
    # Without a table for an H200.
    "glm-4.5-air": Problem(128, 8, 4096, 1408),
    "deepseek-v2-lite": Problem(64, 6, 2048, 1408),
}


def workload_of(problem: Problem, tokens: int) -> Any:
    from vllm_layer import layer

    return layer(tokens, problem.experts, problem.top_k, problem.hidden, problem.inner)


def tuned(
    problem: Problem, rows: Sequence[int], budgets: Sequence[Any], folder: Path
) -> tuple[dict[int, Any], dict]:
    """The winners by tokens, and how the calls went.

    Each budget is a call. A later call takes over the results of the earlier ones, and begins with
    the winners of neighbouring rows.
    """
    import tuner

    started = time.monotonic()
    workloads = [workload_of(problem, tokens) for tokens in rows]
    folder.mkdir(parents=True, exist_ok=True)
    database = f"sqlite:///{folder / 'library_tables.db'}"
    for budget in budgets:
        results = tuner.tune(
            f"{FOLDER}/vllm_layer.py:kernel", workloads, budget=budget, database=database
        )
    wall_s = time.monotonic() - started
    found, facts = {}, {}
    for tokens, result in zip(rows, results, strict=True):
        facts[tokens] = {
            "ships": None if result.ships is None else dict(result.ships),
            "verdict": result.verdict,
            "note": result.note,
            "kept_because": result.kept_because,
            "speedup_by_farm": result.speedup,
            "stage_s": dict(result.stage_s),
            "statuses": result.trials["status"].astype(str).value_counts().to_dict(),
            "messages": sorted({m.splitlines()[0] for m in result.trials["message"] if m})[:3],
            "device": dict(result.device_facts),
        }
        if result.ships is not None:
            found[tokens] = {name: result.ships[name] for name in WRITTEN}
    return found, {"wall_s": wall_s, "by_row": facts}


class Judge:
    """Compares configs at a size, on the library's kernel."""

    def __init__(self, problem: Problem, pairs: int) -> None:
        self._problem, self._pairs = problem, pairs
        self._tensors: tuple[int, dict[str, Any]] = (0, {})

    def __call__(self, tokens: int, own: Any, other: Any) -> dict[str, Any]:
        """Times and the ratio of own over other; configs that launch the same are equal."""
        from interleaved import judged

        own, other = ({name: each[name] for name in WRITTEN} for each in (own, other))
        if own == other:
            return {"speedup": 1.0, "interval": [1.0, 1.0], "same_config": True}
        launches = [self._launch(tokens, config) for config in (own, other)]
        found = judged(*launches, lambda: None, self._pairs)
        return found | {"same_config": False}

    def _launch(self, tokens: int, config: Any) -> Any:
        from vllm_layer import kernel

        workload = workload_of(self._problem, tokens)
        if self._tensors[0] != tokens:
            self._tensors = (0, {})
            self._tensors = (tokens, tensors_of(workload))
        made = kernel.launches(workload, config, self._tensors[1])

        def launch() -> None:
            for each in made:
                each.fn[each.grid](*each.args, **each.kwargs)

        return launch


def tensors_of(workload: Any) -> dict[str, Any]:
    import torch
    from vllm_layer import kernel

    from search_spaces.shape_tensor import torch_dtype

    tensors = dict(kernel.make_inputs(workload, 3, "cuda"))
    for name, spec in kernel.outputs(workload).items():
        tensors[name] = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="cuda")
    return tensors


def write_table(folder: Path, problem: Problem, rows: dict[int, Any]) -> Path:
    """The file as vLLM names it, in the adapter's format."""
    from tuner.integrations import SizeTable, TableKey, adapter

    vllm = adapter("vllm-moe")
    key = TableKey((("E", problem.experts), ("N", problem.inner)))
    path = folder / vllm.file_name(key, "NVIDIA H200")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(vllm.text_of(SizeTable(rows)))
    vllm.read(path.read_text(), f"{path}")  # refuses what the library cannot load
    return path


def today(problem: Problem, folder: Path | None, tokens: int) -> dict[str, Any]:
    from vllm_lookup import row_of

    return row_of(folder, problem.experts, problem.inner, tokens, problem.hidden, problem.top_k)


def proven(problem: Problem, rows: dict[int, Any], judge: Judge) -> tuple[dict[int, Any], dict]:
    """The rows, with today's config where ours is not faster beyond the interval."""
    kept, seen = {}, {}
    for tokens, ours in sorted(rows.items()):
        own = today(problem, None, tokens)
        seen[tokens] = judge(tokens, own, ours)
        faster = seen[tokens]["interval"][0] > 1
        kept[tokens] = ours if faster else {name: own[name] for name in WRITTEN}
    return kept, seen


def judged_rows(problem: Problem, folder: Path, sizes: Sequence[int], judge: Judge) -> dict:
    """Per size, what vLLM launches with our folder against what it launches without it."""
    found = {}
    for tokens in sizes:
        own, ours = today(problem, None, tokens), today(problem, folder, tokens)
        found[tokens] = {"own": own, "ours": ours, **judge(tokens, own, ours)}
    return found


def guarded(problem: Problem, rows: dict[int, Any], between: int, judge: Judge, stop_s: float):
    """Rows for which no size between is slower; what was compared."""
    from tuner.integrations import adapter
    from tuner.integrations.never_worse import RowRatio, never_worse, sizes_between

    seen: dict[str, Any] = {}

    def compare(asked):
        answers = []
        for pair in asked:
            if time.monotonic() > stop_s:
                raise TimeoutError("the time for sizes between the keys is used up")
            facts = judge(pair.size, pair.today, pair.config)
            seen[f"{pair.size} {json.dumps(pair.config)}"] = facts
            low, high = facts["interval"]
            answers.append(RowRatio(-math.log(facts["speedup"]), -math.log(high), -math.log(low)))
        return answers

    sizes = list(sizes_between(rows, between))
    result: dict[str, Any] = {"sizes": sizes, "compared": seen}
    try:
        done = never_worse(rows, lambda size: today(problem, None, size), compare, sizes,
                           adapter("vllm-moe").nearest)  # fmt: skip
    except TimeoutError as error:
        return rows, result | {"stopped": f"{error}"}
    facts = {name: list(getattr(done, name)) for name in ("worse", "added", "replaced")}
    return dict(done.rows), result | facts


def summary(rows: dict[int, Any]) -> dict[str, Any]:
    """The geometric mean and the rows that may be slower."""
    ratios = [each["speedup"] for each in rows.values()]
    return {
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))),
        "least": min(ratios, default=None),
        "surely_slower": [size for size, each in rows.items() if each["interval"][1] < 1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problem", default="qwen3-30b", choices=list(PROBLEMS))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--budgets", type=json.loads, default='[{"trials": 40}, {"trials": 80}]')
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--between", type=int, default=0)
    parser.add_argument("--between-s", type=float, default=60)
    options = parser.parse_args()
    import torch
    import triton
    from vllm_layer import shipped_row

    problem, out = PROBLEMS[options.problem], options.out.resolve()
    result: dict[str, Any] = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "toolchain": {"torch": torch.__version__, "triton": triton.__version__},
        "problem": problem._asdict(),
        "against": "the shipped table" if shipped_row(problem.experts, problem.inner, 1)
        else "vLLM's default config",
        "rows_run": options.rows,
        "rows_of_a_full_table": list(ROWS),
        "budgets": options.budgets,
    }  # fmt: skip

    def save() -> None:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, default=str)
        (out / f"library_tables_{options.problem}.json").write_text(text + "\n")

    rows, result["tuning"] = tuned(problem, options.rows, options.budgets, out)
    print(f"{len(rows)} rows in {result['tuning']['wall_s']:.0f} s", flush=True)
    save()
    # Rows are chosen by one comparison and judged by another.
    judge, started = Judge(problem, options.pairs), time.monotonic()
    rows, result["proof"] = proven(problem, rows, judge)
    result["tuning"]["proof_s"] = time.monotonic() - started
    print(f"proven in {result['tuning']['proof_s']:.0f} s", flush=True)
    table = write_table(out / "vllm", problem, rows)
    result["judged"] = judged_rows(problem, table.parent, sorted(rows), judge)
    result["summary"] = summary(result["judged"])
    print(json.dumps(result["summary"]), flush=True)
    save()
    if options.between:
        stop_s = time.monotonic() + options.between_s
        rows, result["between"] = guarded(problem, rows, options.between, judge, stop_s)
        write_table(out / "vllm_guarded", problem, rows)
        print(json.dumps({k: v for k, v in result["between"].items() if k != "compared"}))
        save()


if __name__ == "__main__":
    main()
