"""YAML as config.yaml uses it: one mapping, strict scalars, and the line of every key.

ruamel.yaml parses, reports positions and sees repeated keys. The scalar rules are those of the YAML
1.2 core schema without its octal and hexadecimal numbers: `on`, `yes`, `12:30` and dates stay text,
and a number with a leading zero, which YAML 1.1 reads as octal, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scanner import RoundTripScanner
from ruamel.yaml.tokens import TagToken

from results_db.masking import mask_passwords, masked_within
from tuner.settings.sections import ConfigError

Key: TypeAlias = str | int
KeyPath: TypeAlias = tuple[Key, ...]

#: The most values of a file; those behind an alias count at every place that uses it.
_MAX_VALUES = 100_000
#: The most digits of an integer; Python itself refuses to read some thousands.
_MAX_DIGITS = 100
_MAX_DEPTH = 100
_DIGITS = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_TEXT_TAG = "tag:yaml.org,2002:str"
#: Tag, pattern and first characters of plain scalars that are not text.
_SCALARS: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", rf"^[-+]?(?:0|[1-9][0-9]{{0,{_MAX_DIGITS - 1}}})$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$",
     list("-+.0123456789")),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^<<$", ["<"]),
)  # fmt: skip
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
    try:
        data = _parser().load(text)
    except _RefusedError as error:
        line = f"{path.name}:{error.line}"
        raise ConfigError(f"{line}: {error.problem}", error.hint) from None
    except YAMLError as error:
        raise _syntax_error(path, error) from error
    except RecursionError:
        raise ConfigError(f"{path.name}: nested too deeply", "write fewer levels") from None
    if data is None:
        raise ConfigError(f"{path.name} is empty", _START_HINT)
    if not isinstance(data, CommentedMap):
        raise ConfigError(
            f"{path.name}:1: expected a mapping of sections, found {_kind(data)}", _START_HINT
        )
    plain = _PlainData(path.name)
    return Document(path, cast("dict[str, object]", plain.of(data, (), 1)), plain.lines)


class _RefusedError(Exception):
    """YAML that a configuration may not contain."""

    def __init__(self, problem: str, hint: str, line: int) -> None:
        super().__init__(problem)
        self.problem, self.hint, self.line = problem, hint, line


class _Scanner(RoundTripScanner):
    """A scanner that refuses tags, which could turn a value into any type."""

    def scan_tag(self) -> TagToken:
        token: TagToken = super().scan_tag()
        handle, suffix = token.value
        raise _RefusedError(
            f"the tag {handle or ''}{suffix}; a configuration has no tags",
            "remove it; put a text that begins with `!` in quotes",
            token.start_mark.line + 1,
        )


class _Composer(Composer):
    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False


@lru_cache(maxsize=1)
def _rules() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Tags and patterns by the first character of a plain scalar."""
    rules: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, firsts in _SCALARS:
        for first in firsts:
            rules.setdefault(first, []).append((f"tag:yaml.org,2002:{tag}", re.compile(pattern)))
    return rules


class _Resolver(VersionedResolver):
    """The scalar rules of this module instead of those of a YAML version."""

    @property
    def versioned_resolver(self) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
        return _rules()

    @property
    def processing_version(self) -> tuple[int, int]:
        return (1, 2)


class _Constructor(RoundTripConstructor):
    """A constructor that refuses recursive aliases and names both lines of a repeated key."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node in self.recursive_objects and node not in self.constructed_objects:
            line = node.start_mark.line + 1
            raise _RefusedError("an alias refers to its own parent", "remove the alias", line)
        return super().construct_object(node, deep)

    def check_mapping_key(
        self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any
    ) -> bool:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode) or f"{key_node.tag}" != _TEXT_TAG:
            shown = key_node.value if isinstance(key_node, ScalarNode) else "a collection"
            raise _RefusedError(f"key {shown} is not text", "put it in quotes", line)
        if key in mapping:
            first = mapping.lc.key(key)[0] + 1
            raise _RefusedError(
                f"key {f'{key}'!r} is written twice (first on line {first})",
                "keep one of them",
                line,
            )
        return True


def _parser() -> YAML:
    parser = YAML(typ="rt", pure=True)
    parser.Scanner, parser.Composer = _Scanner, _Composer
    parser.Resolver, parser.Constructor = _Resolver, _Constructor
    # Quoted texts then differ in type from plain ones.
    parser.preserve_quotes = True
    parser.max_depth = _MAX_DEPTH
    return parser


@dataclass(slots=True)
class _PlainData:
    """Turns ruamel's containers and scalars into Python's and keeps their lines."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def of(self, value: Any, at: KeyPath, line: int) -> object:
        """The plain value at a path that is written on a line."""
        if isinstance(value, CommentedMap):
            items = ((key, value[key], _line_of(value, key)) for key in value)
            return {str(k): self._item(v, (*at, str(k)), n) for k, v, n in items}
        if isinstance(value, CommentedSeq):
            numbered = ((i, item, value.lc.item(i)[0] + 1) for i, item in enumerate(value))
            return [self._item(v, (*at, i), n) for i, v, n in numbered]
        return self._scalar(value, line)

    def _item(self, value: Any, at: KeyPath, line: int) -> object:
        if len(self.lines) >= _MAX_VALUES:
            raise ConfigError(
                f"{self.file}: more than {_MAX_VALUES:,} values",
                "aliases multiply values; write them out, or split the file",
            )
        self.lines[at] = line
        return self.of(value, at, line)

    def _scalar(self, value: Any, line: int) -> object:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            # ruamel has a type for booleans with an anchor, which is an int.
            return bool(value) if type(value).__name__ == "ScalarBoolean" else int(value)
        if isinstance(value, float):
            return float(value)
        if type(value) is str:  # a plain scalar
            self._check_number(value, f"{self.file}:{line}")
        return str(value)

    def _check_number(self, text: str, where: str) -> None:
        if len(text) > _MAX_DIGITS and _DIGITS.fullmatch(text):
            raise ConfigError(
                f"{where}: a number of {len(text)} digits", "write a smaller one, or quote text"
            )
        if _LEADING_ZERO.fullmatch(text):
            raise ConfigError(
                f"{where}: {text} has a leading zero, which is octal in some YAML",
                f'write {int(text)}, or "{text}" if it is text',
            )


def _line_of(mapping: CommentedMap, key: object) -> int:
    """The line of a key, also of one that a merge (`<<`) brings in."""
    for source in (mapping, *_list_merged(mapping)):
        if source.lc.data and key in source.lc.data:
            return int(source.lc.key(key)[0]) + 1
    return int(mapping.lc.line) + 1


def _list_merged(mapping: CommentedMap) -> Iterator[CommentedMap]:
    for source in mapping.merge:
        source = source[1] if isinstance(source, tuple) else source
        yield source
        yield from _list_merged(source)


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


def _syntax_error(path: Path, error: YAMLError) -> ConfigError:
    if isinstance(error, ReaderError):
        return ConfigError(
            f"{path.name}: the character {chr(error.character)!a} at position {error.position} "
            "is not allowed in YAML",
            "remove it",
        )
    marked = error if isinstance(error, MarkedYAMLError) else None
    if type(error).__name__ == "MaxDepthExceededError":
        return ConfigError(f"{path.name}: nested too deeply", "write fewer levels")
    mark = marked.problem_mark if marked else None
    where = f"{path.name}:{mark.line + 1}" if mark is not None else path.name
    problem = f"{(marked.problem if marked else None) or 'not YAML'}"
    if "'\\t'" in problem:
        return ConfigError(f"{where}: a tab in the indentation", "indent with blanks only")
    return ConfigError(f"{where}: {problem}", "quote text that contains `:`, `#`, `*` or `@`")


def _kind(data: object) -> str:
    if isinstance(data, CommentedSeq):
        return "a list"
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    name = next((name for kind, name in kinds.items() if isinstance(data, kind)), "value")
    if isinstance(data, str) and "://" in data:
        return f"the {name} {mask_passwords(data)!r}"
    return f"the {name} {masked_within(repr(data))}"
