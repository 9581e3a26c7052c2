"""Count the code and its names: `python scripts/count_code.py [--check]`.

Prints lines, files and median lengths of the product, the kernel library and `benchmarks/`, then
what names and imports are held to:

- no function outside the kernel library is named by a participle alone, unless it is a property,
  answers with a bool or makes a context (`with noted():`): an action has a verb;
- no two modules have one name for different things;
- modules that import one another in a circle, also lazily or for types alone.

`--check` exits with 1 where one of these is found.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from draw_rooms import PACKAGES, ROOT, modules, reachable

KERNELS = ROOT / "search_spaces" / "kernels"
#: Verbs and nouns that end as participles do.
NO_PARTICIPLES = {"embed", "exceed", "feed", "hundred", "need", "proceed", "seed", "speed"}
#: Participles that do not end in `ed`; forms that are the verb itself (`read`, `set`) are left out.
IRREGULAR = re.compile(
    "begun|bent|blown|bought|bound|bred|broken|brought|built|caught|chosen|dealt|done|drawn|driven|"
    "eaten|fallen|fed|felt|flown|forgotten|fought|found|frozen|given|gone|grown|heard|held|hidden|"
    "kept|known|laid|led|left|lent|lost|made|meant|met|overridden|paid|rebuilt|resent|rewritten|"
    "ridden|risen|said|seen|sent|shaken|shown|slept|sold|sought|spent|spoken|stolen|struck|sung|"
    "swept|swung|taken|taught|thought|thrown|told|torn|understood|unread|won|worn|written"
)
#: Public names of `tuner` that kernels of users call; they change with the kernels' identities.
PUBLIC = {"compiled", "named", "scripted"}
#: Rooms whose modules are named after what they show or command.
NAMED_AFTER = ("reports/", "tuner/cli/")
#: Parts that every backend has, and modules that are of one kind or named by Python.
BACKEND_PARTS = {"backend.py", "devices.py", "limits.py", "spec.py"}
ONE_KIND = {"errors.py", "sitecustomize.py"}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_participle(name: str) -> bool:
    """Whether a function's name is one word, and that a past participle."""
    word = name.strip("_")
    regular = word.endswith("ed") and len(word) > 3 and word not in NO_PARTICIPLES
    return "_" not in word and word not in PUBLIC and (regular or IRREGULAR.fullmatch(word))


def is_action(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function needs a verb: it is no property, answers no question, makes no context."""
    decorators = {ast.unparse(each).partition("(")[0] for each in function.decorator_list}
    names = {each.rpartition(".")[2] for each in decorators}
    state = names & {"property", "cached_property", "contextmanager"}
    answer = ast.unparse(function.returns) if function.returns else ""
    return not state and not answer.startswith(("bool", "TypeGuard", "TypeIs"))


def participles(paths: dict[str, Path]) -> list[str]:
    """Functions outside the kernel library that are named by a participle alone."""
    return [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path in paths.values()
        if KERNELS not in path.parents
        for function in functions(ast.parse(path.read_text()))
        if is_participle(function.name) and is_action(function)
    ]


def repeated_modules(paths: dict[str, Path]) -> list[str]:
    """Modules outside the kernel library that have one name for different things."""
    by_name = defaultdict(set)
    for path in paths.values():
        place = f"{path.relative_to(ROOT)}"
        free = path.name in {"__init__.py", *ONE_KIND} or place.startswith(NAMED_AFTER)
        if not free and KERNELS not in path.parents:
            part = place.startswith("workers/backends/") and path.name in BACKEND_PARTS
            by_name[path.name].add(f"workers/backends/*/{path.name}" if part else place)
    return [", ".join(sorted(same)) for same in by_name.values() if len(same) > 1]


def all_imports(paths: dict[str, Path]) -> dict[str, set[str]]:
    """The modules of ours that each module imports: when loaded, lazily, or for types alone."""
    edges = {}
    for name, path in paths.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                one = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {each if each in paths else node.module for each in one}
        edges[name] = (found & set(paths)) - {name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports all others, directly or not."""
    below = {name: reachable(edges, name) for name in edges}
    found = {
        tuple(sorted(low for low in below[name] if name in below[low]))
        for name in edges
        if name in below[name]
    }
    return sorted(map(list, found))


def sizes(label: str, paths: list[Path]) -> None:
    """Print lines, files, and the median lengths of files and functions."""
    texts = [path.read_text() for path in paths]
    lines = [text.count("\n") for text in texts]
    lengths = [
        (function.end_lineno or 0) - function.lineno + 1
        for text in texts
        for function in functions(ast.parse(text))
    ]
    print(
        f"{label}: {sum(lines):,} lines in {len(paths)} files, median file "
        f"{statistics.median(lines):.0f}, median function {statistics.median(lengths):.0f}"
    )


def main() -> int:
    paths = modules()
    product = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    sizes("product without kernels", [path for path in product if KERNELS not in path.parents])
    sizes("kernel library", [path for path in product if KERNELS in path.parents])
    sizes("benchmarks", sorted((ROOT / "benchmarks").rglob("*.py")))
    counts = {
        "functions named by a participle": participles(paths),
        "modules of one name for different things": repeated_modules(paths),
        "circles of imports": [" - ".join(circle) for circle in circles(all_imports(paths))],
    }
    for label, found in counts.items():
        print(f"{label}: {len(found)}", *(f"  {each}" for each in found), sep="\n")
    return int("--check" in sys.argv and any(counts.values()))


if __name__ == "__main__":
    sys.exit(main())
