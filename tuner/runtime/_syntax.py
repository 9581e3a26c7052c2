"""One function's source in a normal form, and the names that it reads.

The normal form is the syntax tree without comments, docstrings, line numbers and decorators. It is
the same after a function was moved or reformatted, and in every Python version.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType

#: `ops.scale.half` as ("ops", "scale", "half").
Chain = tuple[str, ...]
#: The module, with the dots of a relative import, and the name of `from module import name`.
Import = tuple[str, str]

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Fields that do not affect behaviour, or that some Python versions lack.
_SILENT = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
_ANNOTATIONS = frozenset({"annotation", "returns"})


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of one function."""

    #: Digest of the normal form.
    digest: str
    #: Names and dotted names that it reads but does not bind, sorted.
    chains: tuple[Chain, ...]
    #: Local names that its import statements bind.
    imports: Mapping[str, Import] = field(default_factory=dict)
    #: Methods that it calls on `super()`, sorted.
    supers: tuple[str, ...] = ()
    #: Modules that it imports by a literal name, as `importlib.import_module("a.b")`; sorted.
    loaded: tuple[str, ...] = ()


_files: dict[tuple[str, int, int], dict[int, list[_Function]]] = {}
_sources: dict[tuple[CodeType, str, int, int, bool], FunctionSource | None] = {}


def stamp(filename: str) -> tuple[int, int]:
    """Modification time in ns and size of a file; zeros for a missing file."""
    try:
        status = os.stat(filename)
    except (OSError, ValueError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


def source_of(code: CodeType, *, jitted: bool = False) -> FunctionSource | None:
    """The source of a code object; None where no text matches it.

    jitted: include annotations and the arguments of `@triton.jit`, which a compiler reads.
    """
    modified, size = stamp(code.co_filename)
    key = (code, code.co_filename, modified, size, jitted)
    if key not in _sources:
        node = _node(code, (code.co_filename, modified, size))
        _sources[key] = None if node is None else _read(node, code, jitted)
    return _sources[key]


def _read(node: _Function, code: CodeType, jitted: bool) -> FunctionSource:
    text: list[str] = []
    _dump(node, text, jitted)
    found = _References(node, code, jitted)
    return FunctionSource(
        digest=hashlib.sha256("".join(text).encode("utf-8", "surrogatepass")).hexdigest(),
        chains=tuple(sorted(found.chains)),
        imports=found.imports,
        supers=tuple(sorted(found.supers)),
        loaded=tuple(sorted(found.loaded)),
    )


# -- finding the node ------------------------------------------------------------------------------
def _node(code: CodeType, file: tuple[str, int, int]) -> _Function | None:
    if file not in _files:
        _files[file] = _functions(file[0])
    here = [node for node in _files[file].get(code.co_firstlineno, []) if _takes(node, code)]
    named = [node for node in here if getattr(node, "name", "<lambda>") == code.co_name]
    here = named or here
    if len(here) > 1:  # lambdas of one line
        spans = set(code.co_positions())
        here = [node for node in here if _span(node) in spans] or here
    return here[0] if here else None


def _functions(filename: str) -> dict[int, list[_Function]]:
    """The functions of a file by their first line, decorators included."""
    try:
        if os.path.isfile(filename):
            with tokenize.open(filename) as file:
                text = file.read()
        else:
            text = "".join(linecache.getlines(filename))
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, list[_Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(item.lineno for item in decorators)])
            found.setdefault(first, []).append(node)
    return found


def _takes(node: _Function, code: CodeType) -> bool:
    """Whether a definition has the arguments of the code object."""
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    count = code.co_argcount + code.co_kwonlyargcount
    # Names that begin with two underscores are mangled inside a class.
    return len(named) == count and all(
        known.endswith(item.arg) for item, known in zip(named, code.co_varnames, strict=False)
    )


def _span(node: _Function) -> tuple[int | None, ...]:
    body = node.body
    if isinstance(body, list):
        return ()
    return body.lineno, body.end_lineno, body.col_offset, body.end_col_offset


# -- the normal form -------------------------------------------------------------------------------
def _dump(node: _Function, out: list[str], jitted: bool) -> None:
    out.append(getattr(node, "name", "<lambda>"))
    for decorator in getattr(node, "decorator_list", []) if jitted else []:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("jit"):
            _write(decorator.keywords, out, jitted)
    _write(node.args, out, jitted)
    _write(getattr(node, "returns", None) if jitted else None, out, jitted)
    _write(node.body, out, jitted)


def _write(value: object, out: list[str], jitted: bool) -> None:
    if isinstance(value, list):
        out.append("[")
        for item in value:
            if not _is_text(item):
                _write(item, out, jitted)
        out.append("]")
    elif isinstance(value, ast.JoinedStr):
        # Python 3.12 adds empty texts, 3.11 and 3.13 do not.
        out.append("(JoinedStr")
        _write([v for v in value.values if not _is_empty(v)], out, jitted)
        out.append(")")
    elif isinstance(value, ast.Constant | ast.MatchSingleton):
        out.append(f"<{type(value.value).__name__} {value.value!r}>")
    elif isinstance(value, ast.AST):
        out.append(f"({type(value).__name__}")
        for name, item in ast.iter_fields(value):
            silent = name in _SILENT or (name in _ANNOTATIONS and not jitted)
            if not silent and item is not None and item != []:
                out.append(f" {name}=")
                _write(item, out, jitted)
        out.append(")")
    else:
        out.append(f"{value!r}")


def _is_empty(part: ast.expr) -> bool:
    """Whether a part of an f-string is an empty text."""
    return isinstance(part, ast.Constant) and part.value == ""


def _is_text(statement: object) -> bool:
    """Whether a statement is a docstring or another unused constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# -- the names it reads ----------------------------------------------------------------------------
class _References:
    """The names that a function reads from its surroundings."""

    def __init__(self, node: _Function, code: CodeType, jitted: bool) -> None:
        self.chains: set[Chain] = set()
        self.supers: set[str] = set()
        self.loaded: set[str] = set()
        self.imports: dict[str, Import] = {}
        self._jitted = jitted
        body = node.body if isinstance(node.body, list) else [node.body]
        roots: list[ast.AST] = [*body]
        if jitted:
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            roots += [item.annotation for item in arguments if item.annotation is not None]
        for item in (found for root in roots for found in ast.walk(root)):
            if isinstance(item, ast.Import | ast.ImportFrom):
                self.imports.update(_list_imports(item))
        self._outer = {*code.co_freevars, *_names(code), *self.imports}
        if jitted:  # the code object does not list names of annotations
            names = {n.id for r in roots for n in ast.walk(r) if isinstance(n, ast.Name)}
            self._outer |= names - {*code.co_varnames, *code.co_cellvars}
        self._first = code.co_varnames[0] if code.co_argcount else ""
        self._aliases: dict[str, Chain] = {}
        self._find_aliases(roots, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        for root in roots:
            self._visit(root)

    def _find_aliases(self, roots: list[ast.AST], arguments: tuple[str, ...]) -> None:
        """Locals that are only assigned one dotted name: `given = self._given`."""
        stores = Counter(arguments)
        pairs: list[tuple[str, ast.expr]] = []
        for node in (item for root in roots for item in ast.walk(root)):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stores[node.id] += 1
            elif isinstance(node, ast.arg):
                stores[node.arg] += 2
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                pairs += _pairs(node.targets[0], node.value)
        for name, value in pairs:
            chain = _chain(value)
            if stores[name] == 1 and chain and len(chain) > 1 and self._is_outer(chain[0]):
                self._aliases[name] = chain

    def _is_outer(self, name: str) -> bool:
        return name in self._outer or name == self._first

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and _is_super(node.value):
            self.supers.add(node.attr)
            return
        self.loaded.update(_find_loaded(node))
        if isinstance(node, ast.Assign):
            pairs = _pairs(node.targets[0], node.value) if len(node.targets) == 1 else []
            if any(name in self._aliases for name, _ in pairs):
                for name, value in pairs:
                    if name not in self._aliases:
                        self._visit(value)
                return
        chain = _chain(node) if isinstance(getattr(node, "ctx", None), ast.Load) else None
        if chain is None:
            for name, field_ in ast.iter_fields(node):
                if name not in _ANNOTATIONS or self._jitted:
                    for item in field_ if isinstance(field_, list) else [field_]:
                        if isinstance(item, ast.AST):
                            self._visit(item)
            return
        chain = (*self._aliases.get(chain[0], chain[:1]), *chain[1:])
        if self._is_outer(chain[0]):
            self.chains.add(chain)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return []
    both = zip(target.elts, value.elts, strict=False)
    return [pair for one, other in both for pair in _pairs(one, other)]


def _chain(node: ast.AST) -> Chain | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def _is_super(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _find_loaded(node: ast.AST) -> Iterator[str]:
    """The module that `import_module("name")` or `__import__("name")` imports."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called, name = _chain(node.func) or ("",), node.args[0].value
        if called[-1] in ("import_module", "__import__") and isinstance(name, str):
            yield name


def _list_imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            bound = alias.asname or alias.name.partition(".")[0]
            yield bound, (alias.name if alias.asname else bound, "")
        else:
            module = "." * node.level + (node.module or "")
            yield alias.asname or alias.name, (module, alias.name)


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes, including those of nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
