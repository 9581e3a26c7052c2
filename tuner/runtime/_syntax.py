"""Python source in a normal form, and the names that a jitted function reads.

The normal form is the syntax tree without comments, docstrings and line numbers. It is the same
after code was reformatted, and in every Python version.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import tokenize
from dataclasses import dataclass
from types import CodeType

#: `ops.scale.half` as ("ops", "scale", "half").
Chain = tuple[str, ...]

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Fields that do not affect behaviour.
_SILENT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of one jitted function."""

    #: Digest of the normal form.
    digest: str
    #: Names and dotted names that it reads but does not bind, sorted.
    chains: tuple[Chain, ...]


_files: dict[tuple[str, int, int], dict[int, list[_Function]]] = {}
_sources: dict[tuple[CodeType, str, int, int], FunctionSource | None] = {}


def stamp(filename: str) -> tuple[int, int]:
    """Modification time in ns and size of a file; zeros for a missing file."""
    try:
        status = os.stat(filename)
    except (OSError, ValueError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


def normal_form(tree: ast.AST) -> str:
    """A syntax tree as text that its layout, its docstrings and the Python version leave alone."""
    out: list[str] = []
    _write(tree, out)
    return "".join(out)


def source_of(code: CodeType) -> FunctionSource | None:
    """The source of a jitted function's code object; None where no text matches it."""
    modified, size = stamp(code.co_filename)
    key = (code, code.co_filename, modified, size)
    if key not in _sources:
        node = _node(code, (code.co_filename, modified, size))
        _sources[key] = None if node is None else _read(node, code)
    return _sources[key]


def chain_of(node: ast.AST) -> Chain | None:
    """A name or dotted name as its parts; None for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def _read(node: _Function, code: CodeType) -> FunctionSource:
    out = [getattr(node, "name", "<lambda>")]
    for decorator in getattr(node, "decorator_list", []):
        # The arguments of `@triton.jit` reach the compiler; other decorators are host code.
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("jit"):
            _write(decorator.keywords, out)
    for part in (node.args, getattr(node, "returns", None), node.body):
        _write(part, out)
    bound = {*code.co_varnames, *code.co_cellvars}
    body = node.body if isinstance(node.body, list) else [node.body]
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    roots = [*body, *(item.annotation for item in arguments if item.annotation is not None)]
    chains: set[Chain] = set()
    for root in roots:
        _collect(root, bound, chains)
    digest = hashlib.sha256("".join(out).encode("utf-8", "surrogatepass")).hexdigest()
    return FunctionSource(digest, tuple(sorted(chains)))


def _collect(node: ast.AST, bound: set[str], chains: set[Chain]) -> None:
    """Add the dotted names that a tree reads from outside to `chains`."""
    chain = chain_of(node) if isinstance(getattr(node, "ctx", None), ast.Load) else None
    if chain is None:
        for item in ast.iter_child_nodes(node):
            _collect(item, bound, chains)
    elif chain[0] not in bound:
        chains.add(chain)


# -- finding the node ------------------------------------------------------------------------------
def _node(code: CodeType, file: tuple[str, int, int]) -> _Function | None:
    if file not in _files:
        _files[file] = _functions(file[0])
    here = [node for node in _files[file].get(code.co_firstlineno, []) if _takes(node, code)]
    named = [node for node in here if getattr(node, "name", "<lambda>") == code.co_name]
    return next(iter(named or here), None)


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


# -- the normal form -------------------------------------------------------------------------------
def _write(value: object, out: list[str]) -> None:
    if isinstance(value, list):
        out.append("[")
        for item in value:
            if not _is_text(item):
                _write(item, out)
        out.append("]")
    elif isinstance(value, ast.Constant | ast.MatchSingleton):
        out.append(f"<{type(value.value).__name__} {value.value!r}>")
    elif isinstance(value, ast.AST):
        out.append(f"({type(value).__name__}")
        for name in value._fields:
            item = getattr(value, name, None)
            if item is not None and item != [] and name not in _SILENT:
                if isinstance(value, ast.JoinedStr):
                    # Python 3.12 adds empty texts, 3.11 and 3.13 do not.
                    item = [part for part in item if not _is_empty(part)]
                out.append(f" {name}=")
                _write(item, out)
        out.append(")")
    else:
        out.append(f"{value!r}")


def _is_empty(part: ast.expr) -> bool:
    """Whether a part of an f-string is an empty text."""
    return isinstance(part, ast.Constant) and part.value == ""


def _is_text(statement: object) -> bool:
    """Whether a statement is a docstring or another unused constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
