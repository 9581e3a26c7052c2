"""What Inductor asks the C++ compiler before its first kernel, asked once and remembered.

Before it compiles anything, each process of Inductor probes by trial compilation which vector
instructions the compiler and torch support (six programs, about ten seconds on two cores), and
preprocesses a header (one compiler run per set of flags). Both depend on the toolchain alone. The
probes' verdicts are kept in a file that travels with every CPU artifact.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search_spaces.records import digest
from workers import toolchain
from workers.build.cache import INDUCTOR, ISA, environment, write_atomic
from workers.supervision.machine_faults import fault_of

_verdicts: dict[str, bool] = {}


def verdict_file(cache_dir: Path) -> Path:
    """Where the verdicts of this toolchain are kept below a cache folder."""
    return cache_dir / ISA / f"{toolchain.current('cpu').build_key}.json"


def remember(cache_dir: Path) -> None:
    """Answer probes from the verdicts below `cache_dir`; add to them what has to be probed."""
    from torch._inductor.cpu_vec_isa import VecISA

    path = verdict_file(cache_dir)
    _verdicts.update(_read(path))
    probe = getattr(VecISA, "check_build", None)
    if probe is None:
        return
    probe = getattr(probe, "__wrapped__", probe)

    @functools.wraps(probe)
    def check_build(self: Any, code: str) -> bool:
        key = digest([str(self), self.build_arch_flags(), code])
        if key not in _verdicts:
            _verdicts[key] = _probed(probe, self, code)
            merged = {**_read(path), **_verdicts}
            write_atomic(path, json.dumps(merged, sort_keys=True).encode())
        return _verdicts[key]

    VecISA.check_build = check_build


def _probed(probe: Callable[[Any, str], object], instructions: Any, code: str) -> bool:
    """The verdict of a probe. Raises `MachineFault` where the machine failed, not the compiler:
    Inductor takes whatever goes wrong for a no."""
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
        verdict = bool(probe(instructions, code))
    finally:
        CppBuilder.build = before
    for fault in filter(None, map(fault_of, raised)):
        raise fault
    return verdict


def probe_once(cache_dir: Path) -> None:
    """Have all verdicts below `cache_dir`; the probes' own files stay out of any artifact."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    remember(cache_dir)
    with environment(TORCHINDUCTOR_CACHE_DIR=str(cache_dir / INDUCTOR)):
        valid_vec_isa_list()


def without_header_precompilation() -> None:
    """Compile C++, where it must be compiled at all, without a precompiled header.

    Inductor's preparation of the header runs the compiler even when the kernel's binary is
    cached. Its own switch for this is part of the cache key, so it cannot be used here.
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
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(key): bool(value) for key, value in dict(found).items()}
