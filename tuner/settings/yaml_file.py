"""YAML as the farm reads it: one mapping, no surprises, and the line of every key.

The YAML 1.2 core schema is used where YAML 1.1 surprises: `on`, `yes` and `12:30` stay text, and a
number with a leading zero, an octal one in YAML 1.1, is refused rather than guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import yaml

from results_db.masking import masked_within
from tuner.settings.models import ConfigError

Key: TypeAlias = str | int
KeyPath: TypeAlias = tuple[Key, ...]

#: Values up to which a file is read, those of aliases counted wherever they stand.
_VALUES = 100_000
#: Digits up to which a number is one; Python itself refuses some thousands.
_DIGITS = 100
_LEADING_ZERO = re.compile(r"^[-+]?0[0-9]+$")
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$",
     "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("merge", r"^<<$", "<"),
)  # fmt: skip


class _TagFound(yaml.MarkedYAMLError):
    """A tag, which would make anything of a value."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules above instead of YAML 1.1's, and without tags."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def scan_tag(self) -> yaml.TagToken:
        token = super().scan_tag()
        handle, suffix = token.value
        raise _TagFound(problem=f"the tag {handle or ''}{suffix}", problem_mark=token.start_mark)


for _tag, _pattern, _firsts in _SCALARS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(_pattern),
        ["" if first == "\0" else first for first in _firsts],
    )


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its data and the 1-based line on which each dotted path is written."""

    path: Path
    data: dict[str, object]
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """`config.yaml:12` for the nearest written ancestor of `path`."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path)
        return f"{self.path.name}:{line}" if line else self.path.name


def read(path: Path) -> Document:
    """Parse one configuration file.

    Raises `ConfigError`, with the line, for what cannot be read, is not YAML, is not one mapping,
    repeats a key, has a tag, or contains a number whose meaning depends on the YAML version.
    """
    text = _read_text(path)
    try:
        data, lines = _parse(path, text)
    except yaml.YAMLError as error:
        raise _yaml_error(path, error) from error
    except RecursionError:
        raise ConfigError(f"{path.name}: nested too deeply", "write fewer levels") from None
    if data is None:
        raise ConfigError(f"{path.name} is empty", _START)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path.name}:1: expected a mapping of sections, found {_kind(data)}", _START
        )
    return Document(path, data, lines)


def _parse(path: Path, text: str) -> tuple[object, dict[KeyPath, int]]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines = dict(islice(_walk(path, node, (), ()), _VALUES + 1))
        if len(lines) > _VALUES:
            raise ConfigError(
                f"{path.name}: more than {_VALUES:,} values",
                "aliases multiply; write what is meant, or several files",
            )
        return loader.construct_document(node) if node is not None else None, lines
    finally:
        loader.dispose()


_START = "start it with `version: 1`, or let `tuner init` write an example"


def _read_text(path: Path) -> str:
    try:
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


def _walk(
    path: Path, node: yaml.Node | None, at: KeyPath, parents: tuple[yaml.Node, ...]
) -> Iterator[tuple[KeyPath, int]]:
    """Yield the line of every path below `node`, refusing what a plain load would swallow."""
    if node is None:
        return
    line = node.start_mark.line + 1
    if node in parents:
        raise ConfigError(f"{path.name}:{line}: an alias refers to its own parent", "remove it")
    inside = (*parents, node)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, key_line = _key(path, key)
            if name in seen:
                raise ConfigError(
                    f"{path.name}:{key_line}: key {name!r} is written twice "
                    f"(first on line {seen[name]})",
                    "keep one of them",
                )
            seen[name] = key_line
            yield (*at, name), key_line
            yield from _walk(path, value, at if name == "<<" else (*at, name), inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _walk(path, item, (*at, index), inside)
    elif isinstance(node, yaml.ScalarNode):
        _check_number(node, f"{path.name}:{line}")


def _check_number(node: yaml.ScalarNode, where: str) -> None:
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _DIGITS:
        raise ConfigError(
            f"{where}: a number of {len(node.value)} digits", "write a smaller one, or quote text"
        )
    if node.style is None and len(node.value) <= _DIGITS and _LEADING_ZERO.match(node.value):
        raise ConfigError(
            f"{where}: {node.value} has a leading zero, which is octal in some YAML",
            f'write {int(node.value)}, or "{node.value}" if it is text',
        )


def _key(path: Path, key: yaml.Node) -> tuple[str, int]:
    line = key.start_mark.line + 1
    plain = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
    if not isinstance(key, yaml.ScalarNode) or key.tag not in plain:
        shown = key.value if isinstance(key, yaml.ScalarNode) else "a collection"
        raise ConfigError(f"{path.name}:{line}: key {shown} is not text", "put it in quotes")
    return str(key.value), line


def _yaml_error(path: Path, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path.name}:{mark.line + 1}" if mark is not None else path.name
    if isinstance(error, yaml.reader.ReaderError):
        return ConfigError(
            f"{path.name}: the character {chr(error.character)!a} at position {error.position} "
            "is none that YAML allows",
            "remove it",
        )
    if isinstance(error, _TagFound):
        return ConfigError(
            f"{where}: {error.problem}; a configuration has no tags",
            "remove it; put a text that begins with `!` in quotes",
        )
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    if "'\\t'" in str(problem):
        return ConfigError(f"{where}: a tab where YAML wants blanks", "indent with blanks only")
    return ConfigError(f"{where}: {problem}", "quote text that contains `:`, `#`, `*` or `@`")


def _kind(data: object) -> str:
    if isinstance(data, list):
        return "a list"
    return f"the {type(data).__name__} {masked_within(repr(data))}"
