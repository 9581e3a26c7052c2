"""Static facts of a GPU binary: the hash of its code, registers, spills.

Cubins and code objects are ELF files. Sections with debug information, notes and names depend on
paths and on the time of the build; the other sections are what the device executes.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

_VOLATILE = re.compile(r"(\.rela?)?\.(debug|nv_debug|note|comment|shstrtab|strtab|symtab)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
#: Attributes of the `.nv.info` section, one per function: registers per thread, stack bytes.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
#: Format of an attribute that is followed by its size and its value.
_SIZED_VALUE = 0x04


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread needs."""

    #: 32-bit registers.
    registers: int
    #: Bytes of local memory.
    spill_bytes: int


def code_hash(binary: bytes) -> str:
    """SHA-256 of what the device executes, as hexadecimal; of the whole file if it is not ELF."""
    sha = hashlib.sha256()
    try:
        for section in _sections(binary):
            if not _VOLATILE.match(section.name):
                content = _content(binary, section)
                sha.update(f"{section.name} {section['sh_size']} {len(content)}\n".encode())
                sha.update(content)
    except (ELFError, ArithmeticError, LookupError, ValueError):  # not ELF, or damaged
        return hashlib.sha256(binary).hexdigest()
    return sha.hexdigest()


def cubin_resources(cubin: bytes) -> Resources:
    """Resources of a cubin from `cuobjdump`, or from its attributes where that is missing."""
    return _by_cuobjdump(cubin) or resources_of_attributes(cubin)


def resources_of_attributes(cubin: bytes) -> Resources:
    """Resources from the `.nv.info` section: the maximum over the cubin's functions."""
    found_sections = (section for section in _sections(cubin) if section.name == ".nv.info")
    info = next((_content(cubin, section) for section in found_sections), b"")
    largest = {_REGISTERS: 0, _FRAME_BYTES: 0}
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == _SIZED_VALUE and attribute in largest and size >= 8:
            (value,) = struct.unpack_from("<I", info, at + 8)
            largest[attribute] = max(largest[attribute], value)
        at += 4 + (size if form == _SIZED_VALUE else 0)
    return Resources(largest[_REGISTERS], largest[_FRAME_BYTES])


def code_object_resources(assembly: str) -> Resources:
    """Resources from the metadata in AMD assembly text: the maximum over its kernels."""

    def largest(name: str) -> int:
        values = re.findall(rf"^\s*\.{name}:\s*(\d+)", assembly, re.MULTILINE)
        return max(map(int, values), default=0)

    return Resources(largest("vgpr_count"), largest("private_segment_fixed_size"))


def _sections(binary: bytes) -> Iterator[Section]:
    """The sections of an ELF file. Raises `ELFError` for anything else."""
    return ELFFile(io.BytesIO(binary)).iter_sections()


def _content(binary: bytes, section: Section) -> bytes:
    """The bytes of a section as they are in the file; none for a section without contents."""
    if section["sh_type"] == "SHT_NOBITS":
        return b""
    return binary[section["sh_offset"] : section["sh_offset"] + section["sh_size"]]


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin from `cuobjdump`; empty where that is missing."""
    return _run_cuobjdump("--dump-sass", cubin)


def _by_cuobjdump(cubin: bytes) -> Resources | None:
    text = _run_cuobjdump("--dump-resource-usage", cubin)
    usage = [tuple(map(int, groups)) for groups in _RESOURCES.findall(text)]
    if not usage:
        return None
    return Resources(
        max(registers for registers, _, _ in usage), max(stack + local for _, stack, local in usage)
    )


def _run_cuobjdump(option: str, cubin: bytes) -> str:
    """What the tool prints; nothing where it is missing or fails."""
    tool = _cuobjdump()
    if tool is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            return subprocess.run(
                [tool, option, file.name],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return ""


def _cuobjdump() -> str | None:
    import triton
    from triton import knobs

    try:
        tool: Any = knobs.nvidia.cuobjdump
        return str(tool.path)
    except (AttributeError, RuntimeError):
        path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        return str(path) if path.is_file() else None
