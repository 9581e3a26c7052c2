"""The compilers' cache files in an artifact: a builder packs them, a runner installs them.

Layout below one cache folder: `triton/` and `inductor/` are the compilers' cache folders, `isa/`
holds the results of probes for vector instructions. Files are zlib-compressed in an artifact; only
this module packs and unpacks them.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from search_spaces.atomic_file import write_atomic
from search_spaces.errors import TunerError
from workers.compiling import isa
from workers.environment import INDUCTOR, TRITON
from workers.job_records import Artifact

_GROUP = "__grp__"
_MAX_FILE_BYTES = 1 << 29


def use_cache(cache_dir: Path) -> None:
    """Make Triton and Inductor of this process keep their caches below `cache_dir`.

    Inductor compiles in the calling thread only. Its worker processes would outlive a killed child
    and would hide their compilations from `count_compilations`.
    """
    root = cache_dir.resolve()
    os.environ["TRITON_CACHE_DIR"] = str(root / TRITON)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / INDUCTOR)
    compile_in_this_thread()


def compile_in_this_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1  # type: ignore[attr-defined]


def pack_files(root: Path, paths: Iterable[Path], prefix: str) -> dict[str, bytes]:
    """Files below `root`, compressed, keyed by `prefix/` and their path relative to `root`."""
    return {
        f"{prefix}/{path.relative_to(root).as_posix()}": zlib.compress(path.read_bytes())
        for path in sorted(paths)
    }


def pack_group(group: Mapping[str, str], keep: frozenset[str]) -> dict[str, bytes]:
    """The cache group of one Triton kernel: the files whose suffix is in `keep`, and their index.

    group: file name -> absolute path, as in `CompiledKernel.metadata_group`. Paths in the packed
    index are relative to its folder; `install` makes them absolute.
    """
    kept = {name: Path(path) for name, path in group.items() if Path(name).suffix in keep}
    folder = next(iter(kept.values())).parent
    files = pack_files(folder.parent, kept.values(), TRITON)
    metadata = next(name for name in kept if name.endswith(".json"))
    index = json.dumps({"child_paths": {name: path.name for name, path in sorted(kept.items())}})
    files[f"{TRITON}/{folder.name}/{_GROUP}{metadata}"] = zlib.compress(index.encode())
    return files


def install(artifact: Artifact, cache_dir: Path) -> None:
    """Write an artifact's files into this process's compiler caches, below `cache_dir`.

    Idempotent, and safe while other processes install the same files: each file is replaced
    atomically, and the index of a group is written after its members. Raises `TunerError` for a
    name outside `cache_dir`, with nothing written, and for contents that cannot be unpacked.
    """
    root = cache_dir.resolve()
    places = _inside(root, artifact.files)
    for name in sorted(places, key=lambda name: _GROUP in name):
        content = _unpack(name, artifact.files[name])
        if places[name].name.startswith(_GROUP):
            content = _absolute_index(name, content, places[name].parent)
        if not _holds(places[name], content):
            places[name].parent.mkdir(parents=True, exist_ok=True)
            write_atomic(places[name], content, durable=False)
    use_cache(root)
    if artifact.target.startswith("cpu:"):
        isa.remember(root)
        isa.without_header_precompilation()


def read_files(artifact: Artifact, suffix: str) -> dict[str, bytes]:
    """The contents of an artifact's files whose names end so, by their names without folders."""
    return {
        PurePosixPath(name).name: _unpack(name, data)
        for name, data in sorted(artifact.files.items())
        if name.endswith(suffix)
    }


def _inside(root: Path, names: Iterable[str]) -> dict[str, Path]:
    """The paths of `names` below `root`, a resolved path. Raises `TunerError` for a path outside
    it, by its name or through a symbolic link."""
    checked: set[Path] = set()
    places: dict[str, Path] = {}
    for name in names:
        relative = PurePosixPath(name)
        unsafe = (
            not relative.parts
            or relative.is_absolute()
            or ".." in relative.parts
            or any(sign in name for sign in ("\\", "\0", ":"))
        )
        # A link in place of the file itself is replaced. Most names share one folder.
        place = root / relative
        if not unsafe and place.parent not in checked:
            unsafe = not place.parent.resolve().is_relative_to(root)
            checked.add(place.parent)
        if unsafe:
            raise TunerError(
                f"artifact file {name!r} would be written outside the cache",
                "build the variant again; do not use artifacts of unknown origin",
            )
        places[name] = place
    return places


def _unpack(name: str, data: bytes) -> bytes:
    unzip = zlib.decompressobj()
    try:
        content = unzip.decompress(data, _MAX_FILE_BYTES)
    except zlib.error as error:
        raise TunerError(f"artifact file {name!r} is damaged: {error}", "build it again") from None
    if not unzip.eof:
        raise TunerError(f"artifact file {name!r} is truncated or too large", "build it again")
    return content


def _absolute_index(name: str, content: bytes, folder: Path) -> bytes:
    try:
        members = json.loads(content)["child_paths"]
        places = _inside(folder, members.values())
        absolute = {child: str(places[path]) for child, path in members.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TunerError(f"artifact index {name!r} is damaged", "build it again") from None
    return json.dumps({"child_paths": absolute}).encode()


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
