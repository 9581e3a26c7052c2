"""Messages for pydantic's errors about a configuration, with file, line and key path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from results_db.masking import mask_passwords
from search_spaces.near_names import did_you_mean
from tuner.settings.sections import ConfigError, Settings
from tuner.settings.yaml_file import KeyPath

Where = Callable[[KeyPath], str]


SCHEMA_HINT = "`tuner config schema` prints what every key takes"


def format_path(path: KeyPath) -> str:
    """`campaigns.nightly.tasks[0].budget` for a path of keys and positions."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def translate(error: ValidationError, data: Mapping[str, object], where: Where) -> ConfigError:
    """One `ConfigError` for all of pydantic's errors; the first gives its message."""
    found = _by_path(error.errors(include_url=False), data)
    problems = [_problem(path, details, where) for path, details in found]
    more = len(problems) - 1
    text, hint = problems[0]
    suffix = f" (and {more} more: `tuner config check` lists all)" if more else ""
    result = ConfigError(text + suffix, hint)
    result.problems = tuple(text for text, _ in problems)
    return result


def _by_path(
    errors: Sequence[ErrorDetails], data: Mapping[str, object]
) -> list[tuple[KeyPath, list[ErrorDetails]]]:
    """Errors grouped by path; the errors of all members of a union share one path.

    Where one attempt of a union got further down than another, only the deeper one is kept.
    """
    grouped: dict[KeyPath, list[ErrorDetails]] = {}
    for item in errors:
        grouped.setdefault(_real_path(item, data), []).append(item)
    return [
        (path, items)
        for path, items in grouped.items()
        if not any(other != path and other[: len(path)] == path for other in grouped)
    ]


def _real_path(item: ErrorDetails, data: Any) -> KeyPath:
    """pydantic's location without the names of union members."""
    path: list[str | int] = []
    last = len(item["loc"]) - 1
    for index, part in enumerate(item["loc"]):
        if _has(data, part):
            data = data[part]
        elif not (index == last and item["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _has(data: Any, part: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, Mapping) and part in data


def _problem(path: KeyPath, items: Sequence[ErrorDetails], where: Where) -> tuple[str, str]:
    item = items[0]
    place = f"{where(path)}: {format_path(path)}"
    known = _keys_at(path[:-1])
    if item["type"] == "extra_forbidden":
        hint = f"valid keys here: {', '.join(known)}" if known else ""
        return f"{place}: unknown key{did_you_mean(str(path[-1]), known)}", hint
    if item["type"] == "missing":
        return f"{place}: missing", SCHEMA_HINT
    if path == ("version",):
        return _version(place, item["input"])
    expected = " or ".join(dict.fromkeys(_expectation(item) for item in items))
    if item["type"] == "value_error":
        return f"{place}: {expected}", SCHEMA_HINT
    return f"{place}: expected {expected}, found {_format_value(item['input'])}", SCHEMA_HINT


def _version(place: str, found: object) -> tuple[str, str]:
    newer = isinstance(found, int) and found > 1
    if newer:
        return f"{place}: {found} is newer than this tuner, which reads 1", "upgrade tuner"
    return f"{place}: expected 1, found {_format_value(found)}", "write `version: 1`"


def _expectation(item: ErrorDetails) -> str:
    if item["type"] == "value_error":
        return str(item.get("ctx", {}).get("error", item["msg"]))
    if item["type"] == "too_short":
        return f"at least {item['ctx']['min_length']} item"
    if item["type"] == "model_type" and item["ctx"]["class_name"] == "StrategyConfig":
        return "a name or mapping"
    text = item["msg"].split(", unable to")[0].removeprefix("Input should be ")
    text = text.replace("dictionary or instance of", "mapping for").replace("dictionary", "mapping")
    return text.replace("a valid string", "text").removeprefix("a valid ")


def _format_value(value: object) -> str:
    text = repr(mask_passwords(value) if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys_at(path: KeyPath) -> list[str]:
    """The keys of the model at `path`; none where any key is valid."""
    annotation: Any = Settings
    for part in path:
        annotation = next(_step(annotation, part), None)
    models = [model for model in _members(annotation) if _is_model(model)]
    return sorted(models[0].model_fields) if models else []


def _step(annotation: Any, part: str | int) -> Iterator[Any]:
    for member in _members(annotation):
        if _is_model(member):
            if part in member.model_fields:
                yield member.model_fields[part].annotation
        elif get_origin(member) is dict and isinstance(part, str):
            yield get_args(member)[1]
        elif get_origin(member) is list and isinstance(part, int):
            yield get_args(member)[0]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the annotation itself."""
    if annotation is None or _is_model(annotation) or get_origin(annotation) in (dict, list):
        return (annotation,)
    return get_args(annotation) or (annotation,)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
