"""Keep the events of a run in a file, and repeat its decisions from them.

A replay imports the kernels that the file names, as a run does. Workers, device and database are
not needed.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from search_spaces import registry
from search_spaces.declaration import guarded_calls
from search_spaces.errors import FindingError, TunerError
from search_spaces.foreign_json import is_finite, parse_json
from search_spaces.kernel import Kernel
from search_spaces.records import digest
from search_spaces.size_range import Range
from search_spaces.source_positions import one_line
from search_spaces.space import BoundSpace
from tuner.engine import BuildersChanged, Drain, Engine, Event, TaskSpec, Tick
from tuner.engine.range_search import FinishedSize
from tuner.engine.state_digest import state_digest
from workers.job_records import Built, JobLost, Measured, WorkerGone, WorkerReady

Line: TypeAlias = dict[str, Any]
_EVENTS = {
    kind.__name__: kind
    for kind in (
        Built,
        BuildersChanged,
        Drain,
        JobLost,
        Measured,
        Tick,
        WorkerGone,
        WorkerReady,
    )
}
_HINT = "name a file that `tuner run --events FILE` has written"
#: pydantic's decoder of each type.
_ADAPTERS: dict[Any, Any] = {}

FORMAT, VERSION = "tuner-events", 2
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
        "finished_sizes": plain(engine.finished_sizes),
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
    if isinstance(value, Range):
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay."""

    engine: Engine
    #: How many events were played.
    events: int
    #: The digest of the engine's final state.
    digest: str


def replay(path: Path, *, validate: bool = False) -> Replayed:
    """Play all events of a file through a new engine, which must end in the state of the run.

    validate: check the engine's invariants after every event. Raises `TunerError` for a file that
    is not readable, and `FindingError` where the replay differs from the run.
    """
    lines = _lines(path)
    engine = _engine(path, next(lines, None))
    played, clock = 0, 0.0
    for number, line in lines:
        if "digest" in line:
            return _compare(path, engine, played, line["digest"])
        event, clock = _event(path, number, line)
        try:
            engine.handle(event, clock)
            if validate:
                engine.validate()
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise FindingError(
                f"{path}:{number}: the engine fails at this {type(event).__name__}: {what}",
                "this is a defect of tuner: report it with the file, and see it with --debug",
            ) from error
        played += 1
    raise FindingError(
        f"{path} ends after {played} events without a digest, so there is nothing to compare with",
        "the run was killed, or its disk was full; the events before that were replayed",
    )


def _compare(path: Path, engine: Engine, played: int, expected: object) -> Replayed:
    found = state_digest(engine)
    if found != expected:
        raise FindingError(
            f"{path}: the replay ends in another state than the run: digest {found:.12}, "
            f"not {expected!s:.12}",
            "replay it with the same versions of tuner, its libraries and the kernels",
        )
    return Replayed(engine, played, found)


# -- reading ---------------------------------------------------------------------------------------
def _lines(path: Path) -> Iterator[tuple[int, Line]]:
    """The lines of the file as objects, with their numbers."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                line = parse_json(text)
                if not isinstance(line, dict):
                    raise _bad(path, number, "is not a JSON object")
                yield number, line
    except OSError as error:
        raise TunerError(f"{path} cannot be read: {error.strerror}", _HINT) from error
    except ValueError as error:
        raise TunerError(f"{path} is not a complete events file: {error}", _HINT) from error


def _event(path: Path, number: int, line: Line) -> tuple[Event, float]:
    kind, clock = _EVENTS.get(str(line.pop("event", ""))), line.pop("at", None)
    if kind is None or not is_finite(clock):
        raise _bad(path, number, "holds no event that is known")
    return _decode(path, number, kind, line), float(clock)


def _bad(path: Path, number: int, what: str) -> TunerError:
    return TunerError(f"{path}:{number}: the line {what}", _HINT)


def _decode(path: Path, number: int, kind: Any, value: object) -> Any:
    from pydantic import TypeAdapter, ValidationError

    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _bad(path, number, f"has a wrong {where or 'value'}: {first['msg']}") from None


# -- making the engine again -----------------------------------------------------------------------
def _engine(path: Path, first: tuple[int, Line] | None) -> Engine:
    head = first[1] if first is not None else {}
    if head.get("format") != FORMAT:
        raise TunerError(f"{path} is not an events file", _HINT)
    if head.get("version") != VERSION:
        raise TunerError(
            f"{path} has version {head.get('version')} of the format, not {VERSION}",
            "replay it with the version of tuner that wrote it",
        )
    tasks = _decode(path, 1, list[dict[str, Any]], head.get("tasks"))
    try:
        return Engine(
            [_spec(path, task) for task in tasks],
            builders=_decode(path, 1, int, head.get("builders")),
            in_flight=_decode(path, 1, int | None, head.get("in_flight")),
            finished_sizes=_decode(path, 1, list[FinishedSize], head.get("finished_sizes", [])),
        )
    except TunerError:
        raise
    except Exception as error:
        raise _bad(path, 1, f"describes no run: {one_line(error)}") from error


def _spec(path: Path, task: Mapping[str, Any]) -> TaskSpec:
    from tuner import strategies

    hints = get_type_hints(TaskSpec)
    values = {
        name: _decode(path, 1, hints[name], value)
        for name, value in task.items()
        if name in hints and name not in REMADE
    }
    missing = {"kernel", "workload", "device", "label", "narrowed"} - values.keys()
    if missing:
        raise _bad(path, 1, f"has a task without {sorted(missing)[0]}")
    kernel = _kernel(values)
    space = guarded_calls.bind(kernel, values["workload"], values["device"])
    if values["narrowed"]:
        space = space.restrict(values["narrowed"])
    if space_digest(space) != task.get("space"):
        raise TunerError(
            f"{path}: {values['label']}: the kernel's search space is not that of the run",
            "replay it with the kernel as it was then",
        )
    name, options = str(task.get("strategy")), values.get("strategy_options", {})
    strategy = strategies.create(name, space, values.get("seed", 0), options)
    return TaskSpec(**values, space=space, strategy=strategy)


def _kernel(values: Mapping[str, Any]) -> Kernel:
    """The kernel as the run loaded it for the task's device."""
    ref, device = values["kernel"], values["device"]
    kernel = registry.load_undecided(ref.spec, ref.paths, device)
    return registry.for_device(kernel, device)
