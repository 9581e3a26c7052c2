"""Column types that return exactly the stored value, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, LargeBinary, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from results_db.errors import StoreError
from search_spaces.records import canonical_json

# Compiler output may contain lone surrogates, which neither database stores, and NULs, which
# PostgreSQL does not store.
_ESCAPE = "\x1a"
_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile(_ESCAPE + "([0-9a-f]{4})")


_JSON_NAMES = {dict: "object", list: "array"}


class AnyText(TypeDecorator[str]):
    """Any Python text. NUL and lone surrogates are stored as U+001A and four hexadecimal digits."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return _UNSTORABLE.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        if value is None or _ESCAPE not in value:
            return value
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


class Json(TypeDecorator[Any]):
    """A JSON object or array as canonical text: equal values are equal bytes. None is NULL."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[dict[str, Any]] | type[list[Any]]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> str | None:
        return None if value is None else json_text(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(
                f"the JSON {value!r:.60} is damaged: {error}", "run `tuner db check`"
            ) from error
        if not isinstance(found, self.kind):
            raise StoreError(
                f"the JSON {value!r:.60} is no {_JSON_NAMES[self.kind]}", "run `tuner db check`"
            )
        return found


class UtcDateTime(TypeDecorator[datetime]):
    """An instant. Accepts any time zone, returns UTC, refuses a datetime without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(
                f"the datetime {value.isoformat()} has no time zone", "use datetime.now(UTC)"
            )
        instant = value.astimezone(UTC)
        return instant.replace(tzinfo=None) if dialect.name == "sqlite" else instant

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


class Samples(TypeDecorator[tuple[float, ...]]):
    """Raw times in microseconds as one array: `f` or `d`, then little-endian floats of that size.

    A sample takes four bytes where that is exact, else eight. An empty array is NULL.
    """

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Sequence[float] | None, dialect: Dialect) -> bytes | None:
        return pack_samples(value) if value else None

    def process_result_value(self, value: Any | None, dialect: Dialect) -> tuple[float, ...]:
        return () if value is None else unpack_samples(bytes(value))


def json_text(value: Any) -> str:
    """Canonical JSON. Raises `StoreError` for values that JSON lacks, such as NaN."""
    try:
        return canonical_json(value)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"cannot store {value!r:.200}: {error}", "use numbers, text, booleans and None only"
        ) from error


def pack_samples(samples: Sequence[float]) -> bytes:
    """The stored form of `Samples`."""
    values = tuple(float(sample) for sample in samples)
    try:
        single = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        single = b""
    if single and struct.unpack(f"<{len(values)}f", single) == values:
        return b"f" + single
    return b"d" + struct.pack(f"<{len(values)}d", *values)


def unpack_samples(blob: bytes) -> tuple[float, ...]:
    """The times in the stored form of `Samples`. Raises `StoreError` for damaged bytes."""
    code, size = blob[:1].decode("latin-1"), {b"f": 4, b"d": 8}.get(blob[:1], 0)
    if not size or (len(blob) - 1) % size:
        raise StoreError(
            f"an array of {len(blob)} bytes of samples is damaged", "run `tuner db check`"
        )
    return struct.unpack(f"<{(len(blob) - 1) // size}{code}", blob[1:])
