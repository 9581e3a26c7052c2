"""YAML as config.yaml uses it: one mapping, strict scalars, and the line of every key.

ruamel.yaml scans and parses; its events carry the lines. The scalar rules are those of the YAML 1.2
core schema without its octal and hexadecimal numbers: `on`, `yes`, `12:30` and dates stay text, and
a number with a leading zero, which YAML 1.1 reads as octal, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml import events as yaml
from ruamel.yaml.error import MarkedYAMLError, YAMLError
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
_TEXT_HINT = "quote text that contains `:`, `#`, `*` or `@`"
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
        root = _Nodes(path.name, YAML(typ="safe", pure=True).parse(text)).root()
    except YAMLError as error:
        raise _syntax_error(path, error) from error
    if root is None or root.value is None:
        raise ConfigError(f"{path.name} is empty", _START_HINT)
    if not isinstance(root.value, dict):
        raise ConfigError(
            f"{path.name}:1: expected a mapping of sections, found {_kind(root.value)}", _START_HINT
        )
    plain = _PlainData(path.name)
    return Document(path, plain.of_mapping(_with_merged(root), ()), plain.lines)


@dataclass(slots=True)
class _Node:
    """A value as it is written; an alias is the node of its anchor."""

    line: int
    #: A scalar; the items of a list, or of a mapping by their keys. Each item has its line.
    value: bool | int | float | str | list[_Item] | dict[str, _Item] | None
    #: What `<<` brings in, in this order.
    merged: list[_Node] = field(default_factory=list)
    #: Whether its end has been read.
    whole: bool = False


_Item: TypeAlias = tuple[int, _Node]


class _Nodes:
    """Makes nodes of ruamel's events. Raises `ConfigError` and `YAMLError`."""

    def __init__(self, file: str, events: Iterator[Any]) -> None:
        self._file, self._events = file, events
        self._anchors: dict[str, _Node] = {}
        self._depth = self._count = 0

    def root(self) -> _Node | None:
        """The node of the only document; None without one."""
        found = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise self._error(event, "but found another document", _TEXT_HINT)
                found = self._node(next(self._events))
        return found

    def _node(self, event: Any) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._of_alias(event)
        if event.ctag is not None:
            tag = f"{event.ctag.handle or ''}{event.ctag.suffix}"
            raise self._error(
                event,
                f"the tag {tag}; a configuration has no tags",
                "remove it; put a text that begins with `!` in quotes",
            )
        node = _Node(_line_of(event), None)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._depth += 1
        self._count += 1
        if self._count > 2 * _MAX_VALUES:  # a key and its value are two nodes
            raise _make_error(self._file)
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"{self._file}: nested too deeply", "write fewer levels")
        if isinstance(event, yaml.MappingStartEvent):
            self._fill_mapping(node)
        elif isinstance(event, yaml.SequenceStartEvent):
            node.value = [
                (_line_of(item), self._node(item)) for item in self._until(yaml.SequenceEndEvent)
            ]
        else:
            node.value = self._scalar(event)
        self._depth -= 1
        node.whole = True
        return node

    def _of_alias(self, event: Any) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise self._error(
                event, f"*{event.anchor} has no anchor before it", "put text with `*` in quotes"
            )
        if not node.whole:
            where = f"{self._file}:{node.line}"
            raise ConfigError(f"{where}: an alias refers to its own parent", "remove the alias")
        return node

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _fill_mapping(self, node: _Node) -> None:
        items: dict[str, _Item] = {}
        node.value, lines = items, dict[str, int]()
        for event in self._until(yaml.MappingEndEvent):
            key = self._node(event).value
            if not isinstance(key, str):
                shown = event.value if isinstance(event, yaml.ScalarEvent) else "a collection"
                raise self._error(event, f"key {shown} is not text", "put it in quotes")
            if key in lines:
                raise self._error(
                    event,
                    f"key {key!r} is written twice (first on line {lines[key]})",
                    "keep one of them",
                )
            lines[key] = _line_of(event)
            value = self._node(next(self._events))
            if key == "<<" and not event.style:
                node.merged = self._sources(event, value)
            else:
                items[key] = (lines[key], value)

    def _sources(self, event: Any, node: _Node) -> list[_Node]:
        nodes = [item for _, item in node.value] if isinstance(node.value, list) else [node]
        if not all(isinstance(each.value, dict) for each in nodes):
            raise self._error(
                event, "`<<` takes a mapping or a list of mappings", "name an anchor of a mapping"
            )
        return nodes

    def _scalar(self, event: Any) -> bool | int | float | str | None:
        text: str = event.value
        if event.style:  # quoted, or a block
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if len(text) > _MAX_DIGITS and _DIGITS.fullmatch(text):
            raise self._error(
                event, f"a number of {len(text)} digits", "write a smaller one, or quote text"
            )
        if _LEADING_ZERO.fullmatch(text):
            raise self._error(
                event,
                f"{text} has a leading zero, which is octal in some YAML",
                f'write {int(text)}, or "{text}" if it is text',
            )
        return text

    def _error(self, event: Any, problem: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._file}:{_line_of(event)}: {problem}", hint)


def _make_error(file: str) -> ConfigError:
    return ConfigError(
        f"{file}: more than {_MAX_VALUES:,} values",
        "aliases multiply values; write fewer, as with `ranges`, or split the file",
    )


def _line_of(event: Any) -> int:
    return int(event.start_mark.line) + 1


@dataclass(slots=True)
class _PlainData:
    """Turns nodes into Python's containers and scalars and keeps their lines."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def of_mapping(self, items: dict[str, _Item], at: KeyPath) -> dict[str, object]:
        """The plain value of a mapping at a path, with what it merges."""
        return {key: self._item(node, (*at, key), line) for key, (line, node) in items.items()}

    def _item(self, node: _Node, at: KeyPath, line: int) -> object:
        if len(self.lines) >= _MAX_VALUES:
            raise _make_error(self.file)
        self.lines[at] = line
        if isinstance(node.value, dict):
            return self.of_mapping(_with_merged(node), at)
        if isinstance(node.value, list):
            return [self._item(item, (*at, i), n) for i, (n, item) in enumerate(node.value)]
        return node.value


def _with_merged(node: _Node) -> dict[str, _Item]:
    """The items of a mapping; its own come before those that `<<` brings in."""
    assert isinstance(node.value, dict)
    found = dict(node.value)
    for source in node.merged:
        found = {**_with_merged(source), **found}
    return found


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


def _syntax_error(path: Path, error: YAMLError) -> ConfigError:
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
    return ConfigError(f"{where}: {problem}", _TEXT_HINT)


def _kind(data: object) -> str:
    if isinstance(data, list):
        return "a list"
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    name = next((name for kind, name in kinds.items() if isinstance(data, kind)), "value")
    if isinstance(data, str) and "://" in data:
        return f"the {name} {mask_passwords(data)!r}"
    return f"the {name} {masked_within(repr(data))}"
