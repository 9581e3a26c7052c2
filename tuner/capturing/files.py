"""Calls as a JSON file.

    {"format": "tuner calls", "version": 1, "calls": [...], "contents": {sha256: base64 of zlib}}

Nothing in the file is executed; it names kernels by the module or file that defines them.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from search_spaces.source_positions import one_line
from tuner.capturing.call_records import Buffer, Call, Grid, Values, View, Written
from tuner.capturing.checked_calls import check_calls, foreign_file
from tuner.capturing.contents import Packed, check_packed, packed_of

_FORMAT, _VERSION = "tuner calls", 1
#: Bytes to which the contents of a file may unpack, and how many times its size beyond that.
_MOST_UNPACKED, _MOST_RATIO = 1 << 30, 8
#: What a text raises that is no file of calls.
_DAMAGES = (
    *(ValueError, TypeError, KeyError, AttributeError, IndexError),
    *(RecursionError, OverflowError, zlib.error),
)


def save(path: Path, calls: Sequence[Call], contents: Mapping[str, bytes]) -> None:
    """Write calls and the contents that they name; an existing file is replaced as a whole."""
    content = f"{as_json(calls, contents)}\n".encode()
    write_output(path, content, "name another file")


def load(path: Path) -> tuple[tuple[Call, ...], Packed]:
    """The calls and contents of a file; raises `TunerError` in one line for a bad one."""
    remedy = "write it with `tuner capture -o FILE -- python ...`"
    try:
        if path.exists() and not path.is_file():
            raise TunerError(f"{path}: it is no file", remedy)
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise TunerError(f"{path}: {error.strerror}", remedy) from error
    found, contents = from_json(text, f"{path}")
    calls = tuple(
        call if call.problem or not (reason := foreign_file(call)) else call.with_problem(reason)
        for call in found
    )
    return calls, contents


def merge(paths: Sequence[Path]) -> tuple[tuple[Call, ...], Packed]:
    """The calls and contents of several files as one; those with equal arguments are one call."""
    found: dict[str, Call] = {}
    contents = Packed()
    for path in paths:
        calls, kept = from_json(path.read_text(encoding="utf-8"), f"{path}")
        contents.packed.update(kept.packed)
        for call in calls:
            known = found.get(call.digest)
            if known is not None:
                times = [each.gpu_us for each in (known, call) if each.gpu_us is not None]
                total = sum(times) if times else None
                call = dataclasses.replace(known, count=known.count + call.count, gpu_us=total)
            found[call.digest] = call
    return tuple(found.values()), contents


def as_json(calls: Sequence[Call], contents: Mapping[str, bytes]) -> str:
    named = {buffer.contents for call in calls for buffer in call.buffers} - {""}
    packed = packed_of(contents)
    kept = {
        name: base64.b64encode(packed[name]).decode() for name in sorted(named) if name in packed
    }
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "calls": [dataclasses.asdict(call) for call in calls],
        "contents": kept,
    }
    # The order of arguments is kept, so keys are not sorted.
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def from_json(text: str, where: str) -> tuple[tuple[Call, ...], Packed]:
    """Calls and contents of the text of a file; raises `TunerError` in one line for a bad one."""
    remedy = "write it again with `tuner capture -o FILE -- python ...`"
    try:
        document = json.loads(text, parse_constant=_refuse)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise TunerError(f"{where}: it is no file of captured calls", remedy)
        if document.get("version") != _VERSION:
            version = document.get("version")
            raise TunerError(
                f"{where}: version {version} of captured calls is unknown, this tuner reads "
                f"{_VERSION}",
                remedy,
            )
        calls = tuple(_call(item) for item in document["calls"])
        check_calls(calls)
        contents = _contents(calls, document["contents"])
    except TunerError:
        raise
    except _DAMAGES as error:
        raise TunerError(f"{where}: it is damaged ({one_line(error)})", remedy) from error
    return calls, contents


def _contents(calls: Sequence[Call], found: Mapping[str, str]) -> Packed:
    """The contents of a file, after a check of their sizes and checksums."""
    sizes = {each.contents: each.bytes for call in calls for each in call.buffers if each.contents}
    if missing := sizes.keys() - found.keys():
        raise ValueError(f"the contents {min(missing):.12} are missing")
    if sum(sizes.values()) > max(_MOST_UNPACKED, _MOST_RATIO * sum(map(len, found.values()))):
        raise ValueError(f"its contents would unpack to {sum(sizes.values())} bytes")
    packed = {name: base64.b64decode(text, validate=True) for name, text in found.items()}
    for name, data in packed.items():
        if name not in sizes:
            raise ValueError(f"no tensor has the contents {name!r:.14}")
        check_packed(name, data, sizes[name])
    return Packed(packed)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _call(item: Mapping[str, Any]) -> Call:
    fields = dict(item)
    fields["decorators"] = tuple(fields["decorators"])
    fields["keywords"] = tuple(fields["keywords"])
    fields["zeroed"] = tuple(fields["zeroed"])
    if fields.get("free") is not None:
        fields["free"] = tuple(fields["free"])
    fields["buffers"] = tuple(
        Buffer(**{**each, "values": None if each["values"] is None else Values(**each["values"])})
        for each in fields["buffers"]
    )
    fields["views"] = tuple(
        View(**{**each, "shape": tuple(each["shape"]), "strides": tuple(each["strides"])})
        for each in fields["views"]
    )
    grid = fields["grid"]
    fields["grid"] = Grid(
        tuple(grid["sizes"]),
        grid["callable"],
        tuple(grid["reads"]),
        tuple((tuple(read), tuple(sizes)) for read, sizes in grid["rows"]),
        tuple(grid.get("steered_by", ())),
    )
    written = fields["written"]
    fields["written"] = None if written is None else tuple(Written(**each) for each in written)
    return Call(**fields)
