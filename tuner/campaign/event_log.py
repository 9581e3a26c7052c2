"""The events of one run in a file, from which `tuner replay` repeats the run's decisions.

The file is JSONL. Its first line holds what the engine was made from; each further line holds one
event with the engine's clock; the last line holds a digest of the engine's final state. Binaries of
artifacts are left out, because no decision depends on them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import digest
from search_spaces.space import BoundSpace
from tuner.engine import Engine, Event, TaskSpec
from tuner.engine.state_digest import state_digest

FORMAT, VERSION = "tuner-events", 1
#: Fields of records that no decision depends on: compiled files and their cache keys.
_LEFT_OUT = {"Artifact": {"files", "keys"}}
#: Fields of a task that are made again: from the kernel, and from the strategy's name and seed.
REMADE = ("space", "strategy")
_log = logging.getLogger(__name__)


class EventLog:
    """Writes the events of one run. A full disk ends the log and not the run."""

    def __init__(self, path: Path, engine: Engine) -> None:
        """Begin the file; what was at `path` is overwritten. Raises `TunerError`."""
        self._path, self._engine = path, engine
        self._events = 0
        self._failed = False
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise TunerError(
                f"--events: {path} cannot be written: {error.strerror}", "name another file"
            ) from error
        self._write(header(engine))

    def event(self, event: Event, now: float) -> None:
        """Write an event, before the engine takes it."""
        self._events += 1
        self._write({"at": now, "event": type(event).__name__, **plain(event)})

    def close(self) -> None:
        """Write the digest of the engine's state and close the file."""
        self._write({"events": self._events, "digest": state_digest(self._engine)})
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._failed:
            _log.warning("the events of this run are not kept in %s: %s", self._path, error)
        self._failed = True


def header(engine: Engine) -> dict[str, Any]:
    """The first line: everything that a new engine in the same initial state is made from."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "builders": engine.builders,
        "in_flight": engine.in_flight,
        "tasks": [_task(spec) for spec in engine.specs],
    }


def space_digest(space: BoundSpace) -> str:
    """A digest of the parameters of a space and their values."""
    return digest([[item.name, list(item.values())] for item in space.parameters])


def _task(spec: TaskSpec) -> dict[str, Any]:
    values = {
        field.name: plain(getattr(spec, field.name))
        for field in fields(spec)
        if field.name not in REMADE
    }
    return {**values, "space": space_digest(spec.space), "strategy": spec.strategy.name}


def plain(value: Any) -> Any:
    """A value as JSON has it. Fields of records that hold their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        left_out = _LEFT_OUT.get(type(value).__name__, set())
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in left_out and getattr(value, field.name) != field.default
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
