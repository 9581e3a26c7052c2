"""Which versions stand between a kernel's source and its binary on this machine."""

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
from typing import Any

from search_spaces.records import Toolchain

_BUILD_FIELDS = ("torch", "triton", "cuda", "ptxas", "compiler")


@functools.cache
def current(kind: str) -> Toolchain:
    """The toolchain of this process for a kind of backend; neither torch nor CUDA is loaded.

    kind `cpu` has a C++ compiler and no Triton; every other kind has Triton and no C++ compiler.
    """
    torch = _torch_versions()
    if kind == "cpu":
        return Toolchain(
            python=platform.python_version(),
            torch=torch["torch"],
            compiler=compiler_version(),
        )
    return Toolchain(
        python=platform.python_version(),
        torch=torch["torch"],
        triton=_triton_version(),
        cuda=torch["cuda"],
        ptxas=_ptxas_version() if kind != "hip" else "",
        driver=_driver_version() if kind == "cuda" else "",
    )


def mismatch(built: Toolchain, here: Toolchain) -> str | None:
    """One line naming what keeps a binary of `built` from being loaded `here`; None when nothing.

    Beyond `build_key`, the Python minor version counts: both compilers' caches depend on it.
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
    return f"built with another toolchain than this worker's: {', '.join(different)}"


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
    # torch/version.py holds plain assignments; reading it saves the two seconds of `import torch`.
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
    pynvml: Any = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
