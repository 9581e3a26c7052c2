"""Texts like a good JSON document, but with one other value, one name less, or damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

#: As written in a file; the last ones are more than Python's parser or its floats take.
_OTHERS = (
    "null",
    "true",
    "-1",
    "0",
    "1.5",
    '"text"',
    '""',
    '"\\u0000\\ud800"',
    "[]",
    "[[1]]",
    "{}",
)
_OTHERS += ('{"a": {}}', "1e999", "NaN", "9" * 30, "9" * 5000, "[" * 100_000)
_MARK = "<other>"


def hostile_texts(document: Any) -> Iterator[str]:
    """Every value of the document replaced by others in turn, or left out; `document` is kept."""
    yield from ("", "[", "[" * 100_000, "{" * 10, "null", "[]", '"text"')
    for changed in _changed(document):
        text = json.dumps(changed)
        if f'"{_MARK}"' in text:
            yield from (text.replace(f'"{_MARK}"', other) for other in _OTHERS)
        else:
            yield text


def _changed(value: Any) -> Iterator[Any]:
    """Copies of a value, each with one part replaced by the mark or left out."""
    yield _MARK
    if isinstance(value, dict):
        for name, part in value.items():
            yield {other: rest for other, rest in value.items() if other != name}
            yield from ({**value, name: changed} for changed in _changed(part))
    if isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], changed, *value[at + 1 :]] for changed in _changed(part))
