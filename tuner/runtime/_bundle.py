"""Bundles: tables and compiled kernels that `tuner bundle` made for other machines.

A bundle is a folder, or a zip file of one, which is unpacked first:

    manifest.json    versions, targets, the calls that it is for, and the digest of every file
    tables/*.json    searched after TUNER_TABLES; those of libraries' kernels are applied
    kernels.pack     files of Triton's cache, each compressed, one after the other
    modules/*/*      Triton's host modules, which the system's loader reads where they are

A bundle is code, and is loaded from an explicit path alone. The digests of tables are checked when
it is loaded, those of all other files when they are needed. `_bundle_cache.py` is what Triton asks
for compiled kernels.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cache

from ._applications import IN_WORKER, apply
from ._compile_mode import never_compiles
from ._device import version
from ._given_tables import place_in
from ._import_watch import after_import
from ._lookup import clear
from ._table_files import BUNDLED, PathLike, load
from ._text import printable
from ._warn import warn_once
from .device_code import settle_cache_keys

SCHEMA = 1
VARIABLE = "TUNER_BUNDLE"
PACK, MODULES, TABLES, MANIFEST = "kernels.pack", "modules", "tables", "manifest.json"
#: Triton's variable for its cache manager, and where that keeps what it was before.
MANAGER, FORMER = "TRITON_CACHE_MANAGER", "TUNER_FORMER_CACHE_MANAGER"
_OURS = f"{__package__}._bundle_cache:BundleCache"
_DRIVER = "cuda_utils"


class BundleError(Exception):
    """What is wrong with a bundle, as a clause."""


@dataclass(frozen=True)
class Bundle:
    """A bundle in use."""

    #: As it was given.
    path: str
    folder: str
    #: Per target what assembles for it, as Triton's compiler says.
    targets: dict[str, str]
    #: Digest of Triton's own files.
    triton: str
    #: By key of Triton's cache and file name: place and length in the pack, and the digest.
    kernels: dict[str, dict[str, tuple[int, int, str]]]
    #: By key and name of a host module: its digest.
    modules: dict[str, dict[str, str]]
    #: Why no kernel of it is used, by target; empty where they are.
    misfits: dict[str, str] = field(default_factory=dict)

    def find_group(self, key: str) -> dict[str, str]:
        """The files of a compiled kernel by name, as paths; none if it is missing or damaged."""
        known = self.kernels.get(key, {})
        try:
            return {name: self._unpack(key, name, *at) for name, at in known.items()}
        except Exception as error:  # whatever a damaged file leads to
            self.warn(f"has a damaged kernel ({error})")
            return {}

    def find_module(self, key: str, name: str) -> str | None:
        """The path of a host module. The driver's key differs with the folders of a machine."""
        if name.startswith(_DRIVER):
            key = next((other for other, found in self.modules.items() if name in found), key)
        if name not in self.modules.get(key, {}):
            return None
        path = os.path.join(self.folder, MODULES, key, name)
        try:
            _verify(path, self.modules[key][name])
        except (OSError, BundleError) as error:
            self.warn(f"has a damaged module ({error})")
            return None
        return path

    def _unpack(self, key: str, name: str, start: int, length: int, digest: str) -> str:
        path = os.path.join(_scratch(), key, name)
        if not os.path.exists(path):
            with open(os.path.join(self.folder, PACK), "rb") as pack:
                pack.seek(start)
                data = zlib.decompress(pack.read(length))
            _check(name, data, digest)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            new = f"{path}.{os.getpid()}"
            with open(new, "wb") as file:
                file.write(data)
            os.replace(new, path)
        return path

    def warn(self, problem: str) -> None:
        """Say once that something is wrong; kernels are compiled then."""
        text = f"bundle {self.path} {problem}; kernels compile as usual"
        warn_once(("bundle", self.path, problem.partition("(")[0]), text)


#: Those in use, the latest first.
BUNDLES: list[Bundle] = []


def load_bundle(path: PathLike) -> bool:
    """Take tables and compiled kernels from a bundle from now on; whether it can be used.

    path: a folder or a zip file of `tuner bundle`. It is code: load only what you have made
    yourself. Load it before the first launch. What is wrong with it is logged in one line, and
    kernels compile as usual then. Processes that this one starts use it, too.
    """
    given = os.path.abspath(os.fsdecode(path))
    if any(bundle.path == given for bundle in BUNDLES):
        return True
    try:
        bundle = _open(given)
    except BundleError as error:
        reason = f"{error}"
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        reason = f"is damaged ({error!r:.200})"
    else:
        _use(bundle)
        return True
    warn_once(("bundle", given), f"bundle {given} {reason}; kernels compile as usual")
    return False


def _use(bundle: Bundle) -> None:
    BUNDLES.insert(0, bundle)
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([bundle.path, *_list_named()]))
    ask_first()
    tables = os.path.join(bundle.folder, TABLES)
    BUNDLED.insert(0, tables)
    clear()
    found = [load(os.path.join(tables, name)) for name in sorted(os.listdir(tables))]
    if placed := [table for table in found if table is not None and place_in(table)]:
        apply(placed)


def load_environment() -> None:
    """Load what TUNER_BUNDLE names, separated as in PATH; the farm's own workers do not."""
    if IN_WORKER in os.environ:
        return
    for path in reversed(_list_named()):
        load_bundle(path)
    if never_compiles():
        ask_first()


def _list_named() -> list[str]:
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def ask_first() -> None:
    """Let Triton look for compiled kernels by `_bundle_cache.py`, in child processes too."""
    if os.environ.get(MANAGER) != _OURS:
        os.environ[FORMER], os.environ[MANAGER] = os.environ.get(MANAGER, ""), _OURS
    # Builders have these hashes.
    if "triton.runtime.jit" in sys.modules:
        settle_cache_keys()
    else:
        after_import("triton", settle_cache_keys)


def _open(path: str) -> Bundle:
    """Read a bundle's manifest, and check it and the tables."""
    folder = path
    if os.path.isfile(path):
        folder = os.path.join(_scratch(), hashlib.sha256(path.encode()).hexdigest()[:16])
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    with open(os.path.join(folder, MANIFEST), "rb") as file:
        manifest = json.loads(file.read())
    if manifest["schema"] != SCHEMA:
        raise BundleError(f"is of schema {manifest['schema']!r:.20}, this tuner reads {SCHEMA}")
    for name, here in describe_process().items():
        if (made := manifest["made_with"][name]) != here:
            raise BundleError(f"was made with {name} {printable(made, 60)}, this is {here}")
    tables = os.path.join(folder, TABLES)
    if sorted(os.listdir(tables)) != sorted(manifest["tables"]):
        raise BundleError("is damaged (other tables than its manifest names)")
    for name, digest in manifest["tables"].items():
        _verify(os.path.join(tables, name), digest)
    if os.path.getsize(os.path.join(folder, PACK)) != manifest["pack_bytes"]:
        raise BundleError(f"is damaged ({PACK} has another size)")
    for group in (manifest["kernels"], manifest["modules"]):
        for name in {part for key, files in group.items() for part in (key, *files)}:
            if os.path.basename(name) != name or name in ("", ".", ".."):
                raise BundleError(f"is damaged (a file is named {name!r:.40})")
    targets, triton = dict(manifest["targets"]), manifest["triton_digest"]
    return Bundle(path, folder, targets, triton, manifest["kernels"], manifest["modules"])


def describe_process() -> dict[str, str]:
    """What compiled kernels and host modules of this process depend on, by name."""
    return {
        "Python": f"{sysconfig.get_config_var('EXT_SUFFIX')}",
        "torch": version("torch").partition("+")[0],
        "Triton": version("triton"),
    }


def _verify(path: str, digest: str) -> None:
    with open(path, "rb") as file:
        _check(os.path.basename(path), file.read(), digest)


def _check(name: str, data: bytes, digest: str) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise BundleError(f"is damaged ({name} has another digest)")


@cache
def _scratch() -> str:
    """A private folder of this process and its forks, for files that Triton reads."""
    folder, process = tempfile.mkdtemp(prefix="tuner-bundle-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
