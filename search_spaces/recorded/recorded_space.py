"""A recorded space: every config of one task with its status, time and static facts.

Its file is JSON of schema `tuner-space/1`, described in docs/recorded_spaces.md.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.recorded.entries import Noise, RecordedConfig, RecordedParameter
from search_spaces.records import (
    Config,
    Device,
    Toolchain,
    Workload,
    canonical_json,
    config_key,
)

SCHEMA = "tuner-space/1"


@dataclass(frozen=True)
class RecordedSpace:
    """All configs of one task with their times."""

    #: The kernel's name.
    kernel: str
    workload: Workload
    #: The device of the recording, with its original kind.
    device: Device
    toolchain: Toolchain
    parameters: tuple[RecordedParameter, ...]
    #: The config that users run without tuning; one of `configs`.
    default: Config
    configs: tuple[RecordedConfig, ...] = field(repr=False)
    #: The least arithmetic operations of the problem.
    flops: float = 0.0
    #: The least bytes through device memory.
    bytes: float = 0.0
    #: Relative error that a variant may have.
    tolerance: float = 0.0
    #: Median times in microseconds by name.
    baselines: Mapping[str, float] = field(default_factory=dict)
    noise: Noise = field(default_factory=Noise)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RecordedSpace:
        """Read a `.json` or `.json.gz` file. Raises TunerError naming the file and the place."""
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
        from search_spaces.recorded.document import MalformedError, fields_of

        try:
            return cls(**fields_of({n: part for n, part in document.items() if n != "schema"}))
        except MalformedError as error:
            raise TunerError(f"{path}: {error}", "see docs/recorded_spaces.md") from None

    def save(self, path: str | PathLike[str], *, columns: bool = False) -> None:
        """Write the file whole or not at all, gzipped if it ends in `.gz`; equal spaces give equal
        bytes. With `columns` the configs are stored column by column, which is smaller. Raises
        TunerError when that fails."""
        raw = encode(self, columns).encode()
        target = Path(path)
        if target.suffix == ".gz":
            raw = gzip.compress(raw, mtime=0)
        write_output(target, raw, "give another file, or free some space")

    def __getitem__(self, config: Config) -> RecordedConfig:
        """What was recorded of a config; raises KeyError when nothing was."""
        return self._by_key[config_key(config)]

    def __contains__(self, config: Config) -> bool:
        return config_key(config) in self._by_key

    def original(self, config: Config) -> Config:
        """The first config recorded with the binary of this one; raises KeyError as `[]` does."""
        binary = self[config].binary
        return self._originals[binary] if binary else config

    @cached_property
    def _originals(self) -> Mapping[str, Config]:
        return {entry.binary: entry.config for entry in reversed(self.configs)}

    @cached_property
    def _by_key(self) -> Mapping[str, RecordedConfig]:
        return {config_key(entry.config): entry for entry in self.configs}

    @property
    def best(self) -> RecordedConfig:
        """The fastest correct config; raises ValueError when there is none."""
        return min(
            (entry for entry in self.configs if entry.median_us is not None),
            key=lambda entry: (entry.median_us, config_key(entry.config)),
        )

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_by_key", "_originals")
        return {name: value for name, value in self.__dict__.items() if name not in derived}


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


def encode(space: RecordedSpace, columns: bool = False) -> str:
    """The text of a space; equal spaces with equal order of dims give equal text."""
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
    # The dims keep the order in which the kernel declares them.
    dims = json.dumps(head["workload"], separators=(",", ":"), allow_nan=False)
    lines[list(head).index("workload")] = f'"workload": {dims}'
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
