"""Text cells of CSV files that spreadsheets do not run as formulas."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def inert_cell(value: Value) -> Value | str:
    """The value; a text that a spreadsheet would run as a formula gets the prefix `'`.

    Numbers are unchanged, including numbers in text form.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
