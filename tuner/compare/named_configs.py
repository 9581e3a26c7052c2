"""The values of `--config`: `best`, `default`, a JSON object, or a file with a config or table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from results_db import NothingStoredError, Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError
from search_spaces.records import Config, Workload, config_key
from tuner.compare.targets import BenchTarget
from tuner.runtime import SCHEMA, TableError, read

#: How many runs are searched for a winner, newest first.
_MAX_RUNS = 10_000
#: Limits of a config file and of a JSON text in a message.
_MAX_BYTES = 1_000_000
_MAX_SHOWN = 80
_EXAMPLE = 'a config is written as {"BLOCK": 128, "num_warps": 4}'
_SETTINGS_HINT = "--settings names the farm's configuration file"


@dataclass(frozen=True, slots=True)
class Variant:
    """A config and the name it was given on the command line."""

    name: str
    config: Config
    #: A caveat about the config's origin, for the user.
    note: str = ""

    @property
    def is_default(self) -> bool:
        """Whether it is the default config, perhaps under other names as well."""
        return "default" in self.name.split(", ")


def named_variants(
    target: BenchTarget, workload: Workload, texts: Sequence[str], database: str
) -> tuple[Variant, ...]:
    """The configs that the texts name, in their order, without duplicates.

    A text is `default`, `best` (what the newest run ships that confirmed this kernel, workload and
    device), a JSON object, or a file with a config or an exported table. Raises `TunerError` with
    the text, the place and the violated constraint when a config is not feasible.
    """
    found: dict[str, Variant] = {}
    for text in texts:
        variant = _make_variant(target, workload, text, database)
        reason = target.space(workload).why_invalid(variant.config)
        if reason is not None:
            raise TunerError(
                f"{_place(text)} is not feasible for {target.kernel.name} [{workload.key}] on "
                f"{target.device.target}: {reason}",
                f"`tuner spaces show {target.kernel.spec} --workload '{workload.key}'` lists the "
                "parameters",
            )
        key = config_key(variant.config)
        if key in found:
            variant = replace(found[key], name=f"{found[key].name}, {variant.name}")
        found[key] = variant
    return tuple(found.values())


def bench_variants(
    target: BenchTarget, workload: Workload, texts: Sequence[str] | None, database: str
) -> tuple[Variant, ...]:
    """The named configs, followed by the default config unless it is among them.

    Without texts: the best known config and the default.
    """
    found: tuple[Variant, ...] = ()
    if texts:
        found = named_variants(target, workload, texts, database)
    elif best_of(target, workload, database) is not None:
        found = named_variants(target, workload, ["best"], database)
    default = default_of(target, workload)
    if default is None:
        return found or named_variants(target, workload, ["default"], database)
    same = [config_key(variant.config) == config_key(default.config) for variant in found]
    if not any(same):
        return (*found, default)
    return tuple(
        replace(variant, name=f"{variant.name}, default")
        if is_default and not variant.is_default
        else variant
        for variant, is_default in zip(found, same, strict=True)
    )


def default_of(target: BenchTarget, workload: Workload) -> Variant | None:
    """The default config; None where it is not feasible on this device."""
    config = guarded_calls.default_config(target.kernel, workload, target.device)
    return Variant("default", config) if target.space(workload).feasible(config) else None


def best_of(target: BenchTarget, workload: Workload, database: str) -> Variant | None:
    """What the newest run ships that confirmed this kernel, workload and device, if any."""
    try:
        with Store.open(database, create=False) as store:
            task = _find_confirmed(store, target, workload)
    except NothingStoredError:
        return None
    if task is None or task.selection is None:
        return None
    note = ""
    if task.key.launch_hash != target.kernel.launch_hash():
        note = (
            f"best: from run {task.run_id}, which tuned other source code of {target.kernel.name}"
        )
    ships = select_shipped(task.selection)
    if ships.default_kept:
        note = "; ".join(filter(None, (note, f"best: the default, since {ships.kept_because}")))
    return Variant("best", dict(ships.config), note)


def _find_confirmed(store: Store, target: BenchTarget, workload: Workload) -> TaskInfo | None:
    for run in store.runs(limit=_MAX_RUNS):
        for task in reversed(store.tasks(run.run_id)):
            if (
                task.selection is not None
                and task.selection.median_us is not None
                and task.key.kernel == target.kernel.name
                and task.key.workload == workload
                and task.key.device.fingerprint == target.device.fingerprint
            ):
                return task
    return None


def _make_variant(target: BenchTarget, workload: Workload, text: str, database: str) -> Variant:
    if text == "default":
        return Variant(
            "default", guarded_calls.default_config(target.kernel, workload, target.device)
        )
    if text == "best":
        best = best_of(target, workload, database)
        if best is not None:
            return best
        raise TunerError(
            f"the database has no confirmed winner of {target.kernel.name} [{workload.key}] on "
            f"{target.device.name}",
            "tune it with `tuner run`, or give --config default, a JSON object or a file",
        )
    if text.lstrip().startswith("{"):
        return Variant("given", _config(_json(text, _place(text)), _place(text)))
    return _of_file(target, workload, Path(text))


def _of_file(target: BenchTarget, workload: Workload, path: Path) -> Variant:
    place = f"--config {path}"
    data = _json(_text(path), place)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return Variant(path.stem, _config(data, place))
    try:
        table = read(path)
    except TableError as error:
        raise TunerError(f"{place}: {error}", "rewrite it with `tuner export`") from None
    if table.kernel != target.kernel.name:
        raise TunerError(
            f"{place}: is a table of {table.kernel}, not of {target.kernel.name}",
            f"`tuner export` writes the tables of {target.kernel.name}",
        )
    hit = table.find(workload.as_dict())
    if hit is None:
        raise TunerError(
            f"{place}: has no entry for {workload.key}",
            f"it has {', '.join(Workload.from_mapping(e.key).key for e in table.entries[:3])}",
        )
    notes = []
    if hit.how != "exact":
        notes.append(f"{path}: no entry for {workload.key}; the {hit.how} entry is used")
    if table.device.name != target.device.name:
        notes.append(f"{path}: tuned on {table.device.name}, not on {target.device.name}")
    return Variant(path.stem, dict(hit.config), "; ".join(notes))


def _text(path: Path) -> str:
    place = f"--config {path}"
    hint = f"give best, default, a JSON object or a file; {_SETTINGS_HINT}"
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
    def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise TunerError(f"{place}: repeats a name in one object", "write each name once")
        return dict(pairs)

    hint = f"{_EXAMPLE}; {_SETTINGS_HINT}"
    try:
        return json.loads(text, object_pairs_hook=unique_names)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise TunerError(f"{place}: is not JSON ({where})", hint) from None
    except (RecursionError, ValueError):
        raise TunerError(f"{place}: is not JSON of a config", hint) from None


def _config(data: object, place: str) -> Config:
    if not isinstance(data, Mapping):
        raise TunerError(
            f"{place}: is a {type(data).__name__}, not a config or a table of tuner",
            _EXAMPLE,
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
    return f"--config {text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + '...'}"
