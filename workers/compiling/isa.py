"""Inductor's probes of the C++ compiler, run once per toolchain and then read from a file.

Before its first kernel, each process of Inductor compiles ten programs to find the supported vector
instructions (ten seconds of processor time) and preprocesses a header (one compiler run per set of
flags). Both depend only on the toolchain and the processor. The results of the probes are kept in a
file that is part of every CPU artifact. Positive ones are also kept for later builders of the user,
and builders that start together wait for the one that probes. A negative one may be due to a
machine under load, so each builder repeats it.

Inductor probes only instructions that the processor has. What is left to find out is whether the
compiler knows their flags, which a program without torch's headers shows in a tenth of the time.
Only where that fails does the probe of Inductor decide.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_atomic
from search_spaces.records import digest
from workers import toolchain, user_cache
from workers.environment import INDUCTOR, set_variables
from workers.host import cpu_device
from workers.processes.machine_faults import fault_of

#: The folder of the probes' results below a cache folder.
ISA = "isa"
_results: dict[str, bool] = {}


def probe_file(cache_dir: Path) -> Path:
    """The file of this toolchain's probe results below a cache folder."""
    return cache_dir / ISA / f"{toolchain.inductor_toolchain().build_key}.json"


def remember(cache_dir: Path) -> None:
    """Answer probes from the file below `cache_dir`; add the results of new probes to it."""
    from torch._inductor.cpu_vec_isa import VecISA

    path = probe_file(cache_dir)
    _results.update(_read(path))
    probe = getattr(VecISA, "check_build", None)
    if probe is None:
        return
    probe = getattr(probe, "__wrapped__", probe)

    @functools.wraps(probe)
    def check_build(self: Any, code: str) -> bool:
        key = digest([str(self), self.build_arch_flags(), code])
        if key not in _results:
            _results[key] = _compiles(self, code) or _probed(probe, self, code)
            _write(path, {**_read(path), **_results})
        return _results[key]

    VecISA.check_build = check_build


def _compiles(instructions: Any, code: str) -> bool:
    """Whether the compiler takes the flags of the instructions, and the probe's own intrinsics."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    text = code if "ATen" not in code else "int main() { return 0; }"
    flags = instructions.build_arch_flags().split()
    command = [get_cpp_compiler(), *flags, "-x", "c++", "-c", "-", "-o", os.devnull]
    try:
        done = subprocess.run(
            command, input=text, text=True, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _probed(probe: Callable[[Any, str], object], instructions: Any, code: str) -> bool:
    """The result of Inductor's own probe.

    Raises `MachineFault` where the machine failed rather than the compiler; Inductor would take any
    error for a negative result.
    """
    from torch._inductor.cpp_builder import CppBuilder

    raised: list[Exception] = []
    before = CppBuilder.build

    def build(builder: Any) -> None:
        try:
            before(builder)
        except Exception as error:
            raised.append(error)
            raise

    CppBuilder.build = build
    try:
        supported = bool(probe(instructions, code))
    finally:
        CppBuilder.build = before
    for fault in filter(None, map(fault_of, raised)):
        raise fault
    return supported


def probe_once(cache_dir: Path) -> None:
    """Run all missing probes; their own files stay out of every artifact."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    remember(cache_dir)
    if probe_file(cache_dir).is_file():
        with set_variables(TORCHINDUCTOR_CACHE_DIR=str(cache_dir / INDUCTOR)):
            valid_vec_isa_list()
        return
    with (
        _kept_results() as kept,
        set_variables(TORCHINDUCTOR_CACHE_DIR=str(cache_dir / INDUCTOR)),
    ):
        known = {key: True for key, found in _read(kept).items() if found} if kept else {}
        _results.update({**known, **_results})
        valid_vec_isa_list()
        positive = {key: True for key, found in _results.items() if found}
        if kept is not None and not positive.keys() <= known.keys():
            with suppress(OSError):  # later builders probe again
                _write(kept, {**known, **positive})
    _write(probe_file(cache_dir), _results)


@contextmanager
def _kept_results() -> Iterator[Path | None]:
    """The user's file of results for this toolchain and processor, for this process alone.

    None where the user's cache cannot be used.
    """
    folder = user_cache.folder(ISA)
    if folder is None:
        yield None
        return
    here = cpu_device()
    name = digest([toolchain.inductor_toolchain().build_key, here.name, here.target], 32)
    try:
        lock = (folder / f"{name}.lock").open("w")
    except OSError:
        yield None
        return
    with lock:
        with suppress(OSError):  # a network file system without locks: builders probe twice
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / f"{name}.json"


def without_header_precompilation() -> None:
    """Make Inductor compile C++ without a precompiled header.

    Preparing the header runs the compiler even when the kernel's binary is cached. Inductor's
    switch for it is part of the cache key and cannot be used here.
    """
    from torch._inductor import codecache

    make = getattr(codecache, "_precompile_header", None)
    if make is not None and make is not _no_header:
        _no_header.__wrapped__ = make  # type: ignore[attr-defined]
        codecache._precompile_header = _no_header


def left_out() -> Callable[..., Any] | None:
    """Inductor's header preparation, if `without_header_precompilation` has replaced it."""
    from torch._inductor import codecache

    if getattr(codecache, "_precompile_header", None) is not _no_header:
        return None
    make: Callable[..., Any] | None = getattr(_no_header, "__wrapped__", None)
    return make


def headers_precompilable() -> bool:
    """Whether Inductor's header preparation can run; it calls the `openssl` program."""
    return shutil.which("openssl") is not None


def _no_header(*args: Any, **kwargs: Any) -> None:
    return None


def _write(path: Path, results: Mapping[str, bool]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(results, sort_keys=True).encode(), durable=False)


def _read(path: Path) -> dict[str, bool]:
    try:
        results = json.loads(path.read_bytes())
        return {str(key): bool(value) for key, value in dict(results).items()}
    except (OSError, ValueError, TypeError):
        return {}
