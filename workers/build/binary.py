"""What a GPU binary says of itself: its identity, registers, spills.

Cubins and code objects are ELF files. Sections that hold debug information, notes and names vary
with paths and the moment of building; the rest is what the device executes.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VOLATILE = re.compile(r"(\.rela?)?\.(debug|nv_debug|note|comment|shstrtab|strtab|symtab)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_NO_BITS = 8
#: attributes of the `.nv.info` section: registers per thread and bytes of stack, per function.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
_SIZED_VALUE = 0x04


@dataclass(frozen=True, slots=True)
class Resources:
    """32-bit registers and bytes of local memory of one thread."""

    registers: int
    spill_bytes: int


def sections(binary: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, size in bytes and contents of each section of a 64-bit little-endian ELF file.

    Raises `ValueError` for anything else.
    """
    if binary[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", binary, 0x28)
        entry, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
        headers = [
            struct.unpack_from("<IIQQQQ", binary, table + index * entry) for index in range(count)
        ]
        names = binary[headers[names_at][4] :]
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"damaged ELF file: {error}") from None
    for name_at, kind, _, _, offset, size in headers:
        name = names[name_at : names.find(b"\0", name_at)].decode("latin-1")
        yield name, size, b"" if kind == _NO_BITS else binary[offset : offset + size]


def code_hash(binary: bytes) -> str:
    """SHA-256 over what the device executes, as hexadecimal; the whole file if it is not ELF."""
    sha = hashlib.sha256()
    try:
        for name, size, content in sections(binary):
            if not _VOLATILE.match(name):
                sha.update(f"{name} {size} {len(content)}\n".encode())
                sha.update(content)
    except ValueError:
        return hashlib.sha256(binary).hexdigest()
    return sha.hexdigest()


def cubin_resources(cubin: bytes) -> Resources:
    """Resources of a cubin by `cuobjdump`, or from its own attributes where there is none."""
    return _by_cuobjdump(cubin) or resources_of_attributes(cubin)


def resources_of_attributes(cubin: bytes) -> Resources:
    """Resources from the `.nv.info` section: the largest of the cubin's functions."""
    info = next((content for name, _, content in sections(cubin) if name == ".nv.info"), b"")
    found = {_REGISTERS: 0, _FRAME_BYTES: 0}
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == _SIZED_VALUE and attribute in found and size >= 8:
            (value,) = struct.unpack_from("<I", info, at + 8)
            found[attribute] = max(found[attribute], value)
        at += 4 + (size if form == _SIZED_VALUE else 0)
    return Resources(found[_REGISTERS], found[_FRAME_BYTES])


def code_object_resources(assembly: str) -> Resources:
    """Resources from the metadata that ends AMD assembly text; the largest of its kernels."""

    def largest(name: str) -> int:
        values = re.findall(rf"^\s*\.{name}:\s*(\d+)", assembly, re.MULTILINE)
        return max(map(int, values), default=0)

    return Resources(largest("vgpr_count"), largest("private_segment_fixed_size"))


def _by_cuobjdump(cubin: bytes) -> Resources | None:
    tool = _cuobjdump()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "--dump-resource-usage", file.name],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    found = [tuple(map(int, groups)) for groups in _RESOURCES.findall(done.stdout)]
    if not found:
        return None
    return Resources(max(f[0] for f in found), max(f[1] + f[2] for f in found))


def _cuobjdump() -> str | None:
    import triton
    from triton import knobs

    try:
        tool: Any = knobs.nvidia.cuobjdump
        return str(tool.path)
    except (AttributeError, RuntimeError):
        path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        return str(path) if path.is_file() else None
