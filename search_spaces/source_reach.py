"""The source files that a kernel reaches by import statements, whether imported yet or not.

The walk reads files and imports nothing. It covers import statements anywhere in a file, also those
inside functions. It ends at the standard library, torch, triton and the farm's own packages; in
other installed packages it covers the modules that the user's own files name. Another rule of which
files belong to the walk can be given.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

from search_spaces.source_positions import installed_package, is_own
from tuner.runtime.device_code import chain_of, normal_form, stamp

#: The files of modules: Python, byte code without its source, compiled extensions.
_CODE = (".py", ".pyc", *EXTENSION_SUFFIXES)
_IMPORTERS = ("import_module", "__import__", "import_file")
#: Words of a text that may be names of files, with wildcards.
_WORDS = re.compile(r"[\w.+*?\[\]@~-]+")


@dataclass(frozen=True, slots=True)
class Reach:
    """Files and their imports of each other."""

    #: Each file that was reached, with the name of its module; the first is the kernel's own.
    modules: dict[str, str] = field(default_factory=dict)
    #: For each file, the reached files that its import statements name.
    imports: dict[str, set[str]] = field(default_factory=dict)

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Modification time in ns and size of each file; zeros for a missing file."""
        return {file: stamp(file) for file in self.modules}

    def dependents(self, files: set[str]) -> set[str]:
        """The given files and all reached files that import one of them, directly or not."""
        found = set(files) & self.modules.keys()
        while True:
            more = {file for file, named in self.imports.items() if named & found} - found
            if not more:
                return found
            found |= more


def package_of(file: str, module: str) -> str:
    """The package against which a module resolves its relative imports."""
    return module if file.endswith("__init__.py") else module.rpartition(".")[0]


def reach_of(
    file: Path,
    module: str,
    belongs: Callable[[str], bool] = is_own,
    *,
    reach: Reach | None = None,
    into_installed: bool = False,
) -> Reach:
    """The files that a module reaches, its own file included.

    module: its import name. belongs: whether the walk takes a file. reach: what other modules
    reach, to be extended. into_installed: whether the walk goes on from files that are installed.
    """
    reach = reach if reach is not None else Reach()
    waiting = [(f"{file}", module)]
    while waiting:
        source, name = waiting.pop()
        if source in reach.modules:
            continue
        reach.modules[source] = name
        named = reach.imports[source] = set()
        if not into_installed and installed_package(source) is not None:
            continue
        package = package_of(source, name)
        for imported, origin in _origins(source, package, name, belongs):
            named.add(origin)
            waiting.append((origin, imported))
    return reach


@dataclass(frozen=True, slots=True)
class ModuleText:
    """What a Python file says."""

    #: Digest of the normal form; of the bytes of a file that does not parse, as an extension.
    digest: str
    #: The modules that its import statements may mean, with their parents; relative ones have
    #: their dots.
    imports: tuple[str, ...] = ()
    #: Words of its texts, which may name files and variables; with wildcards.
    words: frozenset[str] = frozenset()
    #: Dotted names that it reads, by the function at top level that reads them (`""`: others).
    reads: Mapping[str, frozenset[tuple[str, ...]]] = field(default_factory=dict)
    #: What import statements inside functions bind: local name -> module with its dots, name (`""`
    #: for the module itself).
    bound: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def text_of(file: str) -> ModuleText:
    """What a file says; read once for each stamp."""
    return _read_text(file, *stamp(file))


@lru_cache(maxsize=16384)
def _read_text(file: str, modified: int, size: int) -> ModuleText:
    data = Path(file).read_bytes()
    try:
        tree = ast.parse(data if file.endswith(".py") else b"\0")
    except (SyntaxError, ValueError):
        return ModuleText(hashlib.sha256(data).hexdigest())
    imports: dict[str, None] = {}
    words: set[str] = set()
    reads: dict[str, set[tuple[str, ...]]] = {}
    bound: dict[str, tuple[str, str]] = {}
    for top in tree.body:
        here = reads.setdefault(top.name if isinstance(top, ast.FunctionDef) else "", set())
        lazy = isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in ast.walk(top):
            imports.update(dict.fromkeys(_names(node)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                words.update(_WORDS.findall(text))
            elif isinstance(node, ast.Name | ast.Attribute) and (chain := chain_of(node)):
                here.add(chain)
            elif lazy and isinstance(node, ast.Import | ast.ImportFrom):
                bound.update(_bindings(node))
    said = normal_form(tree).encode("utf-8", "surrogatepass")
    return ModuleText(
        hashlib.sha256(said).hexdigest(),
        tuple(imports),
        frozenset(words),
        {name: frozenset(chains) for name, chains in reads.items()},
        bound,
    )


def _origins(
    file: str, package: str, module: str, belongs: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """The modules that a file imports, and the packages it is in, by name and file.

    Only those that belong to the walk.
    """
    folder = f"{Path(file).parent}"
    inside = _with_parents(module.rpartition(".")[0])
    for name in (*inside, *list_imports(file, package)):
        origin = module_file(name, folder)
        if origin and belongs(origin):
            yield name, origin


def list_imports(file: str, package: str) -> tuple[str, ...]:
    """The names of modules that a file's import statements may mean, parents included."""
    try:
        imports = text_of(file).imports
    except OSError:
        return ()
    found: dict[str, None] = {}
    for name in imports:
        with suppress(ImportError):
            full = importlib.util.resolve_name(name, package)
            found.update(dict.fromkeys(_with_parents(full)))
    return tuple(found)


def _with_parents(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`; nothing of an empty name."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _bindings(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield alias.asname or alias.name, (module, alias.name)
        else:
            first = alias.name.partition(".")[0]
            yield alias.asname or first, (alias.name if alias.asname else first, "")


def _names(node: ast.AST) -> Iterator[str]:
    """The modules that a statement may import, or `import_module("name")` and its like."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        separator = "." if node.module else ""
        yield from (f"{base}{separator}{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and (called := chain_of(node.func)):
        first = node.args[0] if node.args else None
        if called[-1] in _IMPORTERS and isinstance(first, ast.Constant):
            yield from [first.value] if isinstance(first.value, str) else []


def module_file(name: str, folder: str = "") -> str | None:
    """The file of a module, imported or not; None for one without a Python file.

    folder: a further folder of the import path. Imports nothing.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _code_file(getattr(loaded, "__file__", None))
    package, _, last = name.rpartition(".")
    # Of a namespace package, the whole name would need the package above it to be imported.
    found = PathFinder.find_spec(last, _search_path(package, folder))
    return _code_file(found.origin) if found is not None and found.has_location else None


def _search_path(package: str, folder: str) -> list[str]:
    """The folders in which the modules of a package are; without a package, the import path."""
    if not package:
        return [*sys.path, folder] if folder else [*sys.path]
    above = module_file(package, folder)
    if above is not None:
        return [f"{Path(above).parent}"] if above.endswith("__init__.py") else []
    outer, _, last = package.rpartition(".")
    return [
        f"{part}" for path in _search_path(outer, folder) if (part := Path(path, last)).is_dir()
    ]


def _code_file(file: object) -> str | None:
    return resolve_path(file) if isinstance(file, str) and file.endswith(_CODE) else None


@lru_cache(maxsize=16384)
def resolve_path(file: str) -> str:
    """The file behind links; looked up once."""
    return f"{Path(file).resolve()}"
