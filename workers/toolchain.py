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

from search_spaces import triton_versions
from search_spaces.records import Toolchain
from workers.environment import code_variables
from workers.nvml import opened_nvml

_BUILD_FIELDS = ("torch", "triton", "cuda", "ptxas", "compiler", "variables")


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
        variables=code_variables(),
    )


def inductor_toolchain() -> Toolchain:
    """The toolchain of a kind whose variants Inductor compiles to C++; loads no torch."""
    return Toolchain(
        python=platform.python_version(),
        torch=_torch_versions()["torch"],
        compiler=compiler_version(),
        variables=code_variables(),
    )


def mismatch(built: Toolchain, here: Toolchain) -> str | None:
    """One line that names why a binary of `built` cannot be loaded `here`; None when it can."""
    if different := differences(built, here):
        return f"built with a toolchain that differs from this worker's: {different}"
    return None


def differences(one: Toolchain, other: Toolchain, *, further: tuple[str, ...] = ()) -> str:
    """The parts that keep binaries of one toolchain from the other, as `triton 3.6.0 -> 3.7.1`.

    They are the parts of `build_key`, and the minor version of Python, because the caches of both
    compilers depend on it. further: parts that are compared as well. Empty where all are equal.
    """
    different = [
        f"{name} {getattr(one, name) or 'none'} -> {getattr(other, name) or 'none'}"
        for name in (*_BUILD_FIELDS, *further)
        if getattr(one, name) != getattr(other, name)
    ]
    if _minor(one.python) != _minor(other.python):
        different.insert(0, f"python {one.python} -> {other.python}")
    return ", ".join(different)


def compiler() -> str:
    """The command of the C++ compiler as Inductor chooses it; empty where there is no such program.

    It is `$CXX` where that is set, and g++ otherwise.
    """
    command = os.environ.get("CXX") or "g++"
    return command if shutil.which(command) else ""


def compiler_version() -> str:
    """First line of the C++ compiler's `--version`, empty when there is no compiler."""
    return _first_line(compiler())


@functools.cache
def _first_line(command: str) -> str:
    return _output(command, "--version").partition("\n")[0].strip() if command else ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@functools.cache
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


@functools.cache
def _triton_version() -> str:
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


@functools.cache
def _ptxas_version() -> str:
    """The version of NVIDIA's assembler; of both where Triton, from 3.9 on, has one for Hopper."""
    version = triton_versions.read_installed()
    hopper = version is not None and version >= (3, 9)
    found = map(_version_of_tool, ["ptxas", *(["ptxas-blackwell"] if hopper else [])])
    return " ".join(dict.fromkeys(filter(None, found)))


def _version_of_tool(name: str) -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    packaged = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    chosen = os.environ.get(f"TRITON_{name.upper().replace('-', '_')}_PATH")
    for command in (chosen, str(packaged)):
        if command and os.access(command, os.X_OK):
            found = re.search(r"\bV(\d[\d.]*)", _output(command, "--version"))
            if found:
                return found.group(1)
    return ""


@functools.cache
def _driver_version() -> str:
    with opened_nvml() as nvml:
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml is not None else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
