"""The two halves of a kernel's identity, computed from what its methods reach.

*What is launched*: code and constants behind the launches. *What is correct and how it is fed*:
behind the reference, the inputs, the tolerance and the baselines. Workloads, search space, default
config and cost are in neither; a space has a digest of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.records import Workload, digest
from tuner.runtime.identity import Closure, closure_of, stamp

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel

LAUNCHED = ("launches", "cpu_callable", "cpu_threads", "outputs", "scratch")
CHECKED = ("reference", "make_inputs", "tolerance", "baselines", "small_workload")
#: What a kernel reached as a whole (`f(self)`) does not bring into its identity.
_IGNORED = frozenset(
    {"workloads", "check_workload", "space", "default_config", "cost", "spec", "space_hash"}
)
#: How people read a workload.
_SHOWN = frozenset({"key"})

_known: dict[tuple[int, tuple[str, ...]], tuple[Callable[[], object], Closure]] = {}


def closure(kernel: Kernel, methods: tuple[str, ...]) -> Closure:
    """What those methods of a kernel reach; computed once in a process.

    Of a file that was edited since, the process runs the old code and its children run the new:
    the identity is then one that no other process has, so that nothing is reused by it.
    """
    from search_spaces.kernel import Kernel as Base

    key = id(kernel), methods
    known = _known.get(key)
    if known is None or known[0]() is not kernel:
        found = closure_of(
            kernel, methods, given=(Workload,), ignored={Base: _IGNORED, Workload: _SHOWN}
        )
        known = _known[key] = weakref.ref(kernel), found
    found = known[1]
    stamps = {file: stamp(file) for file in found.files}
    if stamps == found.files:
        return found
    return replace(found, digest=digest([found.digest, sorted(stamps.items())]), kernels=())
