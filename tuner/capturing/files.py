"""Calls as a JSON file.

    {"format": "tuner calls", "version": 1, "calls": [...], "contents": {sha256: base64 of zlib}}

Nothing in the file is executed; it names kernels by the module or file that defines them.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError
from tuner.capturing.records import Buffer, Call, Grid, Values, View, Written
from tuner.capturing.table import Calls

_FORMAT, _VERSION = "tuner calls", 1


def save(path: Path, calls: Sequence[Call], contents: Mapping[str, bytes]) -> None:
    """Write calls and the contents that they name; an existing file is replaced as a whole."""
    content = f"{as_json(calls, contents)}\n".encode()
    write_output(path, content, "name another file")


def load(path: Path) -> Calls:
    """The calls of a file; raises `TunerError` in one line for a file that is none of ours."""
    try:
        text = path.read_text()
    except OSError as error:
        raise TunerError(
            f"{path}: {error.strerror}", "write it with `tuner capture -o FILE -- python ...`"
        ) from error
    calls, contents = from_json(text, f"{path}")
    return Calls(lambda: calls, contents, {})


def merged(paths: Sequence[Path]) -> Calls:
    """The calls of several files as one; those with equal arguments are one call."""
    found: dict[str, Call] = {}
    contents: dict[str, bytes] = {}
    for path in paths:
        calls, kept = from_json(path.read_text(), f"{path}")
        contents |= kept
        for call in calls:
            known = found.get(call.digest)
            if known is not None:
                times = [each.gpu_us for each in (known, call) if each.gpu_us is not None]
                total = sum(times) if times else None
                call = dataclasses.replace(known, count=known.count + call.count, gpu_us=total)
            found[call.digest] = call
    return Calls(found.values, contents, {})


def as_json(calls: Sequence[Call], contents: Mapping[str, bytes]) -> str:
    named = {buffer.contents for call in calls for buffer in call.buffers} - {""}
    kept = {
        name: base64.b64encode(zlib.compress(contents[name])).decode()
        for name in sorted(named)
        if name in contents
    }
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "calls": [dataclasses.asdict(call) for call in calls],
        "contents": kept,
    }
    # The order of arguments is kept, so keys are not sorted.
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def from_json(text: str, where: str) -> tuple[tuple[Call, ...], dict[str, bytes]]:
    """Calls and contents of the text of a file."""
    remedy = "write it again with `tuner capture -o FILE -- python ...`"
    try:
        document = json.loads(text)
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
        contents = {name: _unpacked(name, packed) for name, packed in document["contents"].items()}
        missing = {buffer.contents for call in calls for buffer in call.buffers} - {"", *contents}
        if missing:
            raise ValueError(f"the contents {min(missing):.12} are missing")
    except TunerError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, zlib.error) as error:
        raise TunerError(f"{where}: it is damaged ({type(error).__name__}: {error})", remedy) from (
            error
        )
    return calls, contents


def _unpacked(name: str, packed: str) -> bytes:
    data = zlib.decompress(base64.b64decode(packed, validate=True))
    if hashlib.sha256(data).hexdigest() != name:
        raise ValueError(f"the contents {name:.12} do not have their checksum")
    return data


def _call(item: Mapping[str, Any]) -> Call:
    fields = dict(item)
    fields["decorators"] = tuple(fields["decorators"])
    fields["keywords"] = tuple(fields["keywords"])
    fields["zeroed"] = tuple(fields["zeroed"])
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
    )
    written = fields["written"]
    fields["written"] = None if written is None else tuple(Written(**each) for each in written)
    return Call(**fields)
