"""Edits of kernels that identity has to see, layout that it must not, and the time it takes.

    python benchmarks/identity_edits.py --out benchmarks/results

Pairs of a kernel before and after one edit: of its module's text, of modules and packages that it
imports, of the state of its object (each kind of value alone, and inside four other kinds), of data
files, extensions and generated code beside it; and edits of functions and constants of the built-in
families, in a copy. Writes OUT/identity_edits.json; fails where an edit is not seen or layout is.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/spaces")]

import identity_pairs  # noqa: E402
import torch  # noqa: E402
from identity_pairs import LAYOUTS, SEEN, STATES, Folder  # noqa: E402

from search_spaces import identity, registry  # noqa: E402

#: What holds a value of the state in turn.
HOLDERS = {
    "in a container": "make(z={{'q': ({},)}})",
    "in an object": "make(z=Held({}))",
    "captured": "make(z=(lambda v: lambda: v)({}))",
    "given to a partial": "make(z=functools.partial(print, {}))",
}
#: Edits of built-in families.
OWN_CODE = 160


def check_pairs(counts: Counter[str], wrong: list[str]) -> None:
    """Pairs of small kernels."""
    nested = {
        f"{title}, {where}": holder.format(made.removeprefix("make(z=").removesuffix(")"))
        for title, made in STATES.items()
        if made.startswith("make(z=")
        for where, holder in HOLDERS.items()
    }
    for kind, (titles, identities) in SEEN.items():
        if kind == "state":
            identity_pairs.STATES.update(nested)
        for title in [*titles]:
            with tempfile.TemporaryDirectory() as path:
                folder = Folder(Path(path))
                first, again, edited = identities(folder, title)
                folder.close()
            counts[kind] += 1
            if first != again or edited == first:
                wrong.append(f"{kind}: {title}")


def check_layouts(counts: Counter[str], wrong: list[str]) -> None:
    for title in LAYOUTS:
        with tempfile.TemporaryDirectory() as path:
            folder = Folder(Path(path))
            before, after = identity_pairs.layouts(folder, title)
            folder.close()
        counts["layout"] += 1
        if before != after:
            wrong.append(f"layout: {title}")


def check_families(counts: Counter[str], wrong: list[str]) -> None:
    """Edits of functions and constants of files that families reach, one after the other."""
    kernels = [registry.load(name) for name in registry.BUILT_IN]
    reached = {kernel.name: sorted(identity.identity_of(kernel).files) for kernel in kernels}
    rng = random.Random(0)
    edits = [
        (kernel, file, *edit)
        for kernel in kernels
        for file in reached[kernel.name]
        if file.endswith(".py")
        for edit in list_edits(Path(file).read_text())
    ]
    for kernel, file, name, text in rng.sample(edits, OWN_CODE):
        path, before = Path(file), Path(file).read_text()
        first = fresh(kernel)
        try:
            path.write_text(text)
            edited = fresh(kernel)
        finally:
            path.write_text(before)
        counts["built-in family"] += 1
        if edited == first:
            wrong.append(f"{kernel.name}: {name} of {path.name}")


def fresh(kernel: object) -> str:
    """The identity, read again."""
    identity._known.clear()
    return identity.identity_of(kernel).digest  # type: ignore[arg-type]


def list_edits(text: str) -> Iterator[tuple[str, str]]:
    """Each function with one more statement, and each constant with another number or text."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            last = node.body[-1]
            found = [*lines]
            found.insert(last.lineno - 1, " " * last.col_offset + "assert 1\n")
            if not getattr(last, "decorator_list", None):
                yield node.name, "".join(found)
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.col_offset:
            found = [*lines]
            line = found[node.lineno - 1].encode()
            end = node.end_col_offset or 0
            number = f"{node.value + 1}".encode()
            found[node.lineno - 1] = (line[: node.col_offset] + number + line[end:]).decode()
            yield f"{node.value} in line {node.lineno}", "".join(found)


def time_families() -> float:
    """Seconds of processor time that the identity of all built-in families takes."""
    identity._known.clear()
    kernels = [registry.load(name) for name in registry.BUILT_IN]
    began = time.process_time()
    for kernel in kernels:
        kernel.launch_hash()
    return time.process_time() - began


def measure(out: Path) -> int:
    """Make all edits in the tree of this script, a copy, and write the result."""
    seconds = time_families()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    check_families(counts, wrong)
    check_pairs(counts, wrong)
    check_layouts(counts, wrong)
    edits = sum(counts.values()) - counts["layout"]
    seen_layout = sum(each.startswith("layout") for each in wrong)
    document = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "edits": edits,
        "seen": edits - len(wrong) + seen_layout,
        "layout only": counts["layout"],
        "layout that is seen": seen_layout,
        "by kind": dict(counts),
        "wrong": wrong,
        "identity of all built-in families, seconds of processor time": round(seconds, 2),
    }
    print(json.dumps(document, indent=1))
    out.mkdir(parents=True, exist_ok=True)
    (out / "identity_edits.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--in-copy", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_copy:
        return measure(options.out)
    with tempfile.TemporaryDirectory(prefix="identity-edits-") as path:
        copy = Path(path)
        ignored = shutil.ignore_patterns("__pycache__")
        packages = ("search_spaces", "tuner", "workers", "results_db", "reports", "tests/spaces")
        for package in packages:
            shutil.copytree(ROOT / package, copy / package, ignore=ignored)
        (copy / "benchmarks").mkdir()
        script = shutil.copy(__file__, copy / "benchmarks")
        return subprocess.run(
            [sys.executable, script, "--out", options.out.resolve(), "--in-copy"],
            env={**os.environ, "PYTHONPATH": f"{copy}"},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
