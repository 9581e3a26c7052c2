"""The folder of a bundle, as `tuner/runtime/_bundle.py` describes it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sysconfig
import tempfile
import zipfile
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


def write_wheel(folder: Path, version: str) -> Path:
    """Pack a bundle as a wheel in the parent folder; `pip` installs it as a folder of its name.

    Raises `TunerError` for a version that is none.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise TunerError(f"--wheel {version}: not a version", "write numbers, such as --wheel 1.0")
    name = re.sub(r"\W+", "_", folder.name)
    python, platform = f"cp{sysconfig.get_config_var('py_version_nodot')}", sysconfig.get_platform()
    tag = f"{python}-{python}-{re.sub(r'[-.]', '_', platform)}"
    about, path = f"{name}-{version}.dist-info", folder.parent / f"{name}-{version}-{tag}.whl"
    found = {
        f"{name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    known = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: tuner {__version__}\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n",
    }
    found |= {f"{about}/{each}": text.encode() for each, text in known.items()}
    rows = [f"{each},sha256={_encode_digest(data)},{len(data)}" for each, data in found.items()]
    rows.append(f"{about}/RECORD,,")
    with zipfile.ZipFile(path, "w") as wheel:
        for each, data in {**found, f"{about}/RECORD": "\n".join(rows).encode()}.items():
            wheel.writestr(each, data)
    return path


def _encode_digest(data: bytes) -> str:
    """As wheels have it: base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


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
