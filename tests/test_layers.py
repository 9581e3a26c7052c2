"""The house rules that a program can check: imports between layers, and the length of functions."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("search_spaces", "workers", "results_db", "reports", "tuner")
#: What each package may import of ours: a package, or a module of one.
ALLOWED = {
    "tuner.base": {"tuner.base"},
    # Libraries carry copies of it.
    "tuner.runtime": {"tuner.runtime"},
    "search_spaces": {"search_spaces", "tuner.base", "tuner.runtime.device_code"},
    "workers": {"workers", "search_spaces", "tuner.base"},
    "results_db": {
        "results_db",
        "tuner.base",
        "search_spaces.records",
        "search_spaces.errors",
        "search_spaces.atomic_file",
        "search_spaces.size_range",
        "workers.job_records",
    },
    "reports": {
        "reports",
        "results_db",
        "tuner.base",
        "search_spaces.records",
        "search_spaces.errors",
        "search_spaces.atomic_file",
        "search_spaces.plugins",
        "workers.backend_kinds",
    },
    "tuner": {*PACKAGES},
}
#: Parts of `tuner` that are layers of their own.
LOW = ("tuner.base", "tuner.runtime")
#: What the rooms inside `tuner` and `workers` may import of each other, lazily or not. A room is a
#: sub-package or a module; one that is not named here may import every room.
ROOMS = {
    "tuner.progress": set[str](),
    "tuner.views": {"tuner.campaign", "tuner.progress"},
    "tuner.serving": {"tuner.campaign", "tuner.tables", "tuner.views"},
    "tuner.traces": set[str](),
    "tuner.strategies": set[str](),
    "tuner.engine": {"tuner.strategies", "tuner.progress"},
    "tuner.integrations": {"tuner.runtime"},
    "tuner.tables": {
        "tuner.integrations",
        "tuner.runtime",
        "tuner.strategies",
    },
    "tuner.settings": {"tuner.strategies", "tuner.schedule"},
    "tuner.schedule": {"tuner.campaign", "tuner.settings"},
    "tuner.campaign": {
        "tuner.engine",
        "tuner.integrations",
        "tuner.progress",
        "tuner.runtime",
        "tuner.settings",
        "tuner.strategies",
        "tuner.tables",
        "tuner.traces",
    },
    "tuner.compare": {
        "tuner.campaign",
        "tuner.engine",
        "tuner.integrations",
        "tuner.progress",
        "tuner.runtime",
        "tuner.settings",
        "tuner.tables",
    },
    "tuner.library_doctor": {
        "tuner.campaign",
        "tuner.integrations",
        "tuner.progress",
        "tuner.settings",
        "tuner.tables",
    },
    "workers.job_records": set[str](),
    "workers.measured_task": {"workers.job_records"},
    "workers.roles": {"workers.job_records"},
    "workers.environment": set[str](),
    "workers.host": set[str](),
    "workers.nvml": set[str](),
    "workers.machine_lock": set[str](),
    "workers.quiet_processors": {"workers.machine_lock"},
    "workers.user_cache": set[str](),
    "workers.toolchain": {"workers.environment", "workers.host", "workers.nvml"},
    "workers.processes": {
        "workers.backend_kinds",
        "workers.backend_spec",
        "workers.environment",
        "workers.job_records",
    },
    # Pools use builders and runners; these do not know pools.
    "workers.compiling": {
        "workers.backend_kinds",
        "workers.device",
        "workers.environment",
        "workers.host",
        "workers.job_records",
        "workers.machine_lock",
        "workers.processes",
        "workers.toolchain",
        "workers.user_cache",
    },
    "workers.measure": {
        "workers.backend_kinds",
        "workers.compiling",
        "workers.device",
        "workers.host",
        "workers.machine_lock",
        "workers.quiet_processors",
        "workers.job_records",
        "workers.processes",
        "workers.toolchain",
        "workers.user_cache",
    },
}
#: What the runtime may load besides the standard library, and only when a kernel is launched.
LAZY_IN_RUNTIME = {"torch", "triton"}
HEAVY = {"torch", "triton", "ray", "optuna", "plotly", "pandas", "sqlalchemy", "pydantic"}
MAX_FUNCTION_LINES = 50
#: A jitted kernel keeps the state of its loop in variables, which a helper would have to pass on.
MAX_KERNEL_LINES = 80


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def label(path: Path) -> str:
    return f"{path.relative_to(ROOT)}"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    return next((low for low in LOW if _inside(module, low)), module.split(".")[0])


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


def upward(tree: ast.Module, module: str, *, is_package: bool = False) -> list[tuple[int, str]]:
    """The imports of a module that its layer may not have, as lines and names."""
    package = module if is_package else module.rpartition(".")[0]
    allowed = ALLOWED[layer(module)]
    return [
        (line, names[-1])
        for line, names in imports(tree, package)
        if names[0].split(".")[0] in PACKAGES
        and not any(_inside(name, one) for name in names for one in allowed)
    ]


def test_no_import_points_upward() -> None:
    for path in modules():
        found = upward(parse(path), dotted(path), is_package=path.name == "__init__.py")
        assert not found, f"{label(path)} may not import {found}"


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("search_spaces.a", "import workers", True),
        ("search_spaces.a", "def f():\n    from results_db import Store", True),
        ("search_spaces.a", "import importlib\nimportlib.import_module('tuner.cli')", True),
        ("search_spaces.a", "from .records import Config", False),
        ("search_spaces.a", "from tuner.runtime.device_code import kernel_hash", False),
        ("search_spaces.a", "from tuner.runtime import device_code", False),
        ("search_spaces.a", "import tuner.runtime", True),
        ("tuner.base.a", "from search_spaces.records import Config", True),
        ("tuner.base.a", "from tuner.runtime import Table", True),
        ("tuner.runtime.a", "from tuner.runtime._syntax import stamp", False),
        ("workers.a", "from search_spaces import registry", False),
        ("workers.a", "if TYPE_CHECKING:\n    import tuner", True),
        ("results_db.a", "from search_spaces.records import Config", False),
        ("results_db.a", "from search_spaces import records", False),
        ("results_db.a", "from search_spaces.kernel import Kernel", True),
        ("results_db.a", "from workers import roles", True),
        ("reports.a", "from results_db import Store", False),
        ("reports.a", "import workers.job_records", True),
        ("tuner.cli", "from workers.pools import make_pool", False),
        ("tuner.runtime.a", "from tuner.settings.sections import Settings", True),
        ("tuner.runtime.a", "from ..tables import read", True),
        ("tuner.runtime.a", "from .lookup import lookup", False),
        ("tuner.runtime.a", "import search_spaces.records", True),
    ],
)
def test_upward_arrows_are_seen(module: str, source: str, refused: bool) -> None:
    assert bool(upward(ast.parse(source), module)) is refused


def test_the_runtime_needs_the_standard_library_only() -> None:
    for path in (path for path in modules() if layer(dotted(path)) == "tuner.runtime"):
        tree = parse(path)
        lazy = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _for_types_only(node)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for line, names in imports(tree, dotted(path)):
            top = names[0].split(".")[0]
            known = top in sys.stdlib_module_names or top in PACKAGES
            known = known or (top in LAZY_IN_RUNTIME and line in lazy)
            assert known, f"{label(path)}:{line}: {top}"


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def test_importing_the_runtime_loads_nothing_heavy() -> None:
    code = "import sys, tuner.runtime; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_functions_are_short() -> None:
    for path, node in [(file, each) for file in modules() for each in ast.walk(parse(file))]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Arguments and docstrings are declarations.
            first = node.body[1:2] if ast.get_docstring(node) else node.body
            start = first[0].lineno if first else node.lineno
            length = (node.end_lineno or node.lineno) - start + 1
            where = f"{label(path)}:{node.lineno}: {node.name}"
            kernels = path.name in ("gluon_kernels.py", "triton_kernels.py")
            most = MAX_KERNEL_LINES if kernels else MAX_FUNCTION_LINES
            assert length <= most, f"{where} has {length} lines"


# -- rooms and circles -----------------------------------------------------------------------------
def room(module: str) -> str:
    """The part of `tuner` or `workers` that a module belongs to; elsewhere the package."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] in ("tuner", "workers") else parts[:1])


def imported_modules(module: str, path: Path, tree: ast.Module) -> set[str]:
    """The modules of ours that a tree imports, the module itself not counted."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for _, names in imports(tree, package):
        found |= {name for name in reversed(names) if name in PATHS and name != module}
    return found


PATHS = {dotted(path): path for path in modules()}


def refused_rooms(module: str, path: Path, tree: ast.Module) -> set[str]:
    """The rooms of its own package that a module imports and may not."""
    own = room(module)
    family = own.split(".")[0]
    rooms = {room(other) for other in imported_modules(module, path, tree)}
    mates = {one for one in rooms if one.startswith(f"{family}.")}
    return mates - {own, *LOW[:1]} - ROOMS.get(own, mates)


def test_rooms_import_only_the_rooms_they_may() -> None:
    for module, path in PATHS.items():
        refused = refused_rooms(module, path, parse(path)) if room(module) in ROOMS else ()
        assert not refused, f"{label(path)} may not import {sorted(refused)}"


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("tuner.engine.a", "from tuner.settings.sections import Settings", {"tuner.settings"}),
        ("tuner.engine.a", "def f():\n    from tuner.campaign import run", {"tuner.campaign"}),
        ("tuner.engine.a", "import tuner.cli", {"tuner.cli"}),
        ("tuner.engine.a", "from tuner import strategies", set()),
        ("tuner.strategies.a", "from tuner.engine.search import Search", {"tuner.engine"}),
        ("tuner.strategies.a", "from tuner.settings.sections import Settings", {"tuner.settings"}),
        ("tuner.campaign.a", "from tuner.cli import main", {"tuner.cli"}),
        ("workers.job_records", "from workers import roles", {"workers.roles"}),
    ],
)
def test_imports_of_other_rooms_are_seen(module: str, source: str, refused: set[str]) -> None:
    assert refused_rooms(module, Path("a.py"), ast.parse(source)) == refused


def _at_module_level(tree: ast.Module) -> ast.Module:
    """The statements that run when a module is imported: no functions, nothing for types only."""

    def walk(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            elif isinstance(node, ast.If):
                yield from walk(
                    node.orelse if _for_types_only(node) else [*node.body, *node.orelse]
                )
            elif isinstance(node, ast.Try):
                handled = [line for handler in node.handlers for line in handler.body]
                yield from walk([*node.body, *handled, *node.orelse, *node.finalbody])
            elif isinstance(node, ast.With | ast.ClassDef):
                yield from walk(node.body)

    return ast.Module(list(walk(tree.body)), [])


def _loaded_with(module: str, imported: set[str]) -> set[str]:
    """The imported modules and the packages that Python loads before them."""
    found = set(imported)
    for other in imported:
        parts = other.split(".")
        found |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return {other for other in found if not _inside(module, other)}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Every circle once, as a path whose last module imports its first."""
    found, finished = [], set[str]()

    def follow(path: list[str]) -> None:
        for other in sorted(arrows.get(path[-1], ())):
            if other in path:
                found.append(path[path.index(other) :])
            elif other not in finished:
                follow([*path, other])
        finished.add(path[-1])

    for module in sorted(arrows):
        if module not in finished:
            follow([module])
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    arrows = {
        module: _loaded_with(
            module,
            imported_modules(module, path, _at_module_level(parse(path))),
        )
        for module, path in PATHS.items()
    }
    assert circles(arrows) == []


@pytest.mark.parametrize(
    ("arrows", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, [["b", "c"]]),
    ],
)
def test_circles_are_found(arrows: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert circles(arrows) == expected


def test_rooms_form_layers_and_their_picture_is_current() -> None:
    """Rooms without a circle have layers; `scripts/draw_rooms.py` refuses to draw others."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "draw_rooms.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_folder_is_passed_over_by_default(request):
    """The default ignore lists of pytest, ruff and others skip such folders."""
    patterns = [
        *request.config.getini("norecursedirs"),
        "build",
        "dist",
        "site-packages",
        "node_modules",
    ]
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    folders |= {path.name for package in PACKAGES for path in (ROOT / package).rglob("*")}
    assert not [f for f in folders if any(fnmatch.fnmatch(f, one) for one in patterns)]


def test_names_and_imports_are_as_they_are_held_to():
    """No function is named by a participle alone, no two modules by one name."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "count_code.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_for_the_next_person_name_places_that_exist():
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]
    named = {
        place
        for page in pages
        for place in re.findall(r"`([a-z_]+/[a-z_/]+(?:\.py)?)`", page.read_text())
    }
    assert len(named) > 30
    assert not [place for place in named if not (ROOT / place).exists()]
