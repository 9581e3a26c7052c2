"""What a pool spec comes to: seats for runners, a number of builders, and their arguments."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.records import Value
from workers.records import PoolSpec

#: What a child with torch loaded and a compiler at work may take.
_BUILDER_BYTES = 3 * 2**29


@dataclass(frozen=True, slots=True)
class Seat:
    """One runner to be: which device of which kind it owns, under which name."""

    worker_id: str
    kind: str
    index: int
    options: Mapping[str, Value] = field(default_factory=dict)


class Plan:
    """Reads a spec once for a whole pool. `close` removes the marks of injected losses."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._lost_dir = ""
        self.paths = tuple(str(Path(path).resolve()) for path in spec.paths)
        self.cwd = os.getcwd()

    @property
    def build_options(self) -> dict[str, Value]:
        return {"time_scale": self._spec.options.get("simulated", {}).get("time_scale", 0.0)}

    def seats(self, count_found: Callable[[str], int]) -> Iterator[Seat]:
        """The seats; `count_found` says how many devices of a kind there are."""
        for kind, wanted in sorted(self._spec.runners.items()):
            count = count_found(kind) if wanted is None else wanted
            for index in range(count):
                yield Seat(f"{kind}-{index}", kind, index, self._options(kind))

    def builders(self, cpus: int, memory_bytes: int, runners: int) -> int:
        """How many builders: as asked, else what `runners` leave of the processors, at least 1."""
        if self._spec.builders is not None:
            return self._spec.builders
        room = memory_bytes // _BUILDER_BYTES if memory_bytes else cpus
        return max(1, min(cpus - runners, room))

    def close(self) -> None:
        if self._lost_dir:
            shutil.rmtree(self._lost_dir, ignore_errors=True)

    def _options(self, kind: str) -> Mapping[str, Value]:
        options = dict(self._spec.options.get(kind, {}))
        if kind == "simulated" and options.get("lost"):
            self._lost_dir = self._lost_dir or tempfile.mkdtemp(prefix="tuner-lost-")
            options["lost_dir"] = self._lost_dir
        return options
