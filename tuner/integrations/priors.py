"""Imported configs: what searches try first, and what they have to beat.

A prior has the configs of one file by size. A task whose workload has the prior's dims tries the
configs of the row that the file's library would take, or of the only row. If the file is a table
of a library for the task's device, that row's config is the task's default: a user of the library
launches it today, so the verdict and the table compare with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_output
from search_spaces.bound import BoundSpace
from search_spaces.errors import TunerError
from search_spaces.foreign_json import parse_json, values_of
from search_spaces.params import Parameter, is_member
from search_spaces.records import Config, Value, Workload, canonical_json, digest
from tuner.runtime import file_stem

SCHEMA = "tuner-priors/1"
SUFFIX = ".priors.json"
#: Imported configs that a search tries at most.
MOST = 4
_UNWRITABLE = "free some space or choose another folder: the key paths.priors"


@dataclass(frozen=True, slots=True)
class Prior:
    """The configs of one imported file, in a kernel's own parameters, the best first."""

    kernel: str
    #: The file's name.
    source: str
    #: `vllm-moe`, `t4`, `kernel-tuner`.
    format: str
    #: Dims that a workload must have; None: that it must not have.
    dims: Mapping[str, Value]
    #: Configs by size; the only key is 0 where `size_dim` is empty.
    rows: Mapping[int, Sequence[Config]]
    #: The dim whose nearest row counts; empty: the dims are the whole workload.
    size_dim: str = ""
    #: The device as the file has it; empty where it says none.
    device: str = ""
    #: Whether the first config of a row is what a library launches on that device.
    shipped: bool = False

    def configs(self, workload: Workload) -> Sequence[Config]:
        """The configs for a workload; empty for one of another problem."""
        dims = workload.as_dict()
        if any(dims.get(name) != value for name, value in self.dims.items()):
            return ()
        if not self.size_dim:
            return self.rows[0]
        size = dims.get(self.size_dim)
        if not isinstance(size, int):
            return ()
        return self.rows[min(self.rows, key=lambda one: abs(one - size))]


@dataclass(frozen=True, slots=True)
class Priors:
    """All imported files of a folder. Files for fewer problems go before those for more."""

    found: Sequence[Prior] = ()

    def starts(self, kernel: str, workload: Workload, space: BoundSpace) -> list[Config]:
        """Feasible configs near the imported ones, at most MOST, each once."""
        starts: dict[str, Config] = {}
        for prior in self._of(kernel):
            for config in prior.configs(workload):
                if (near := fit_config(space, config)) is not None:
                    starts.setdefault(canonical_json(dict(near)), near)
        return list(starts.values())[:MOST]

    def _of(self, kernel: str) -> list[Prior]:
        own = [prior for prior in self.found if prior.kernel == kernel]
        return sorted(own, key=lambda prior: -len(prior.dims))

    def default(
        self, kernel: str, workload: Workload, space: BoundSpace, device: str
    ) -> Config | None:
        """What a library launches on this device today; None where that is not known exactly."""
        for prior in self._of(kernel):
            if not prior.shipped or not _same(prior.device, device):
                continue
            for config in prior.configs(workload)[:1]:
                whole = space.complete(config)
                if space.feasible(whole):
                    return whole
        return None


def fit_config(space: BoundSpace, config: Config) -> Config | None:
    """The config with each value replaced by the space's nearest; None where none is feasible.

    Where that is infeasible, the first feasible config one step away is taken.
    """
    nearest = {
        parameter.name: _nearest(parameter, config[parameter.name])
        for parameter in space.parameters
        if parameter.name in config
    }
    whole = space.complete(nearest)
    if space.feasible(whole):
        return whole
    return next(iter(space.neighbours(whole)), None)


def write(folder: Path, prior: Prior) -> Path:
    """Store a prior; one of the same kernel, dims and device from the same file is replaced."""
    same = [prior.kernel, prior.source, dict(prior.dims), prior.device]
    path = folder / f"{file_stem(prior.kernel)}-{digest(same, 8)}{SUFFIX}"
    document = {
        "schema": SCHEMA,
        "kernel": prior.kernel,
        "source": prior.source,
        "format": prior.format,
        "dims": dict(prior.dims),
        "size_dim": prior.size_dim,
        "device": prior.device,
        "shipped": prior.shipped,
        "rows": [
            {"size": size, "configs": [dict(config) for config in prior.rows[size]]}
            for size in sorted(prior.rows)
        ],
    }
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_output(path, text.encode(), _UNWRITABLE)
    return path


def read_folder(folder: Path) -> Priors:
    """All priors of a folder, by file name; raises TunerError for a file that is none."""
    return Priors([_read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))])


def _read(path: Path) -> Prior:
    try:
        document: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"it is {document['schema']}")
        rows = {int(row["size"]): [_values(c) for c in row["configs"]] for row in document["rows"]}
        if not rows or not all(rows.values()) or not (document["size_dim"] or 0 in rows):
            raise ValueError("rows are missing, or one has no config")
        texts = {name: f"{document[name]}" for name in ("kernel", "source", "format", "device")}
        return Prior(
            **texts,
            dims=_values(document["dims"]),
            rows=rows,
            size_dim=f"{document['size_dim']}",
            shipped=document["shipped"] is True,
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise TunerError(
            f"{path}: no {SCHEMA} ({error})", "delete it and run `tuner import` again"
        ) from None


def _values(document: object) -> dict[str, Value]:
    found = values_of(document)
    if found is None:
        raise ValueError(f"{document!r:.80} is no object of values")
    return found


def _same(written: str, device: str) -> bool:
    """Whether a file is for a device; files write blanks as underscores, and all H200 alike."""
    words = device.replace("/", " ").split()
    return written in ("_".join(words), device) or (written == "NVIDIA_H200" and "H200" in words)


def _nearest(parameter: Parameter, value: Value) -> Value:
    values = list(parameter.values())
    if is_member(value, values):
        return value
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        return min(numbers, key=lambda one: abs(one - value))
    return parameter.default


def describe(priors: Sequence[Prior]) -> Iterator[str]:
    """One line per prior."""
    for prior in priors:
        given = {name: value for name, value in prior.dims.items() if value is not None}
        dims = " ".join(f"{name}={value}" for name, value in sorted(given.items()))
        count = sum(map(len, prior.rows.values()))
        by = f" by {prior.size_dim}" if prior.size_dim else ""
        role = f", the default on {prior.device}" if prior.shipped else ""
        yield f"{prior.kernel} [{dims}]: {count} configs{by}{role}"
