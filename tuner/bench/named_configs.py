"""Which configs are meant by `best`, `default`, a file or JSON on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from results_db import NothingStoredError, Store
from results_db.records import TaskInfo
from results_db.shipped import shipped
from search_spaces.declaration import calls
from search_spaces.errors import TunerError
from search_spaces.records import Config, Workload, config_key
from tuner.bench.target import BenchTarget
from tuner.runtime import SCHEMA, TableError, read

#: Runs that are searched for a winner, the newest first.
_RUNS = 10_000
_MAX_BYTES = 1_000_000
_SHOWN = 80
_WRITTEN = 'a config is written as {"BLOCK": 128, "num_warps": 4}'
_SETTINGS = "the farm's own file is named by --settings"


@dataclass(frozen=True, slots=True)
class Variant:
    """A config under the name people gave it. note: what they should know about its origin."""

    name: str
    config: Config
    note: str = ""


def variants(
    subject: BenchTarget, workload: Workload, texts: Sequence[str], database: str
) -> tuple[Variant, ...]:
    """The feasible configs that the texts name, in their order, each config once.

    A text is `default`, `best` (the winner confirmed last for this kernel, workload and device in
    the database), a JSON object, or a file with one or with a table that was exported. Raises
    `TunerError` that names the text, the place and the constraint.
    """
    found: dict[str, Variant] = {}
    for text in texts:
        variant = _named(subject, workload, text, database)
        reason = subject.space(workload).why_not(variant.config)
        if reason is not None:
            raise TunerError(
                f"{_place(text)} is not feasible for {subject.kernel.name} [{workload.key}] on "
                f"{subject.device.target}: {reason}",
                f"`tuner spaces show {subject.kernel.spec} --workload '{workload.key}'` lists the "
                "parameters",
            )
        key = config_key(variant.config)
        if key in found:
            variant = replace(found[key], name=f"{found[key].name}, {variant.name}")
        found[key] = variant
    return tuple(found.values())


def candidates(
    subject: BenchTarget, workload: Workload, texts: Sequence[str] | None, database: str
) -> tuple[Variant, ...]:
    """The configs that are meant and the default, which comes last where it is not among them.

    Without texts, the best known and the default.
    """
    found: tuple[Variant, ...] = ()
    if texts:
        found = variants(subject, workload, texts, database)
    elif best_of(subject, workload, database) is not None:
        found = variants(subject, workload, ["best"], database)
    default = default_of(subject, workload)
    if default is None:
        return found or variants(subject, workload, ["default"], database)
    same = [config_key(variant.config) == config_key(default.config) for variant in found]
    if not any(same):
        return (*found, default)
    return tuple(
        replace(variant, name=f"{variant.name}, default")
        if is_default and "default" not in variant.name.split(", ")
        else variant
        for variant, is_default in zip(found, same, strict=True)
    )


def default_of(subject: BenchTarget, workload: Workload) -> Variant | None:
    """The default config, None where it is not feasible on this device."""
    config = calls.default_config(subject.kernel, workload, subject.device)
    return Variant("default", config) if subject.space(workload).feasible(config) else None


def best_of(subject: BenchTarget, workload: Workload, database: str) -> Variant | None:
    """What the newest run that confirmed a winner for this task and device ships."""
    try:
        with Store.open(database, create=False) as store:
            task = _confirmed(store, subject, workload)
    except NothingStoredError:
        return None
    if task is None or task.selection is None:
        return None
    note = ""
    if task.key.launch_hash != subject.kernel.launch_hash():
        note = f"best: run {task.run_id} chose it for other source code of {subject.kernel.name}"
    ships = shipped(task.selection)
    if ships.default_kept:
        note = "; ".join(filter(None, (note, f"best: the default, since {ships.kept_because}")))
    return Variant("best", dict(ships.config), note)


def _confirmed(store: Store, subject: BenchTarget, workload: Workload) -> TaskInfo | None:
    for run in store.runs(limit=_RUNS):
        for task in reversed(store.tasks(run.run_id)):
            if (
                task.selection is not None
                and task.selection.median_us is not None
                and task.key.kernel == subject.kernel.name
                and task.key.workload == workload
                and task.key.device.fingerprint == subject.device.fingerprint
            ):
                return task
    return None


def _named(subject: BenchTarget, workload: Workload, text: str, database: str) -> Variant:
    if text == "default":
        return Variant("default", calls.default_config(subject.kernel, workload, subject.device))
    if text == "best":
        best = best_of(subject, workload, database)
        if best is not None:
            return best
        raise TunerError(
            f"no confirmed winner of {subject.kernel.name} [{workload.key}] on "
            f"{subject.device.name} is in the database",
            "find one with `tuner run`, or give --config default, a JSON object or a file",
        )
    if text.lstrip().startswith("{"):
        return Variant("given", _config(_json(text, _place(text)), _place(text)))
    return _of_file(subject, workload, Path(text))


def _of_file(subject: BenchTarget, workload: Workload, path: Path) -> Variant:
    place = f"--config {path}"
    data = _json(_text(path), place)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return Variant(path.stem, _config(data, place))
    try:
        table = read(path)
    except TableError as error:
        raise TunerError(f"{place}: {error}", "write it anew with `tuner export`") from None
    if table.kernel != subject.kernel.name:
        raise TunerError(
            f"{place}: is a table of {table.kernel}, not of {subject.kernel.name}",
            f"`tuner export` writes those of {subject.kernel.name}",
        )
    hit = table.find(workload.as_dict())
    if hit is None:
        raise TunerError(
            f"{place}: has no entry for {workload.key}",
            f"it has {', '.join(Workload.from_mapping(e.key).key for e in table.entries[:3])}",
        )
    notes = []
    if hit.how != "exact":
        notes.append(f"{path}: no entry for {workload.key}, taken is the {hit.how} one")
    if table.device.name != subject.device.name:
        notes.append(f"{path}: made on {table.device.name}, not on {subject.device.name}")
    return Variant(path.stem, dict(hit.config), "; ".join(notes))


def _text(path: Path) -> str:
    place = f"--config {path}"
    hint = f"give best, default, a JSON object or a file; {_SETTINGS}"
    try:
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            raise TunerError(f"{place}: larger than {_MAX_BYTES} bytes", hint)
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise TunerError(f"{place}: not UTF-8 text", hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TunerError(f"{place}: cannot be read ({reason})", hint) from None


def _json(text: str, place: str) -> object:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise TunerError(f"{place}: has a name twice in one object", "write each name once")
        return dict(pairs)

    hint = f"{_WRITTEN}; {_SETTINGS}"
    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise TunerError(f"{place}: is not JSON ({where})", hint) from None
    except (RecursionError, ValueError):
        raise TunerError(f"{place}: is no JSON that a config is made of", hint) from None


def _config(data: object, place: str) -> Config:
    if not isinstance(data, Mapping):
        raise TunerError(
            f"{place}: is a {type(data).__name__}, not one config or a table of ours",
            _WRITTEN,
        )
    for name, value in data.items():
        if not isinstance(value, bool | int | float | str | None):
            raise TunerError(
                f"{place}: {name} is a {type(value).__name__}, not one value",
                "give each parameter a number, a text, true, false or null",
            )
        if isinstance(value, float) and value != value:
            raise TunerError(f"{place}: {name} is NaN", "give each parameter one of its values")
    return dict(data)


def _place(text: str) -> str:
    return f"--config {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"
