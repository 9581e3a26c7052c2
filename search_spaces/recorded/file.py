"""Reading and writing recorded spaces: JSON of schema `tuner-space/1`, checked field by field."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from search_spaces.atomic_file import write_atomic
from search_spaces.errors import TunerError
from search_spaces.recorded.space import Noise, RecordedConfig, RecordedParameter, RecordedSpace
from search_spaces.records import (
    Device,
    Status,
    Toolchain,
    Value,
    Workload,
    canonical_json,
    config_key,
)

SCHEMA = "tuner-space/1"
KINDS = ("power_of_two", "integer", "choice", "boolean")

_Record = TypeVar("_Record", Noise, Device, Toolchain)


class _Malformed(Exception):
    """Where in the document, and what is wrong there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


# -- reading ---------------------------------------------------------------------------------------
def read(path: str | PathLike[str]) -> RecordedSpace:
    """The space in a file. Raises TunerError naming the file and the place in it."""
    document = _document(Path(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("tuner-space/"):
        raise TunerError(
            f"{path}: not a recorded space", f'its "schema" must be "{SCHEMA}"; see docs'
        )
    if schema != SCHEMA:
        raise TunerError(
            f"{path}: schema {schema} is not {SCHEMA}, the one this version reads",
            "upgrade tuner, or record the space again with this version",
        )
    try:
        return _space(document)
    except _Malformed as error:
        raise TunerError(f"{path}: {error}", "see docs/recorded_spaces.md") from None


def _document(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return json.loads(raw, parse_constant=_refuse_constant)
    except OSError as error:
        reason = error.strerror or f"{error}"
        raise TunerError(f"{path}: cannot be read ({reason})", "check the path") from None
    except (ValueError, EOFError, zlib.error, RecursionError) as error:
        raise TunerError(f"{path}: not JSON ({error})", "record the space again") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _space(document: Mapping[str, Any]) -> RecordedSpace:
    known = {field.name for field in fields(RecordedSpace)} | {"schema"}
    _no_others(document, known, "the file")
    space = RecordedSpace(
        kernel=_text(document, "kernel", "kernel"),
        workload=Workload.from_mapping(_values(_get(document, "workload", dict), "workload")),
        device=_record(Device, _get(document, "device", dict), "device"),
        toolchain=_record(Toolchain, _get(document, "toolchain", dict, {}), "toolchain"),
        parameters=_parameters(_get(document, "parameters", list)),
        default=_values(_get(document, "default", dict), "default"),
        configs=_configs(_get(document, "configs", (list, dict))),
        flops=_number(document, "flops", "flops", 0.0),
        bytes=_number(document, "bytes", "bytes", 0.0),
        tolerance=_number(document, "tolerance", "tolerance", 0.0),
        baselines=_baselines(_get(document, "baselines", dict, {})),
        noise=_record(Noise, _get(document, "noise", dict, {}), "noise"),
    )
    _consistent(space)
    return space


def _consistent(space: RecordedSpace) -> None:
    domains = {parameter.name: parameter for parameter in space.parameters}
    seen: set[str] = set()
    for index, entry in enumerate(space.configs):
        place = f"configs[{index}]"
        for name, value in entry.config.items():
            if name not in domains:
                raise _Malformed(f"{place}.config", f"{name!r} is not among the parameters")
            if not any(type(v) is type(value) and v == value for v in domains[name].values):
                raise _Malformed(f"{place}.config.{name}", f"{value!r} is not among its values")
        key = config_key(entry.config)
        if key in seen:
            raise _Malformed(f"{place}.config", "recorded twice")
        seen.add(key)
    if config_key(space.default) not in seen:
        raise _Malformed("default", "not among the configs")


def _get(mapping: Mapping[str, Any], key: str, kind: Any, default: Any = None) -> Any:
    value = mapping.get(key, default)
    if value is None:
        raise _Malformed(key, "missing")
    if not isinstance(value, kind):
        raise _Malformed(key, f"{type(value).__name__} is not what belongs here")
    return value


def _no_others(mapping: Mapping[str, Any], known: set[str], place: str) -> None:
    for name in mapping:
        if name not in known:
            raise _Malformed(place, f"unknown key {name!r}")


def _text(mapping: Mapping[str, Any], key: str, place: str) -> str:
    value = mapping.get(key)
    if not isinstance(value, str) or not value:
        raise _Malformed(place, "missing or not a text")
    return value


def _number(mapping: Mapping[str, Any], key: str, place: str, default: float) -> float:
    value = mapping.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Malformed(place, f"{value!r} is not a number")
    if not math.isfinite(value) or value < 0:
        raise _Malformed(place, f"{value!r} is not a finite number of at least 0")
    return float(value)


def _value(value: object, place: str) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _Malformed(place, "not a plain value (text, number, true, false, null)")


def _values(mapping: Mapping[str, Any], place: str) -> dict[str, Value]:
    return {name: _value(value, f"{place}.{name}") for name, value in mapping.items()}


def _record(kind: type[_Record], mapping: Mapping[str, Any], place: str) -> _Record:
    """A flat record of texts and numbers whose field types are those of its annotations."""
    checks: dict[str, Callable[[Any], bool]] = {
        "str": lambda v: isinstance(v, str),
        "int": lambda v: type(v) is int and v >= 0,
        "float": lambda v: type(v) in (int, float) and math.isfinite(v) and v >= 0,
    }
    types = {field.name: f"{field.type}" for field in fields(kind)}
    _no_others(mapping, set(types), place)
    for name, value in mapping.items():
        if not checks[types[name]](value):
            raise _Malformed(f"{place}.{name}", f"{value!r} is not {types[name]}, or negative")
    try:
        return kind(**mapping)
    except TypeError:
        raise _Malformed(place, "a required key is missing") from None


def _baselines(mapping: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(mapping, name, f"baselines.{name}", 0.0) for name in mapping}


def _parameters(items: Sequence[Any]) -> tuple[RecordedParameter, ...]:
    found: list[RecordedParameter] = []
    for index, item in enumerate(items):
        place = f"parameters[{index}]"
        if not isinstance(item, dict):
            raise _Malformed(place, "not an object")
        _no_others(item, {"name", "kind", "values", "when"}, place)
        kind = _text(item, "kind", f"{place}.kind")
        if kind not in KINDS:
            raise _Malformed(f"{place}.kind", f"{kind!r} is not one of {', '.join(KINDS)}")
        values = item.get("values")
        if not isinstance(values, list) or not values:
            raise _Malformed(f"{place}.values", "missing or empty")
        when = item.get("when", {})
        if not isinstance(when, dict) or not all(isinstance(v, list) for v in when.values()):
            raise _Malformed(f"{place}.when", "not an object of lists")
        found.append(
            RecordedParameter(
                name=_text(item, "name", f"{place}.name"),
                kind=kind,
                values=tuple(_value(value, f"{place}.values") for value in values),
                when={name: tuple(listed) for name, listed in when.items()},
            )
        )
    if len({parameter.name for parameter in found}) < len(found):
        raise _Malformed("parameters", "two of the same name")
    return tuple(found)


def _configs(items: list[Any] | dict[str, Any]) -> tuple[RecordedConfig, ...]:
    rows = items if isinstance(items, list) else _rows(items)
    if not rows:
        raise _Malformed("configs", "there are none")
    return tuple(_config(row, f"configs[{index}]") for index, row in enumerate(rows))


def _config(row: object, place: str) -> RecordedConfig:
    if not isinstance(row, dict) or not isinstance(row.get("config"), dict):
        raise _Malformed(place, 'not an object with a "config"')
    _no_others(row, {field.name for field in fields(RecordedConfig)}, place)
    status = row.get("status", "correct")
    if status not in list(Status):
        raise _Malformed(f"{place}.status", f"{status!r} is not one of {', '.join(Status)}")
    median_us = _number(row, "median_us", f"{place}.median_us", 0.0) or None
    if (status == Status.CORRECT) != (median_us is not None):
        raise _Malformed(f"{place}.median_us", f"{median_us} does not go with status {status}")
    samples = row.get("samples_us") or []
    if not isinstance(samples, list):
        raise _Malformed(f"{place}.samples_us", "not a list")
    counts = {
        name: int(_number(row, name, f"{place}.{name}", 0.0))
        for name in ("registers", "spill_bytes", "shared_bytes")
    }
    return RecordedConfig(
        config=_values(row["config"], f"{place}.config"),
        status=Status(status),
        median_us=median_us,
        binary=f"{row.get('binary') or ''}",
        build_s=_number(row, "build_s", f"{place}.build_s", 0.0),
        message=f"{row.get('message') or ''}",
        samples_us=tuple(_number({"s": s}, "s", f"{place}.samples_us", 0.0) for s in samples),
        **counts,
    )


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The column form as rows: `{"config": {name: [...]}, "status": [...], ...}`."""
    parameters = columns.get("config")
    if not isinstance(parameters, dict) or not parameters:
        raise _Malformed("configs.config", "missing or not an object of columns")
    plain = {name: column for name, column in columns.items() if name != "config"}
    lengths = set()
    for name, column in [*parameters.items(), *plain.items()]:
        if not isinstance(column, list):
            raise _Malformed(f"configs.{name}", "not a list")
        lengths.add(len(column))
    if len(lengths) > 1:
        raise _Malformed("configs", f"columns of different lengths {sorted(lengths)}")
    return [
        {
            "config": {name: column[index] for name, column in parameters.items()},
            **{name: column[index] for name, column in plain.items()},
        }
        for index in range(lengths.pop())
    ]


# -- writing ---------------------------------------------------------------------------------------
def write(space: RecordedSpace, path: str | PathLike[str], *, columns: bool) -> None:
    """Write a space; equal spaces give equal bytes. Raises TunerError when that fails."""
    raw = encoded(space, columns).encode()
    target = Path(path)
    if target.suffix == ".gz":
        raw = gzip.compress(raw, mtime=0)
    try:
        write_atomic(target, raw)
    except OSError as error:
        reason = error.strerror or f"{error}"
        raise TunerError(
            f"{path}: cannot be written ({reason})",
            "give a file in a folder that exists and has space",
        ) from error


def encoded(space: RecordedSpace, columns: bool = False) -> str:
    """The text of a space; equal spaces give equal text."""
    rows = [_row(entry) for entry in space.configs]
    head = {
        "schema": SCHEMA,
        "kernel": space.kernel,
        "workload": space.workload.as_dict(),
        "device": asdict(space.device),
        "toolchain": asdict(space.toolchain),
        "parameters": [
            {
                "name": p.name,
                "kind": p.kind,
                "values": p.values,
                **({"when": p.when} if p.when else {}),
            }
            for p in space.parameters
        ],
        "default": dict(space.default),
        "flops": space.flops,
        "bytes": space.bytes,
        "tolerance": space.tolerance,
        "baselines": dict(space.baselines),
        "noise": asdict(space.noise),
    }
    lines = [f'"{name}": {canonical_json(value)}' for name, value in head.items()]
    # Conditional parameters leave holes that columns cannot tell from null.
    if columns and len({frozenset(row["config"]) for row in rows}) == 1:
        lines.append(f'"configs": {canonical_json(_columns(rows))}')
    else:
        lines.append('"configs": [\n' + ",\n".join(map(canonical_json, rows)) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(entry: RecordedConfig) -> dict[str, Any]:
    """The fields of a config that say something."""
    row = {field.name: getattr(entry, field.name) for field in fields(entry)}
    row["config"] = dict(entry.config)
    return {name: value for name, value in row.items() if value or name in ("config", "status")}


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for row in rows for name in row} - {"config"}
    return {
        "config": {name: [row["config"][name] for row in rows] for name in rows[0]["config"]},
        **{name: [row.get(name) for row in rows] for name in names},
    }
