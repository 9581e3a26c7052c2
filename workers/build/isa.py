"""Inductor's probes of the C++ compiler, run once per toolchain and then read from a file.

Before its first kernel, each process of Inductor compiles six programs to find the supported vector
instructions (about ten seconds on two cores) and preprocesses a header (one compiler run per set of
flags). Both depend only on the toolchain. The results of the probes are kept in a file that is part
of every CPU artifact.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import write_atomic
from search_spaces.records import digest
from workers import toolchain
from workers.build.cache import INDUCTOR, ISA, environment
from workers.supervision.machine_faults import fault_of

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
            _results[key] = _probed(probe, self, code)
            merged = {**_read(path), **_results}
            path.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps(merged, sort_keys=True).encode()
            write_atomic(path, content, durable=False)
        return _results[key]

    VecISA.check_build = check_build


def _probed(probe: Callable[[Any, str], object], instructions: Any, code: str) -> bool:
    """The result of a probe.

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
    with environment(TORCHINDUCTOR_CACHE_DIR=str(cache_dir / INDUCTOR)):
        valid_vec_isa_list()


def without_header_precompilation() -> None:
    """Make Inductor compile C++ without a precompiled header.

    Preparing the header runs the compiler even when the kernel's binary is cached. Inductor's
    switch for it is part of the cache key and cannot be used here.
    """
    from torch._inductor import codecache

    if hasattr(codecache, "_precompile_header"):
        codecache._precompile_header = _no_header


def headers_precompilable() -> bool:
    """Whether Inductor's header preparation can run; it calls the `openssl` program."""
    return shutil.which("openssl") is not None


def _no_header(*args: Any, **kwargs: Any) -> None:
    return None


def _read(path: Path) -> dict[str, bool]:
    try:
        results = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(key): bool(value) for key, value in dict(results).items()}
