"""The house rules a program can check: who may import whom, and how long things may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("search_spaces", "workers", "results_db", "reports", "tuner")
#: What each package may import of ours: a package, or a module of one.
ALLOWED = {
    "search_spaces": {"search_spaces", "tuner.runtime.identity", "tuner.import_names"},
    "workers": {"workers", "search_spaces", "tuner.import_names"},
    "results_db": {
        "results_db",
        "tuner.import_names",
        "search_spaces.records",
        "search_spaces.errors",
        "workers.records",
    },
    "reports": {
        "reports",
        "results_db",
        "search_spaces.records",
        "search_spaces.errors",
        "search_spaces.statistics",
        "tuner.import_names",
    },
    "tuner": {*PACKAGES},
    "tuner.runtime": {"tuner.runtime"},
}
#: What the runtime may load besides the standard library, and only when a kernel is launched.
LAZY_IN_RUNTIME = {"torch", "triton"}
HEAVY = {"torch", "triton", "ray", "optuna", "plotly", "pandas", "sqlalchemy", "pydantic"}
MAX_FUNCTION_LINES = 50


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def label(path: Path) -> str:
    return f"{path.relative_to(ROOT)}"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    return "tuner.runtime" if _inside(module, "tuner.runtime") else module.split(".")[0]


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and possible module names of every import, wherever in the file it stands.

    `from a import b` means the module a, or a.b; either must be allowed.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, (alias.name,)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((node.lineno, (base, f"{base}.{alias.name}")) for alias in node.names)
        elif isinstance(node, ast.Call) and _loads_by_name(node):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, (argument.value,)


def _loads_by_name(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
    return name == "import_module" or (
        isinstance(name, ast.Name) and name.id in ("import_module", "__import__")
    )


def upward(source: str, module: str, *, is_package: bool = False) -> list[tuple[int, str]]:
    """The imports of a module that its layer may not have, as lines and names."""
    package = module if is_package else module.rpartition(".")[0]
    allowed = ALLOWED[layer(module)]
    return [
        (line, names[-1])
        for line, names in imports(ast.parse(source), package)
        if names[0].split(".")[0] in PACKAGES
        and not any(_inside(name, one) for name in names for one in allowed)
    ]


@pytest.mark.parametrize("path", modules(), ids=label)
def test_no_import_points_upward(path: Path) -> None:
    found = upward(path.read_text(), dotted(path), is_package=path.name == "__init__.py")
    assert not found, f"{label(path)} may not import {found}"


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("search_spaces.a", "import workers", True),
        ("search_spaces.a", "def f():\n    from results_db import Store", True),
        ("search_spaces.a", "import importlib\nimportlib.import_module('tuner.cli')", True),
        ("search_spaces.a", "from .records import Config", False),
        ("search_spaces.a", "from tuner.runtime.identity import kernel_hash", False),
        ("search_spaces.a", "from tuner.runtime import identity", False),
        ("search_spaces.a", "import tuner.runtime", True),
        ("workers.a", "from search_spaces import registry", False),
        ("workers.a", "if TYPE_CHECKING:\n    import tuner", True),
        ("results_db.a", "from search_spaces.records import Config", False),
        ("results_db.a", "from search_spaces import records", False),
        ("results_db.a", "from search_spaces.kernel import Kernel", True),
        ("results_db.a", "from workers import roles", True),
        ("reports.a", "from results_db import Store", False),
        ("reports.a", "import workers.records", True),
        ("tuner.cli", "from workers.pools import make_pool", False),
        ("tuner.runtime.a", "from tuner.settings.models import Settings", True),
        ("tuner.runtime.a", "from ..tables import read", True),
        ("tuner.runtime.a", "from .lookup import lookup", False),
        ("tuner.runtime.a", "import search_spaces.records", True),
    ],
)
def test_upward_arrows_are_seen(module: str, source: str, refused: bool) -> None:
    assert bool(upward(source, module)) is refused


@pytest.mark.parametrize(
    "path", [path for path in modules() if layer(dotted(path)) == "tuner.runtime"], ids=label
)
def test_the_runtime_needs_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    lazy = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _for_types_only(node)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line, names in imports(tree, dotted(path)):
        top = names[0].split(".")[0]
        known = top in sys.stdlib_module_names or top in PACKAGES
        assert known or (top in LAZY_IN_RUNTIME and line in lazy), f"{label(path)}:{line}: {top}"


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def test_importing_the_runtime_loads_nothing_heavy() -> None:
    code = "import sys, tuner.runtime; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("path", modules(), ids=label)
def test_functions_are_short(path: Path) -> None:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A command's options or a Triton kernel's arguments are declared, not done.
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            where = f"{label(path)}:{node.lineno}: {node.name}"
            assert length <= MAX_FUNCTION_LINES, f"{where} has {length} lines"
