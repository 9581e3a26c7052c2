"""The versions that stand between a kernel's source and its binary on this machine.

`workers.backend_spec(kind).toolchain()` gives the toolchain of a device kind.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import shutil
import subprocess
from pathlib import Path

from search_spaces.records import Toolchain
from workers.nvml import opened_nvml

_BUILD_FIELDS = ("torch", "triton", "cuda", "ptxas", "compiler")


@functools.cache
def triton_toolchain(*, ptxas: bool = False, driver: bool = False) -> Toolchain:
    """The toolchain of a kind whose variants Triton compiles; loads neither torch nor CUDA.

    ptxas, driver: whether NVIDIA's assembler and driver take part.
    """
    torch = _torch_versions()
    return Toolchain(
        python=platform.python_version(),
        torch=torch["torch"],
        triton=_triton_version(),
        cuda=torch["cuda"],
        ptxas=_ptxas_version() if ptxas else "",
        driver=_driver_version() if driver else "",
    )


@functools.cache
def inductor_toolchain() -> Toolchain:
    """The toolchain of a kind whose variants Inductor compiles to C++; loads no torch."""
    return Toolchain(
        python=platform.python_version(),
        torch=_torch_versions()["torch"],
        compiler=compiler_version(),
    )


def mismatch(built: Toolchain, here: Toolchain) -> str | None:
    """One line that names why a binary of `built` cannot be loaded `here`; None when it can.

    Besides the parts of `build_key`, the minor version of Python must agree, because the caches of
    both compilers depend on it.
    """
    different = [
        f"{name} {getattr(built, name) or 'none'} -> {getattr(here, name) or 'none'}"
        for name in _BUILD_FIELDS
        if getattr(built, name) != getattr(here, name)
    ]
    if _minor(built.python) != _minor(here.python):
        different.insert(0, f"python {built.python} -> {here.python}")
    if not different:
        return None
    return f"built with a toolchain that differs from this worker's: {', '.join(different)}"


@functools.cache
def compiler_version() -> str:
    """First line of the C++ compiler's `--version`, empty when there is no compiler."""
    for command in (os.environ.get("CXX"), "g++", "clang++"):
        if command and shutil.which(command):
            return _output(command, "--version").partition("\n")[0].strip()
    return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _torch_versions() -> dict[str, str]:
    # torch/version.py holds plain assignments; running it saves the two seconds of `import torch`.
    found = {"torch": "", "cuda": ""}
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return found
    versions = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    found["torch"] = str(versions.get("__version__") or "")
    found["cuda"] = str(versions.get("cuda") or versions.get("hip") or "")
    return found


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _ptxas_version() -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    packaged = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    for command in (os.environ.get("TRITON_PTXAS_PATH"), str(packaged)):
        if command and os.access(command, os.X_OK):
            found = re.search(r"\bV(\d[\d.]*)", _output(command, "--version"))
            if found:
                return found.group(1)
    return ""


def _driver_version() -> str:
    with opened_nvml() as nvml:
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml is not None else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
