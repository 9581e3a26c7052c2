"""Constraints: named, pure predicates over config, workload and device."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from search_spaces.records import Config, Device, Workload

Check: TypeAlias = Callable[[Config, Workload, Device], bool]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule every point keeps. `reason` completes the sentence "not feasible, because ...".

    check: pure; True where the config is allowed. It sees complete configs only, in which inactive
    conditional parameters are absent: read those with `config.get`.
    """

    name: str
    check: Check
    reason: str

    def describe(self) -> dict[str, object]:
        """Name, reason and a digest of the source: results of another rule are not reused."""
        return {"name": self.name, "reason": self.reason, "source": _source_digest(self.check)}


class Preference(Constraint):
    """A rule of the search alone: what breaks it is right, and only not worth trying here.

    A table may give a workload such a config, where the nearest one that was measured has it.
    """

    __slots__ = ()


def _source_digest(check: Check) -> str:
    """A digest of the source and of what it closes over, equal in every process."""
    try:
        text = inspect.getsource(check)
    except (OSError, TypeError):
        text = getattr(check, "__qualname__", type(check).__qualname__)
    closed: dict[str, object] = {}
    if inspect.isfunction(check):
        variables = inspect.getclosurevars(check).nonlocals
        closed = {name: value for name, value in variables.items() if _is_plain(value)}
    sha = hashlib.sha256(text.encode())
    sha.update(json.dumps(closed, sort_keys=True).encode())
    return sha.hexdigest()[:16]


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
