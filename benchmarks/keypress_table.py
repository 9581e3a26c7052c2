#!/usr/bin/env python3
"""The the table of docs/comparison.md of whole calls from a document of keypress_to_answer.py.

    benchmarks/keypress_table.py RESULT.json [--write docs/comparison.md]

Prints the table; `--write` replaces the block of that file between the line `<!-- figures: ... -->`
that names the result and the line `<!-- end of figures -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The headings of the columns.
KERNELS = {
    "matmul": "matmul 4096 x 4096 x 4096, 336 configs",
    "layer_norm": "layer_norm 65536 x 768",
    "attention": "attention, causal, 2 x 32 x 8192 x 128",
}
END = "<!-- end of figures -->"


def table(document: Mapping) -> str:
    """Markdown: a row per tool, seconds from the start of a process to its exit."""
    found = document["summary"]
    kernels = [name for name in KERNELS if name in found]
    lines = [_row("", *(KERNELS[name] for name in kernels)), _row(*["---"] * (len(kernels) + 1))]
    calls = max(found[name]["calls"] for name in kernels)
    lines.append(
        _row(f"tuner, median of {calls} (slowest)", *(_ours(found[name]) for name in kernels))
    )
    second = {name: found.get(f"second call of a session, {name}") for name in kernels}
    if any(second.values()):
        cells = (_seconds(line["median_s"]) if (line := second[name]) else "-" for name in kernels)
        lines.append(_row("tuner, second call of a session", *cells))
    rest = ["-"] * (len(kernels) - 1)
    for tool, entries in _rivals(document).items():
        lines.append(_row(tool, _rival(entries), *rest))
    return "\n".join([*lines, "", *_campaign(found.get("campaign"))]).rstrip()


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s"


def _ours(line: Mapping) -> str:
    text = f"{_seconds(line['median_s'])} ({line['max_s']:.1f})"
    if "worst_regret" in line:
        text += f", at most {line['worst_regret']:.1%}"
    verdicts = line["verdicts"]
    counts = ", ".join(f"{count} x {verdict}" for verdict, count in verdicts.items())
    return text if line["one_verdict"] else f"{text}, {counts}"


def _rivals(document: Mapping) -> dict[str, list[Mapping]]:
    """The entries of each other tool for matmul, one per seed, under the tool's name."""
    grouped: dict[str, list[tuple[str, Mapping]]] = {}
    for key, entry in sorted(document["summary"].get("matmul", {}).items()):
        if key.startswith(("triton", "helion")):
            grouped.setdefault("/".join(key.split("/")[:2]), []).append((key, entry))
    return {
        _tool(name, len(found), document["steps"][found[0][0]]): [entry for _, entry in found]
        for name, found in grouped.items()
    }


def _rival(entries: Sequence[Mapping]) -> str:
    seconds = [entry["whole_s"] for entry in entries]
    text = _seconds(statistics.median(seconds))
    if len(entries) > 1:
        text += f" ({max(seconds):.1f})"
    regrets = [entry["regret"] for entry in entries if entry.get("regret") is not None]
    most = "at most " if len(entries) > 1 else ""
    return f"{text}, {most}{max(regrets):.1%}" if regrets else text


def _tool(name: str, seeds: int, step: Mapping) -> str:
    if name == "triton":
        return "`triton.autotune`"
    number = {1: "one seed"}.get(seeds, f"median of {seeds} (slowest)")
    return f"Helion {step.get('version', '')} `{name.partition('/')[2]}`, {number}".replace(
        "  ", " "
    )


def _campaign(line: Mapping | None) -> list[str]:
    if line is None:
        return []
    return [f"A campaign of 32 tasks on one GPU: {_seconds(line['whole_s'])} as `tuner run`."]


def written(text: str, result: str, block: str) -> str:
    """The text with its block of that result replaced; raises `ValueError` without one block."""
    head = f"<!-- figures: {result} -->"
    pattern = re.compile(f"{re.escape(head)}\n.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"there is no single block from `{head}` to `{END}`")
    return pattern.sub(lambda _: f"{head}\n{block}\n{END}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--write", type=Path, help="the file whose block is replaced")
    args = parser.parse_args()
    block = table(json.loads(args.result.read_text()))
    print(block)
    if args.write:
        name = args.result.resolve().relative_to(ROOT).as_posix()
        args.write.write_text(written(args.write.read_text(), name, block))
    return 0


if __name__ == "__main__":
    sys.exit(main())
