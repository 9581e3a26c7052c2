"""Decode the file format of tables. The file is untrusted: all of it is checked, none is run.

This is the only decoder; `tuner/tables/text.py` is the encoder.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ._device_facts import DeviceFacts
from ._entry import Entry, Rule, Span, Value
from ._table import SCHEMA, Table
from ._text import printable

MAX_BYTES = 16 * 2**20
#: The largest integer argument of a kernel. Larger values would overflow in arithmetic.
MAX_INTEGER = 2**63 - 1
RULES = ("exact", "sizes", "nearest_log2", "fallback")
#: Types of JSON that need no further check as a value.
_PLAIN = frozenset({str, bool, type(None)})
VERDICTS = ("faster", "slower", "same", "undecided")

T = TypeVar("T")


class TableError(ValueError):
    """A table that cannot be used. The message is one line with the place and the fault."""


def read(path: str | os.PathLike[str]) -> Table:
    """The table in a file. Raises `TableError` for anything but a valid table."""
    try:
        with _no_collection():
            return _table(_json(path), os.fsdecode(path))
    except TableError:
        raise
    except OSError as error:
        raise TableError(f"cannot be read ({error.strerror or error})") from None
    except RecursionError:
        raise TableError("is nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise TableError(f"is not a table ({printable(error)})") from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: nothing becomes any, and looking for it takes half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _json(path: str | os.PathLike[str]) -> object:
    try:
        return json.loads(
            _content(path).decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant
        )
    except UnicodeDecodeError:
        raise TableError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise TableError(f"is not JSON (line {error.lineno}, column {error.colno})") from None


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Pipes and devices are refused without being opened.

    Endless files, such as those of /proc, report the size 0 and are refused too.
    """
    _check_file(os.stat(path))
    # The path may lead to a pipe by now, and opening a pipe without a writer would block.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        size = _check_file(os.fstat(descriptor))
        return file.read(size)


def _check_file(status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise TableError("is not a file")
    if status.st_size > MAX_BYTES:
        raise TableError(f"is too large ({status.st_size} bytes, at most {MAX_BYTES})")
    if not status.st_size:
        raise TableError("is empty")
    return status.st_size


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise TableError("has a name twice in one object")
    return found


def _constant(name: str) -> None:
    raise TableError(f"contains {name}, which is not JSON")


def _table(data: object, path: str) -> Table:
    top = _mapping(data, "the file")
    schema = top.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("tuner-table/"):
            raise TableError(f"has schema {printable(schema, 40)}; this runtime reads {SCHEMA}")
        raise TableError(f"is not a table of schema {SCHEMA}")
    kernel = _mapping(top.get("kernel"), "kernel")
    entries = _list(top.get("entries"), "entries")
    default = top.get("default")
    table = Table(
        kernel=_text(kernel.get("name"), "kernel.name"),
        space_hash=_text(kernel.get("space_hash", ""), "kernel.space_hash"),
        device=_device(_mapping(top.get("device"), "device")),
        toolchain={
            name: _text(version, f"toolchain.{printable(name, 40)}")
            for name, version in _mapping(top.get("toolchain"), "toolchain").items()
        },
        entries=tuple(_entries(entries)),
        rule=_rule(_mapping(top.get("lookup"), "lookup")),
        default=None if default is None else _scalars(default, "default"),
        provenance=_scalars(top.get("provenance", {}), "provenance"),
        coverage=tuple(
            _scalars(item, f"coverage[{i}]")
            for i, item in enumerate(_list(top.get("coverage", []), "coverage"))
        ),
        path=path,
        **_code(kernel),
    )
    if len(table.index) != len(table.entries):
        raise TableError("has two entries for one key")
    if overlap := table.find_overlap():
        raise TableError(overlap)
    return table


def _code(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """The digests of code."""
    found: dict[str, Any] = {"launch_hash": _text(kernel.get("launch_hash"), "kernel.launch_hash")}
    hashes = _list(kernel.get("kernel_hashes", []), "kernel.kernel_hashes")
    found["kernel_hashes"] = tuple(_text(item, "kernel.kernel_hashes") for item in hashes)
    return found


def _device(data: Mapping[str, Any]) -> DeviceFacts:
    facts: dict[str, Any] = {"name": _text(data.get("name"), "device.name")}
    for name in ("kind", "target", "fingerprint"):
        facts[name] = _text(data.get(name, ""), f"device.{name}")
    for name in ("sm_count", "memory_bytes", "shared_bytes"):
        facts[name] = int(_number(data.get(name, 0), f"device.{name}"))
    facts["power_limit_w"] = _number(data.get("power_limit_w", 0), "device.power_limit_w")
    return DeviceFacts(**facts)


def _rule(data: Mapping[str, Any]) -> Rule:
    numeric = _list(data.get("numeric", []), "lookup.numeric")
    return Rule(
        rule=_among(data.get("rule"), RULES, "lookup.rule"),
        max_distance=_number(data.get("max_distance", 0), "lookup.max_distance"),
        numeric=tuple(_text(name, "lookup.numeric") for name in numeric),
    )


def _entries(items: list[Any]) -> Iterator[Entry]:
    for at, item in enumerate(items):
        found = _mapping(item, f"entries[{at}]")
        try:
            yield _entry(found)
        except TableError as error:
            # Only a fault needs its place: a launch may wait for thousands of entries.
            raise TableError(f"entries[{at}].{error}") from None


def _entry(item: Mapping[str, Any]) -> Entry:
    interval = item.get("interval")
    if interval is not None:
        ends = _list(interval, "interval")
        if len(ends) != 2:
            raise TableError("interval is not a pair")
        interval = tuple(_number(end, "interval") for end in ends)
    config = _scalars(item.get("config"), "config")
    entry = Entry(
        key=_scalars(item.get("key"), "key"),
        config=config,
        verdict=_among(item.get("verdict"), VERDICTS, "verdict"),
        median_us=_optional(_number, item.get("median_us"), "median_us"),
        speedup_over_default=_optional(
            _number, item.get("speedup_over_default"), "speedup_over_default"
        ),
        interval=interval,
        tie_set=tuple(
            [_scalars(tie, "tie_set") for tie in _list(item.get("tie_set", []), "tie_set")]
        ),
        provenance=_scalars(item.get("provenance", {}), "provenance"),
        dtypes=_optional(_texts, item.get("dtypes"), "dtypes"),
        sizes=_sizes(item.get("sizes", {}), "sizes"),
        serves=_sizes(item.get("serves", {}), "serves"),
        implementation=_text(item.get("implementation", "tuned"), "implementation"),
        baselines={
            name: _number(ratio, _at("baselines", name))
            for name, ratio in _mapping(item.get("baselines", {}), "baselines").items()
        },
    )
    if entry.implementation != "tuned" and entry.implementation not in entry.baselines:
        raise TableError("implementation is not `tuned` nor one of baselines")
    for field, spans in (("sizes", entry.sizes), ("serves", entry.serves)):
        for name, span in spans.items():
            if entry.key.get(name) not in span:
                raise TableError(f"{_at(field, name)} does not hold the entry's size")
    if not entry.serves.keys() <= entry.sizes.keys():
        raise TableError(
            f"{_at('serves', min(entry.serves.keys() - entry.sizes.keys()))} has no sizes"
        )
    return entry


def _sizes(data: object, place: str) -> dict[str, Span]:
    found = {}
    for name, item in _mapping(data, place).items():
        if not isinstance(item, list):
            raise TableError(f"{_at(place, name)} is not a list")
        try:
            found[name] = _span(*item)
        except TypeError:
            where = _at(place, name)
            raise TableError(
                f"{where} is not [low, high] or [low, high, multiple], in integers"
            ) from None
        except ValueError:
            raise TableError(f"{_at(place, name)} is out of range") from None
    return found


@functools.lru_cache(4096, typed=True)
def _span(low: object, high: object, multiple: object = 1) -> Span:
    """A checked span; entries share most of theirs."""
    if not type(low) is type(high) is type(multiple) is int:
        raise TypeError
    if min(low, high, multiple) < 1 or max(low, high, multiple) > MAX_INTEGER:
        raise ValueError
    return Span(low, high, multiple)


def _at(place: str, name: str) -> str:
    return f"{place}.{printable(name, 40)}"


def _mapping(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TableError(f"{place} is not an object")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise TableError(f"{place} is not a list")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise TableError(f"{place} is not text")
    return value


def _texts(value: object, place: str) -> dict[str, str]:
    return {
        name: _text(item, f"{place}.{printable(name, 40)}")
        for name, item in _mapping(value, place).items()
    }


def _number(value: object, place: str) -> float:
    if (type(value) is not float and type(value) is not int) or not 0 <= value < math.inf:
        raise TableError(f"{place} is not a number of at least 0")
    if value > MAX_INTEGER:
        raise TableError(f"{place} is out of range")
    return value


def _among(value: object, allowed: tuple[str, ...], place: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise TableError(f"{place} is {printable(value, 40)}, not one of {', '.join(allowed)}")
    return value


def _scalars(value: object, place: str) -> dict[str, Value]:
    for name, item in _mapping(value, place).items():
        kind = type(item)
        if kind is int:
            if not -MAX_INTEGER <= item <= MAX_INTEGER:
                raise TableError(f"{_at(place, name)} is out of range")
        elif kind is float:
            if not math.isfinite(item):
                raise TableError(f"{_at(place, name)} is not finite")
        elif kind not in _PLAIN:
            raise TableError(f"{_at(place, name)} is not a number, text or null")
    return value  # type: ignore[return-value]


def _optional(check: Callable[[object, str], T], value: object, place: str) -> T | None:
    return None if value is None else check(value, place)
