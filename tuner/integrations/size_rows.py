"""The JSON of size tables: an object of configs by size, as vLLM and SGLang write and read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from search_spaces.errors import TunerError
from search_spaces.foreign_json import is_value, parse_json, values_of
from search_spaces.records import Config

#: Configs by size.
Rows: TypeAlias = Mapping[int, Config]
_TRITON = "triton_version"
_REMEDY = "the file must be a JSON object of configs by size"


def parsed_rows(text: str, where: str, *, says_triton: bool) -> tuple[dict[int, Config], str]:
    """The rows of a file and the Triton that made it; raises TunerError, as the library would fail.

    says_triton: the library takes the name `triton_version`; others fail on it.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        raise TunerError(f"{where}: not JSON (line {line}: {error})", _REMEDY) from None
    if not isinstance(document, dict):
        raise TunerError(f"{where}: not an object", _REMEDY)
    triton = document.pop(_TRITON, "") if says_triton else ""
    rows = {_size(name, where): _config(row, name, where) for name, row in document.items()}
    if not rows:
        raise TunerError(f"{where}: has no rows", _REMEDY)
    return rows, f"{triton}"


def text_of_rows(rows: Rows, triton: str = "") -> str:
    """Four-space indent, ascending sizes, a newline at the end: equal bytes for equal rows."""
    document: dict[str, Any] = {_TRITON: triton} if triton else {}
    document |= {f"{size}": dict(rows[size]) for size in sorted(rows)}
    return json.dumps(document, indent=4, allow_nan=False) + "\n"


def _size(name: str, where: str) -> int:
    try:
        size = int(name)
    except ValueError:
        size = 0
    if size < 1 or not is_value(size):
        raise TunerError(f"{where}: {name!r} is no size", _REMEDY)
    return size


def _config(row: object, name: str, where: str) -> Config:
    config = values_of(row)
    if config is None:
        raise TunerError(f"{where}: the row of size {name} is no config", _REMEDY)
    return config
