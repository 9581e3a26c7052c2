"""The two digests of a kernel's identity, computed from the code that its methods reach.

The launch hash covers the code and constants behind the launches; the check hash those behind
reference, inputs, tolerance and baselines. Workloads, search space, default config and cost are in
neither. A search space has a separate digest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.errors import KernelError
from search_spaces.records import Workload, digest
from tuner.runtime.identity import Closure, IdentityError, closure_of, stamp

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel

LAUNCHED = ("launches", "cpu_callable", "cpu_threads", "outputs", "scratch")
CHECKED = ("reference", "make_inputs", "tolerance", "baselines", "small_workload")
#: Members of a kernel that do not count where it is passed as a whole (`f(self)`).
_IGNORED = frozenset(
    {"workloads", "check_workload", "space", "default_config", "cost", "spec"}
    | {"launch_hash", "check_hash", "kernel_hashes", "space_hash"}
)
#: Members of a workload that only format it.
_SHOWN = frozenset({"key"})

_known: dict[tuple[int, tuple[str, ...]], tuple[Callable[[], object], Closure]] = {}


def closure(kernel: Kernel, methods: tuple[str, ...]) -> Closure:
    """The code that those methods of a kernel reach; computed once per process.

    After an edit of a file, this process runs the old code and its children run the new code. The
    digest then includes the file's stamp, so that no result is reused under it.
    """
    from search_spaces.kernel import Kernel as Base

    key = id(kernel), methods
    known = _known.get(key)
    if known is None or known[0]() is not kernel:
        ignored = {Base: _IGNORED, Workload: _SHOWN}
        try:
            found = closure_of(kernel, methods, given=(Workload,), ignored=ignored)
        except IdentityError as error:
            raise KernelError(f"kernel {kernel.name}: {error}", error.hint) from error
        known = _known[key] = weakref.ref(kernel), found
    found = known[1]
    stamps = {file: stamp(file) for file in found.files}
    if stamps == found.files:
        return found
    return replace(found, digest=digest([found.digest, sorted(stamps.items())]), kernels=())
