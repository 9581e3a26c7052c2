"""Reading and writing the files of recorded spaces: JSON of schema `tuner-space/1`."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_atomic
from search_spaces.errors import TunerError
from search_spaces.recorded.recorded_space import RecordedConfig, RecordedSpace
from search_spaces.records import canonical_json

SCHEMA = "tuner-space/1"


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
    # The models need pydantic, whose import costs a tenth of a second.
    from search_spaces.recorded.document import MalformedError, space_of

    try:
        return space_of({name: part for name, part in document.items() if name != "schema"})
    except MalformedError as error:
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


# -- writing ---------------------------------------------------------------------------------------
def write(space: RecordedSpace, path: str | PathLike[str], *, columns: bool) -> None:
    """Write a space; equal spaces give equal bytes. Raises TunerError when that fails."""
    raw = encode(space, columns).encode()
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


def encode(space: RecordedSpace, columns: bool = False) -> str:
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
