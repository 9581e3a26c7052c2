"""Triton's host modules for NVIDIA GPUs, compiled on a machine that has neither GPU nor driver.

Triton compiles its driver module with a C compiler and, up to 3.6, a launcher for each signature of
kernels. They call the CUDA driver, so that they are linked here with an empty library of its name,
and not loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.triton_versions import settle_cache_keys
from workers.compiling.cache import pack_files
from workers.environment import TRITON, set_variables

_NAME = "libcuda.so.1"
_FUNCTION = re.compile(r"\bcu[A-Z]\w+(?=\()")


def build_host_modules(kernels: list[Any], cache_dir: Path) -> dict[str, bytes]:
    """What compiled kernels need on the host, as files of an artifact.

    kernels: of Triton. cache_dir: where this process's Triton keeps its cache.
    """
    from triton.backends.nvidia import driver

    settle_cache_keys()
    with _never_loaded() as paths, set_variables(TRITON_LIBCUDA_PATH=_empty_libcuda()):
        driver.library_dirs.cache_clear()
        driver.libcuda_dirs.cache_clear()
        driver.CudaUtils()
        del driver.CudaUtils.instance  # one without a GPU
        if hasattr(driver, "make_launcher"):
            for kernel in kernels:
                driver.CudaLauncher(kernel.src, kernel.metadata)
    return pack_files(cache_dir, {Path(path) for path in paths}, TRITON)


@cache
def _empty_libcuda() -> str:
    """A folder with a library that has the names of the CUDA driver's functions."""
    from triton.backends.nvidia import driver

    folder = Path(tempfile.mkdtemp(prefix="tuner-libcuda-"))
    texts = [path.read_text() for path in Path(driver.__file__).parent.glob("driver.*")]
    names = {name for text in texts for name in _FUNCTION.findall(text)}
    source = folder / "libcuda.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(names)))
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:  # where Triton looks for one
        raise TunerError("there is no C compiler here", "install gcc, or name one in CC")
    command = [compiler, "-shared", "-fPIC", f"{source}", f"-Wl,-soname,{_NAME}", "-o"]
    subprocess.run([*command, f"{folder / _NAME}"], check=True, capture_output=True)
    (folder / "libcuda.so").symlink_to(_NAME)
    return f"{folder}"


class _Unloaded:
    """Stands for a module that is compiled and not loaded."""

    def __getattr__(self, name: str) -> Any:
        return _Unloaded

    def __init__(self, *arguments: object, **named: object) -> None: ...


@contextmanager
def _never_loaded() -> Iterator[list[str]]:
    """Let Triton load no module that it compiles inside the block; the paths of these."""
    from triton.runtime import build

    paths: list[str] = []

    def load(name: str, path: str) -> Any:
        paths.append(path)
        return _Unloaded()

    before, build._load_module_from_path = build._load_module_from_path, load
    try:
        yield paths
    finally:
        build._load_module_from_path = before
