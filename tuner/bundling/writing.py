"""The folder of a bundle, as `tuner/runtime/_bundle.py` describes it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sysconfig
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from search_spaces.absent_device.fake_driver import gpu_target
from search_spaces.errors import TunerError
from tuner import __version__
from tuner.bundling.building import Built
from tuner.bundling.bundle_sources import Sources
from tuner.runtime._bundle import MANIFEST, MODULES, PACK, SCHEMA, TABLES, describe_process
from tuner.tables.text import file_name

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
#: Fields of a kernel's facts that name files of the machine which compiled it.
_LOCAL = ("extern_libs",)


def check_place(folder: Path, target: str) -> None:
    """Raise `TunerError` for a folder that has other files than a bundle, and other GPUs."""
    if not target.startswith("cuda:"):
        raise TunerError(f"{target}: bundles are for NVIDIA's GPUs alone", "write --for cuda:90")
    if folder.exists() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
        raise TunerError(f"{folder} holds other files", "name a new folder with -o")


def write_bundle(folder: Path, sources: Sources, built: Built) -> dict[str, int]:
    """Write a bundle; the numbers of its kernels, modules and tables, and its bytes.

    folder: is made, or replaced.
    """
    if not built.files:
        raise TunerError(f"nothing could be compiled: {built.failed[0]}", "see `tuner doctor`")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    made.chmod(0o755)
    try:
        manifest = _write(made, sources, built)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    parts = {name: len(manifest[name]) for name in ("kernels", "modules", "tables")}
    return {**parts, "bytes": size}


def _write(folder: Path, sources: Sources, built: Built) -> Mapping[str, Any]:
    from tuner.runtime._bundle_cache import assembler, triton_digest

    kernels, modules = _write_files(folder, built.files)
    (folder / TABLES).mkdir()
    tables = {}
    for table in sources.tables:
        # Lookups in a folder find a table by its name.
        data, name = Path(table.path).read_bytes(), file_name(table)
        name = name if name not in tables else f"{name[:-5]}-{_digest(data)[:8]}.json"
        (folder / TABLES / name).write_bytes(data)
        tables[name] = _digest(data)
    manifest = {
        "schema": SCHEMA,
        "tuner": __version__,
        "made_with": describe_process(),
        "triton_digest": triton_digest(),
        "targets": {sources.target: assembler(gpu_target(sources.target))},
        "pack_bytes": (folder / PACK).stat().st_size,
        "kernels": kernels,
        "modules": modules,
        "tables": tables,
        "calls": built.calls,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, sort_keys=True) + "\n")
    return manifest


def _write_files(folder: Path, files: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the pack and the modules; their files by key of Triton's cache and name."""
    kernels: dict[str, dict[str, tuple[int, int, str]]] = {}
    modules: dict[str, dict[str, str]] = {}
    (folder / MODULES).mkdir()
    with (folder / PACK).open("wb") as pack:
        for path, packed in sorted(files.items()):
            _, key, name = PurePosixPath(path).parts
            data = zlib.decompress(packed)
            if name.endswith(_SUFFIX):
                (folder / MODULES / key).mkdir(exist_ok=True)
                (folder / MODULES / key / name).write_bytes(data)
                modules.setdefault(key, {})[name] = _digest(data)
            elif not name.startswith("__grp__"):
                data = _without_paths(data) if name.endswith(".json") else data
                packed, start = zlib.compress(data, 9), pack.tell()
                pack.write(packed)
                kernels.setdefault(key, {})[name] = (start, len(packed), _digest(data))
    return kernels, modules


def _without_paths(facts: bytes) -> bytes:
    found = json.loads(facts)
    return json.dumps({**found, **{name: [] for name in _LOCAL if name in found}}).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
