"""The document of a recorded space as pydantic models, and what a valid one says.

pydantic checks the fields; `_check_consistent` checks what several fields say together. Numbers are
finite and not negative; no type is converted into another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model
from pydantic_core import ErrorDetails, PydanticCustomError

from search_spaces.recorded.entries import Noise, RecordedConfig, RecordedParameter
from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, config_key

_Record = TypeVar("_Record", Noise, Device, Toolchain)


class MalformedError(Exception):
    """The place in a document, and what is wrong there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


# -- the models ------------------------------------------------------------------------------------
def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise PydanticCustomError("plain", "not a plain value (text, number, true, false, null)")


_Plain = Annotated[Any, PlainValidator(_plain)]
_Values = dict[str, _Plain]
_Number = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _model_of(record: type[_Record]) -> Any:
    """The model of a flat record of texts and numbers, with the record's own defaults."""
    types = {str: str, int: _Count, float: _Number}
    hints = get_type_hints(record)
    declared: dict[str, Any] = {
        field.name: (
            types[hints[field.name]],
            ... if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(record)
    }
    return create_model(record.__name__, __base__=_Model, **declared)


if TYPE_CHECKING:
    _Device: TypeAlias = Any
    _Toolchain: TypeAlias = Any
    _Noise: TypeAlias = Any
else:
    _Device, _Toolchain, _Noise = map(_model_of, (Device, Toolchain, Noise))


class _RecordedParameter(_Model):
    name: _Name
    kind: Literal["power_of_two", "integer", "choice", "boolean"]
    values: Annotated[list[_Plain], Field(min_length=1)]
    when: dict[str, list[_Plain]] = {}


class _Row(_Model):
    """One config; in the column form, null stands for a field that a config does not have."""

    config: _Values
    status: Annotated[Status, Field(strict=False)] = Status.CORRECT
    median_us: _Number | None = None
    binary: str | None = None
    registers: _Count | None = None
    spill_bytes: _Count | None = None
    shared_bytes: _Count | None = None
    build_s: _Number | None = None
    message: str | None = None
    samples_us: list[_Number] | None = None


class _Document(_Model):
    kernel: _Name
    workload: _Values
    device: _Device
    toolchain: _Toolchain = Field(default={}, validate_default=True)
    parameters: list[_RecordedParameter]
    default: _Values
    configs: list[_Row]
    flops: _Number = 0.0
    bytes: _Number = 0.0
    tolerance: _Number = 0.0
    baselines: dict[str, _Number] = {}
    noise: _Noise = Field(default={}, validate_default=True)


# -- reading ---------------------------------------------------------------------------------------
def fields_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the space of a document without its `schema`; raises `MalformedError`."""
    configs = document.get("configs")
    if isinstance(configs, dict):
        document = {**document, "configs": _rows(configs)}
    try:
        found = _Document.model_validate(document)
    except ValidationError as error:
        raise _make_malformed_error(error.errors(include_url=False)[0]) from None
    parameters = tuple(map(_parameter, found.parameters))
    configs = tuple(_config(row, index) for index, row in enumerate(found.configs))
    _check_consistent(parameters, configs, found.default)
    plain = ("kernel", "default", "flops", "bytes", "tolerance", "baselines")
    return {
        **{name: getattr(found, name) for name in plain},
        "workload": Workload.from_mapping(found.workload),
        "device": Device(**dict(found.device)),
        "toolchain": Toolchain(**dict(found.toolchain)),
        "parameters": parameters,
        "configs": configs,
        "noise": Noise(**dict(found.noise)),
    }


def _make_malformed_error(error: ErrorDetails) -> MalformedError:
    *parents, last = error["loc"]
    place = _format_path((*parents, last))
    if error["type"] == "missing":
        return MalformedError(place, "missing")
    if error["type"] == "extra_forbidden":
        return MalformedError(_format_path(parents) or "the file", f"unknown key {last!r}")
    problem = error["msg"][0].lower() + error["msg"][1:]
    return MalformedError(place, f"{error['input']!r:.80}: {problem}")


def _format_path(path: list[int | str] | tuple[int | str, ...]) -> str:
    """`configs[3].median_us` for a path of keys and positions."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The column form as rows: `{"config": {name: [...]}, "status": [...], ...}`."""
    parameters = columns.get("config")
    if not isinstance(parameters, dict) or not parameters:
        raise MalformedError("configs.config", "missing or not an object of columns")
    plain = {name: column for name, column in columns.items() if name != "config"}
    lengths = set()
    for name, column in [*parameters.items(), *plain.items()]:
        if not isinstance(column, list):
            raise MalformedError(f"configs.{name}", "not a list")
        lengths.add(len(column))
    if len(lengths) > 1:
        raise MalformedError("configs", f"columns of different lengths {sorted(lengths)}")
    return [
        {
            "config": {name: column[index] for name, column in parameters.items()},
            **{name: column[index] for name, column in plain.items()},
        }
        for index in range(lengths.pop())
    ]


def _parameter(found: _RecordedParameter) -> RecordedParameter:
    when = {name: tuple(values) for name, values in found.when.items()}
    return RecordedParameter(found.name, found.kind, tuple(found.values), when)


def _config(row: _Row, index: int) -> RecordedConfig:
    median_us = row.median_us or None
    if (row.status == Status.CORRECT) != (median_us is not None):
        problem = f"{median_us} does not go with status {row.status}"
        raise MalformedError(f"configs[{index}].median_us", problem)
    return RecordedConfig(
        config=row.config,
        status=row.status,
        median_us=median_us,
        binary=row.binary or "",
        registers=row.registers or 0,
        spill_bytes=row.spill_bytes or 0,
        shared_bytes=row.shared_bytes or 0,
        build_s=row.build_s or 0.0,
        message=row.message or "",
        samples_us=tuple(row.samples_us or ()),
    )


def _check_consistent(
    parameters: Sequence[RecordedParameter], configs: Sequence[RecordedConfig], default: Config
) -> None:
    domains = {parameter.name: parameter for parameter in parameters}
    if len(domains) < len(parameters):
        raise MalformedError("parameters", "two of the same name")
    if not configs:
        raise MalformedError("configs", "there are none")
    seen: set[str] = set()
    for index, entry in enumerate(configs):
        place = f"configs[{index}].config"
        for name, value in entry.config.items():
            if name not in domains:
                raise MalformedError(place, f"{name!r} is not among the parameters")
            if not _among(value, domains[name]):
                raise MalformedError(f"{place}.{name}", f"{value!r} is not among its values")
        key = config_key(entry.config)
        if key in seen:
            raise MalformedError(place, "recorded twice")
        seen.add(key)
    if config_key(default) not in seen:
        raise MalformedError("default", "not among the configs")


def _among(value: Value, parameter: RecordedParameter) -> bool:
    return any(type(other) is type(value) and other == value for other in parameter.values)
