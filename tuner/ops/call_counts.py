"""The kinds of calls that operators have had: of a scope, or those that a process has missed.

With `TUNER_RECORD=FOLDER`, a process writes at its end what no entry of a table served, as a file
of `search_spaces.recorded.model_calls`. Decisions count calls anyway, so that a call costs nothing
more.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, write_calls
from search_spaces.records import Value
from tuner.ops.operator import BEFORE_FORGETTING, OPERATORS, Decision

#: Files that a folder of records holds; the oldest are deleted.
MOST_FILES = 16
_TABLES = "TUNER_TABLES"


class Scope:
    """Decisions of their own, by these tables first; inside of it for the whole process."""

    def __init__(self, *tables: Path) -> None:
        self._tables = [f"{each.absolute()}" for each in tables]
        self._kept: dict[str, Any] = {name: {} for name in OPERATORS}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Operators decide as here, and count here, until the block ends."""
        former = os.environ.get(_TABLES)
        os.environ[_TABLES] = os.pathsep.join(filter(None, [*self._tables, former]))
        self._exchange()
        try:
            yield
        finally:
            self._exchange()
            if former is None:
                del os.environ[_TABLES]
            else:
                os.environ[_TABLES] = former

    def _exchange(self) -> None:
        for name, kept in self._kept.items():
            self._kept[name] = OPERATORS[name].exchange(kept)

    @property
    def decisions(self) -> list[Decision]:
        """Those made and counted inside, of calls that a kernel can take; to be read outside."""
        found = [each for kept in self._kept.values() for each in kept.values()]
        return [each for each in found if each.kernel]


class Misses:
    """What no entry of a table has served in this process, with its frequency."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[tuple[str, tuple[tuple[str, Value], ...]]] = Counter()

    def add(self, decisions: Sequence[Decision]) -> None:
        """Count the calls of decisions that are about to be forgotten."""
        for each in decisions:
            if each.kernel and each.calls and not (each.choice.known or each.waits):
                self._counts[each.kernel, (*each.key.items(),)] += each.calls

    def write(self) -> None:
        """Write one file, if there is anything to write; a folder that is full stays as it is."""
        for operator in OPERATORS.values():
            self.add(operator.decisions())
        if not self._counts:
            return
        calls = [ModelCall(name, dict(dims), n) for (name, dims), n in self._counts.items()]
        path = self._folder / f"calls-{socket.gethostname()}-{os.getpid()}.json"
        with suppress(TunerError):
            write_calls(path, calls)
            rotate(self._folder)


def rotate(folder: Path) -> None:
    """Delete the oldest records of a folder beyond `MOST_FILES`."""
    files = sorted(folder.glob("calls-*.json"), key=lambda each: each.stat().st_mtime_ns)
    for file in files[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def record_misses(environment: Mapping[str, str]) -> None:
    """Write what this process misses at its end, where `TUNER_RECORD` names a folder."""
    if folder := environment.get("TUNER_RECORD"):
        misses = Misses(Path(folder).absolute())
        BEFORE_FORGETTING.append(misses.add)
        atexit.register(misses.write)
