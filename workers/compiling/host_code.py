"""Triton's host modules for NVIDIA GPUs, compiled by processes that have no GPU.

Triton compiles its driver module with a C compiler and, up to 3.6, a launcher for each signature of
kernels. They call the CUDA driver: here they are not loaded, and for another machine they are
linked with an empty library of its name.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from triton import knobs

from search_spaces.errors import TunerError
from search_spaces.records import digest
from search_spaces.triton_versions import settle_cache_keys
from workers.compiling.cache import pack_files
from workers.environment import HOST_MODULES, TRITON, set_variables
from workers.machine_lock import MachineLock

_log = logging.getLogger(__name__)
_NAME = "libcuda.so.1"
_FLAGS = ("-shared", "-fPIC", f"-Wl,-soname,{_NAME}")
_FUNCTION = re.compile(r"\bcu[A-Z]\w+(?=\()")


def build_host_modules(kernels: Sequence[Any], cache_dir: Path) -> dict[str, bytes]:
    """What compiled kernels need on the host, as files of an artifact.

    kernels: of Triton. cache_dir: where this process's Triton keeps its cache.
    """
    from triton.backends.nvidia import driver

    with _linked_without_driver(driver):
        return pack_files(cache_dir, {Path(path) for path in _compile(kernels)}, TRITON)


def keep_host_modules(kernels: Sequence[Any] = ()) -> None:
    """Compile Triton's driver module, and what kernels need on the host, into the user's folder.

    Device processes find them there, see `host_modules`. Linked with this machine's driver, whose
    folder is part of their keys from Triton 3.8 on; nothing without one. What cannot be compiled is
    left to the device processes, which report it; also while another process compiles: builders
    that begin together would all compile the same.
    """
    lock = MachineLock(f"host-modules-{digest(knobs.cache.get_triton_dir('cache'))}")
    try:
        if lock.take():
            with set_variables(**HOST_MODULES):
                _compile(kernels)
    except (OSError, subprocess.SubprocessError, AssertionError, RuntimeError) as error:
        # Triton asserts that there is a driver, and raises RuntimeError without a compiler.
        _log.info("host modules are not compiled in advance: %s", error)
    finally:
        lock.close()


def _compile(kernels: Sequence[Any]) -> list[str]:
    """Compile the driver module and the launchers of kernels unless they are there; their paths."""
    from triton.backends.nvidia import driver

    settle_cache_keys()
    with _never_loaded() as paths:
        # Not the one of a device that is open.
        driver.CudaUtils.__init__(object.__new__(driver.CudaUtils))
        if hasattr(driver, "make_launcher"):
            for kernel in kernels:
                driver.CudaLauncher(kernel.src, kernel.metadata)
    return paths


@contextmanager
def _linked_without_driver(driver: Any) -> Iterator[None]:
    with set_variables(TRITON_LIBCUDA_PATH=_make_empty_libcuda(driver)):
        _forget_libraries(driver)
        try:
            yield
        finally:
            _forget_libraries(driver)


def _forget_libraries(driver: Any) -> None:
    driver.library_dirs.cache_clear()
    driver.libcuda_dirs.cache_clear()


def _make_empty_libcuda(driver: Any) -> str:
    """A folder with a library that has the names of the CUDA driver's functions."""
    texts = [path.read_text() for path in Path(driver.__file__).parent.glob("driver.*")]
    names = {name for text in texts for name in _FUNCTION.findall(text)}
    source = "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
    folder = Path(knobs.cache.dir) / f"tuner-libcuda-{digest(source)}"
    linked = folder / "libcuda.so"
    if linked.exists():
        return f"{folder}"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:  # where Triton looks for one
        raise TunerError("there is no C compiler here", "install gcc, or name one in CC")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        made = Path(draft) / _NAME
        command = [compiler, *_FLAGS, "-xc", "-", "-o", f"{made}"]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        made.replace(folder / _NAME)
    with suppress(FileExistsError):  # of another builder
        linked.symlink_to(_NAME)
    return f"{folder}"


class _Unloaded:
    """Stands for a module that is compiled and not loaded."""

    def __getattr__(self, name: str) -> Any:
        return _Unloaded

    def __init__(self, *arguments: object, **named: object) -> None: ...


@contextmanager
def _never_loaded() -> Iterator[list[str]]:
    """Let Triton load no module that it compiles inside the block; the paths of these."""
    from triton.backends.nvidia import driver
    from triton.runtime import build

    paths: list[str] = []

    def load(name: str, path: str) -> Any:
        paths.append(path)
        return _Unloaded()

    before, build._load_module_from_path = build._load_module_from_path, load
    types = {**vars(driver)}  # which it takes from its driver module
    try:
        yield paths
    finally:
        build._load_module_from_path = before
        vars(driver).update(types)
