"""JSON that others wrote: any text gives a document or a ValueError, and scalars have bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from search_spaces.records import Value

#: Whole numbers of foreign files are below this: they are sizes, and databases take no larger ones.
_LIMIT = 2**63


def parse_json(text: str | bytes) -> Any:
    """The document. Raises ValueError for text that is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_value(value: object) -> bool:
    """Whether a value may stand in a config or workload: a scalar, finite, of at most 64 bits."""
    return value is None or isinstance(value, bool | str) or is_finite(value)


def is_finite(value: object) -> bool:
    """Whether a value is a finite number of at most 64 bits, and no bool."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _LIMIT
    return isinstance(value, float) and math.isfinite(value)


def object_of(value: object) -> dict[str, Any]:
    """An object of the document; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def values_of(document: object) -> dict[str, Value] | None:
    """An object of scalars as a config or as dims; None for anything else."""
    if not isinstance(document, Mapping) or not all(map(is_value, document.values())):
        return None
    return dict(document)
