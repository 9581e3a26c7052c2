"""Calls of kernels that a model made, by kind: what `tuner.optimize` and TUNER_RECORD write.

    {"schema": "tuner-calls/1",
     "calls": [{"kernel": "softmax", "dims": {"rows": 8, "cols": 512, "dtype": "float16"},
                "count": 24, "share": 0.031}]}

Shapes and scalars only, never contents of tensors.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.foreign_json import is_finite, object_of, parse_json, values_of
from search_spaces.records import Value, Workload

SCHEMA = "tuner-calls/1"
#: Kinds of calls that a file holds, the most frequent ones: a few hundred kilobytes.
MOST_KINDS = 4096
_KEYS = {"kernel", "dims", "count", "share"}


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The calls of one kind."""

    kernel: str
    #: The workload as tables have it.
    dims: Mapping[str, Value]
    count: int
    #: Of the time of a step; None where it was not measured.
    share: float | None = None

    @property
    def workload(self) -> Workload:
        return Workload.from_mapping(self.dims)


def write_calls(path: Path, calls: Iterable[ModelCall]) -> Path:
    """Write calls, the most frequent first where no share is known, else the largest share."""
    lines = [
        json.dumps({"kernel": e.kernel, "dims": dict(e.dims), "count": e.count, "share": e.share})
        for e in _rank(calls)[:MOST_KINDS]
    ]
    text = f'{{"schema": "{SCHEMA}", "calls": [\n' + ",\n".join(lines) + "\n]}\n"
    return write_output(path, text.encode(), "free some space or choose another folder")


def read_calls(path: Path) -> list[ModelCall]:
    """The calls of a file, or of all files of a folder together, in this order.

    Raises `TunerError` in one line for what is no such file.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TunerError(f"{path}: no file of calls", "set TUNER_RECORD to it and run the model")
    found: dict[tuple[str, Workload], list[ModelCall]] = defaultdict(list)
    for file in files:
        for call in _read(file):
            found[call.kernel, call.workload].append(call)
    return _rank(_join(calls) for calls in found.values())


def _rank(calls: Iterable[ModelCall]) -> list[ModelCall]:
    return sorted(calls, key=lambda each: (-(each.share or 0.0), -each.count, each.kernel))


def _join(calls: list[ModelCall]) -> ModelCall:
    share = calls[0].share if len(calls) == 1 else None
    return ModelCall(calls[0].kernel, calls[0].dims, sum(each.count for each in calls), share)


def _read(path: Path) -> list[ModelCall]:
    try:
        document = object_of(parse_json(path.read_bytes()))
        if document.keys() != {"schema", "calls"} or document["schema"] != SCHEMA:
            raise ValueError(f"it is not of the schema {SCHEMA}")
        if not isinstance(document["calls"], list):
            raise ValueError("calls: no list")
        return [_call(each, at) for at, each in enumerate(document["calls"])]
    except (OSError, ValueError) as error:
        raise TunerError(f"{path}: no file of calls: {error}", "record the calls again") from None


def _call(document: Any, at: int) -> ModelCall:
    call = object_of(document)
    dims, kernel = values_of(call.get("dims")), call.get("kernel")
    count, share = call.get("count", 0), call.get("share")
    counted = type(count) is int and is_finite(count) and count > 0
    shared = share is None or (is_finite(share) and 0 <= share <= 1)
    if call.keys() == _KEYS and isinstance(kernel, str) and kernel and dims and counted and shared:
        return ModelCall(kernel, dims, count, share)
    raise ValueError(f"calls[{at}]: needs kernel, dims, a positive count, and a share or null")
