"""YAML as config.yaml uses it: one mapping, strict scalars, and the line of every key.

ruamel.yaml composes nodes, which have their lines. The scalar rules are those of the YAML 1.2
core schema without its octal and hexadecimal numbers: `on`, `yes`, `12:30` and dates stay text, and
a number with a leading zero, which YAML 1.1 reads as octal, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from results_db.masking import mask_passwords, masked_within
from tuner.settings.sections import ConfigError

Key: TypeAlias = str | int
KeyPath: TypeAlias = tuple[Key, ...]

#: The most values of a file; those behind an alias count at every place that uses it.
_MAX_VALUES = 100_000
#: The most characters of a file, which are some seconds of parsing.
_MAX_CHARACTERS = 2_000_000
#: The most digits of an integer; Python itself refuses to read some thousands.
_MAX_DIGITS = 100
_MAX_DEPTH = 100
_DIGITS = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_INT = re.compile(rf"[-+]?(?:0|[1-9][0-9]{{0,{_MAX_DIGITS - 1}}})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
#: Plain scalars that are neither text nor numbers.
_WORDS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("~", "null", "Null", "NULL", ""), None),
}
#: Of what has no tag of its own.
_CORE_TAGS = "tag:yaml.org,2002:"
_TEXT_HINT = "quote text that contains `:`, `#`, `*` or `@`"
_COLUMN_HINT = "keys of one mapping, and items of one list, begin in the same column"
_START_HINT = "start it with `version: 1`, or let `tuner init` write an example"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file."""

    path: Path
    #: Plain dicts, lists and scalars.
    data: dict[str, object]
    #: The 1-based line on which each path is written.
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """`config.yaml:12` for a path, or for its nearest ancestor in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path)
        return f"{self.path.name}:{line}" if line else self.path.name


def read(path: Path) -> Document:
    """Parse one configuration file.

    Raises `ConfigError`, with the line, for a file that cannot be read, is not YAML, is not one
    mapping, repeats a key, has a tag, or has a number that versions of YAML read differently.
    """
    text = _read_text(path)
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(
            f"{path.name}: {len(text):,} characters; a configuration has at most "
            f"{_MAX_CHARACTERS:,}",
            "split the file, or give sizes as `ranges` with histograms",
        )
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        raise _syntax_error(path, error, text) from error
    except RecursionError:
        raise ConfigError(f"{path.name}: nested too deeply", "write fewer levels") from None
    plain = _PlainData(path.name)
    if root is None or (isinstance(root, ScalarNode) and plain.scalar(root) is None):
        raise ConfigError(f"{path.name} is empty", _START_HINT)
    if not isinstance(root, MappingNode):
        found = _kind(plain.scalar(root) if isinstance(root, ScalarNode) else [])
        raise ConfigError(
            f"{path.name}:1: expected a mapping of sections, found {found}", _START_HINT
        )
    return Document(path, plain.of_mapping(root, ()), plain.lines)


@dataclass(slots=True)
class _PlainData:
    """Turns ruamel's nodes into Python's containers and scalars and keeps their lines.

    An alias is the node of its anchor. Raises `ConfigError`.
    """

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    #: The nodes that contain the present one.
    _inside: list[Node] = field(default_factory=list)

    def of_mapping(self, node: MappingNode, at: KeyPath) -> dict[str, object]:
        """The plain value of a mapping at a path, with what it merges."""
        self._enter(node)
        found = {
            key: self._value(value, (*at, key), line)
            for key, (line, value) in self._items(node).items()
        }
        self._inside.pop()
        return found

    def _enter(self, node: Node) -> None:
        self._refuse_tag(node)
        if any(node is each for each in self._inside):
            raise _error(self.file, node, "an alias refers to its own parent", "remove the alias")
        if len(self._inside) > _MAX_DEPTH:
            raise ConfigError(f"{self.file}: nested too deeply", "write fewer levels")
        self._inside.append(node)

    def _value(self, node: Node, at: KeyPath, line: int) -> object:
        if len(self.lines) >= _MAX_VALUES:
            raise ConfigError(
                f"{self.file}: more than {_MAX_VALUES:,} values",
                "aliases multiply values; write fewer, as with `ranges`, or split the file",
            )
        self.lines[at] = line
        if isinstance(node, MappingNode):
            return self.of_mapping(node, at)
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        self._enter(node)
        items = [self._value(each, (*at, i), _line_of(each)) for i, each in enumerate(node.value)]
        self._inside.pop()
        return items

    def _items(self, node: MappingNode) -> dict[str, tuple[int, Node]]:
        """The items of a mapping with their lines; its own come before those that `<<` brings."""
        own: dict[str, tuple[int, Node]] = {}
        merged: dict[str, tuple[int, Node]] = {}
        lines: dict[str, int] = {}
        for name, value in node.value:
            key = self.scalar(name) if isinstance(name, ScalarNode) else None
            if not isinstance(key, str):
                shown = name.value if isinstance(name, ScalarNode) else "a collection"
                raise _error(self.file, name, f"key {shown} is not text", "put it in quotes")
            if key in lines:
                first = f"key {key!r} is written twice (first on line {lines[key]})"
                raise _error(self.file, name, first, "keep one of them")
            lines[key] = _line_of(name)
            if key == "<<" and not name.style:
                merged = self._collect_merges(name, value)
            else:
                own[key] = (lines[key], value)
        return {**merged, **own}

    def _collect_merges(self, key: Node, node: Node) -> dict[str, tuple[int, Node]]:
        found: dict[str, tuple[int, Node]] = {}
        self._enter(node)
        for each in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(each, MappingNode):
                text = "`<<` takes a mapping or a list of mappings"
                raise _error(self.file, key, text, "name an anchor of a mapping")
            found = {**self._items(each), **found}
        self._inside.pop()
        return found

    def scalar(self, node: ScalarNode) -> bool | int | float | str | None:
        """The value of a scalar as it is written."""
        self._refuse_tag(node)
        text: str = node.value
        if node.style:  # quoted, or a block
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if len(text) > _MAX_DIGITS and _DIGITS.fullmatch(text):
            digits = f"a number of {len(text)} digits"
            raise _error(self.file, node, digits, "write a smaller one, or quote text")
        if _LEADING_ZERO.fullmatch(text):
            octal = f"{text} has a leading zero, which is octal in some YAML"
            raise _error(self.file, node, octal, f'write {int(text)}, or "{text}" if it is text')
        return text

    def _refuse_tag(self, node: Node) -> None:
        if node.ctag.handle or not f"{node.tag}".startswith(_CORE_TAGS):
            tag = f"{node.ctag.handle or ''}{node.ctag.suffix}"
            hint = "remove it; put a text that begins with `!` in quotes"
            raise _error(self.file, node, f"the tag {tag}; a configuration has no tags", hint)


def _error(file: str, node: Node, problem: str, hint: str) -> ConfigError:
    return ConfigError(f"{file}:{_line_of(node)}: {problem}", hint)


def _line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _read_text(path: Path) -> str:
    try:
        # A pipe of the shell, as `<(...)` makes it, has a writer; reading any other may never end.
        if path.is_fifo() and not path.is_relative_to("/dev"):
            raise ConfigError(f"{path} is a pipe, not a file", "name a file with --config")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file", "name an existing file with --config, or run `tuner init`"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder", "name the file in it with --config") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path.name}: not UTF-8 text (byte {error.start})", "save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", "check its permissions"
        ) from None


def _syntax_error(path: Path, error: YAMLError, text: str) -> ConfigError:
    if isinstance(error, ReaderError):
        return ConfigError(
            f"{path.name}: the character {chr(error.character)!a} at position {error.position} "
            "is not allowed in YAML",
            "remove it",
        )
    marked = error if isinstance(error, MarkedYAMLError) else None
    mark = marked.problem_mark if marked else None
    where = f"{path.name}:{mark.line + 1}" if mark is not None else path.name
    problem = f"{(marked.problem if marked else None) or 'not YAML'}"
    if "'\\t'" in problem:
        return ConfigError(f"{where}: a tab in the indentation", "indent with blanks only")
    if mark is not None:
        line = text.splitlines()[mark.line] if mark.index < len(text) else ""
        if _is_indentation(problem, line[: mark.column]):
            blanks = len(line) - len(line.lstrip())
            return ConfigError(
                f"{where}: wrong indentation (column {blanks + 1}): begin the line in the column "
                "of those that it belongs to",
                _COLUMN_HINT,
            )
    return ConfigError(f"{where}: {problem}", _TEXT_HINT)


def _is_indentation(problem: str, before: str) -> bool:
    """Whether a line begins in a wrong column. before: its part before the place of the problem."""
    if problem.startswith("mapping values are not allowed"):
        return ": " not in before  # else it is the second colon of `key: a: b`
    return problem.startswith("expected <block end>") and not before.strip()


def _kind(data: object) -> str:
    if isinstance(data, list):
        return "a list"
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    name = next((name for kind, name in kinds.items() if isinstance(data, kind)), "value")
    if isinstance(data, str) and "://" in data:
        return f"the {name} {mask_passwords(data)!r}"
    return f"the {name} {masked_within(repr(data))}"
