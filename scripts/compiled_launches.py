"""What two revisions launch, compiled here for a GPU that this machine does not have.

`in_tree` calls a function of a script with the search spaces of another revision, in a process of
its own; `compiled` turns a launch into text and a digest of its binary, for comparison.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


# -- in the process that compares -----------------------------------------------------------------
def unpack(revision: str, folder: Path) -> None:
    """The files of a revision, under `folder`."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def in_tree(tree: Path, script: str, function: str, *arguments: str) -> dict[str, Any]:
    """What a function of a script of this folder prints as JSON, on the code of `tree`."""
    paths = [f"{tree}", f"{ROOT / 'scripts'}"]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; import {script}; {script}.{function}(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=tree,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def unnamed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compiled launches without the names of functions and options."""
    return [{field: launch[field] for field in ("grid", "arguments", "binary")} for launch in found]


# -- in the process of one tree -------------------------------------------------------------------
def launches(kernel: Any, workload: Any, config: Any, target: str) -> list[dict[str, Any]]:
    """The compiled launches of a variant."""
    buffers = tensors(kernel, workload, config)
    return [compiled(launch, target) for launch in kernel.launches(workload, config, buffers)]


def tensors(kernel: Any, workload: Any, config: Any) -> dict[str, Any]:
    """Inputs, outputs and scratch of a variant on the `meta` device."""
    from search_spaces.tensors import empty_tensors

    specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    return {**kernel.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}


def compiled(launch: Any, target: str) -> dict[str, Any]:
    """A launch as text, and a digest of its binary for the target."""
    import triton

    triton.runtime.driver.set_active(OfflineDriver(target))
    built = launch.fn.warmup(*launch.args, grid=launch.grid, **launch.kwargs)
    binary = built.asm["cubin"] if "cubin" in built.asm else built.asm["hsaco"]
    return {
        "function": launch.fn.__name__,
        "grid": list(launch.grid),
        "arguments": [shown(value) for value in launch.args],
        "options": {name: shown(value) for name, value in sorted(launch.kwargs.items())},
        "binary": executed(binary, built.metadata.name),
    }


def shown(value: Any) -> str:
    """An argument as text: of a tensor its shape, dtype and strides, of a descriptor its fields."""
    if hasattr(value, "stride"):
        return f"{value.dtype}{list(value.shape)} by {list(value.stride())}"
    if hasattr(value, "block_shape"):
        fields = [list(value.shape), list(value.strides), list(value.block_shape)]
        return f"descriptor of {shown(value.base)} {fields}"
    return f"{type(value).__name__} {value!r}"


def executed(binary: bytes, name: str) -> str:
    """A digest of a binary without its notes, its names and the lines of its source."""
    from elftools.elf.elffile import ELFFile

    sha = hashlib.sha256()
    for section in ELFFile(io.BytesIO(binary)).iter_sections():
        volatile = (".debug", "nv_debug", ".note", ".comment", "strtab", "symtab")
        if not any(part in section.name for part in volatile):
            sha.update(section.name.removesuffix(name).encode() + section.data())
    return sha.hexdigest()


class OfflineDriver:
    """Triton's driver for a GPU that this machine does not have."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        kind, _, arch = target.partition(":")
        lanes = 64 if arch.startswith("gfx9") else 32
        self._target = GPUTarget(kind, int(arch) if arch.isdigit() else arch, lanes)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
