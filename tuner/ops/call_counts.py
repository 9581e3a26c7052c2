"""The kinds of calls that operators have had: of a scope, or those that a process has missed.

With `TUNER_RECORD=FOLDER`, a process writes every ten minutes and at its end what no entry of a
table served, as a file of `search_spaces.recorded.model_calls`; with `TUNER_RECORD_ALL=1` too, all
calls that a kernel can take. Decisions count calls anyway, so that a call costs nothing more.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, write_calls
from search_spaces.records import Value
from tuner import runtime
from tuner.ops.operator import (
    BEFORE_FORGETTING,
    OPERATORS,
    Decision,
    exchange_version,
    next_version,
)

#: Files that a folder of records holds; the oldest are deleted.
MOST_FILES = 16
_EVERY_S = 600.0
_TABLES = "TUNER_TABLES"
#: A kernel and the dims of a workload.
_Kind: TypeAlias = tuple[str, tuple[tuple[str, Value], ...]]


class Scope:
    """Decisions of their own, by these tables first; inside of it for the whole process."""

    def __init__(self, *tables: Path) -> None:
        self._tables = [f"{each.absolute()}" for each in tables]
        self._kept: dict[str, Any] = {name: {} for name in OPERATORS}
        self._version = next_version()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Operators decide as here, and count here, until the block ends."""
        former = os.environ.get(_TABLES)
        os.environ[_TABLES] = os.pathsep.join(filter(None, [*self._tables, former]))
        self.exchange()
        try:
            yield
        finally:
            self.exchange()
            if former is None:
                del os.environ[_TABLES]
            else:
                os.environ[_TABLES] = former

    def exchange(self) -> None:
        """Decide and count as here from now on, and keep here what did so before."""
        for name, kept in self._kept.items():
            self._kept[name] = OPERATORS[name].exchange(kept)
        self._version = exchange_version(self._version)

    @property
    def decisions(self) -> list[Decision]:
        """Those made and counted inside, of calls that a kernel can take; to be read outside."""
        found = [each for kept in self._kept.values() for each in kept.values()]
        return [each for each in found if each.kernel]


class Misses:
    """What no entry of a table has served in this process, with its frequency; or all calls."""

    def __init__(self, folder: Path, *, also_known: bool = False) -> None:
        self._folder, self._also_known = folder, also_known
        #: Calls of decisions that were forgotten.
        self._former: Counter[_Kind] = Counter()

    def keep(self, decisions: Sequence[Decision]) -> None:
        """Count the calls of decisions that are about to be forgotten."""
        self._former += self._count(decisions)

    def write(self) -> None:
        """Write the file of this process, if there is anything to write and a place for it."""
        now = [each for operator in OPERATORS.values() for each in operator.decisions()]
        counts = self._former + self._count(now)
        calls = [ModelCall(name, dict(dims), count) for (name, dims), count in counts.items()]
        path = self._folder / f"calls-{socket.gethostname()}-{os.getpid()}.json"
        with suppress(TunerError, OSError):
            if calls:
                write_calls(path, calls)
                rotate(self._folder)

    def write_regularly(self) -> None:
        """Write from time to time, since a service may be killed."""
        while True:
            time.sleep(_EVERY_S)
            self.write()

    def _count(self, decisions: Iterable[Decision]) -> Counter[_Kind]:
        counts: Counter[_Kind] = Counter()
        for each in decisions:
            if each.kernel and (self._also_known or not (each.choice.known or each.waits)):
                counts[each.kernel, (*each.key.items(),)] += each.calls
        return +counts


def rotate(folder: Path) -> None:
    """Delete the oldest records of a folder beyond `MOST_FILES`."""
    files = sorted(folder.glob("calls-*.json"), key=lambda each: each.stat().st_mtime_ns)
    for file in files[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def record_misses(environment: Mapping[str, str]) -> None:
    """Write what this process misses, or all of it, where `TUNER_RECORD` names a folder.

    Of the ranks of `torchrun`, rank zero alone writes.
    """
    folder = environment.get("TUNER_RECORD")
    if folder and runtime.is_writer():
        also_known = environment.get("TUNER_RECORD_ALL") == "1"
        misses = Misses(Path(folder).absolute(), also_known=also_known)
        BEFORE_FORGETTING.append(misses.keep)
        atexit.register(misses.write)
        threading.Thread(target=misses.write_regularly, daemon=True, name="TUNER_RECORD").start()
