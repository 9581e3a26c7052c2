"""Paths of the driver's folder as another node has them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from workers.records import KernelRef

_RECORDED = "recorded:"


@dataclass(frozen=True, slots=True)
class Moved:
    """The driver's working folder `there` and what stands for it `here`.

    A job's `working_dir` is unpacked on every node for itself, at a place that need not be the
    same. Where it is the same, or the driver's folder can be seen, paths stay as they are.
    """

    there: str
    here: str

    def path(self, path: str) -> str:
        inside = path == self.there or path.startswith(f"{self.there}{os.sep}")
        if not inside or os.path.isdir(self.there):
            return path
        return f"{self.here}{path[len(self.there) :]}"

    def paths(self, paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.path, paths))

    def kernel(self, kernel: KernelRef) -> KernelRef:
        """Where this node finds the kernel; its spec may begin with a path or hold one."""
        place = kernel.spec.removeprefix(_RECORDED)
        spec = f"{kernel.spec[: len(kernel.spec) - len(place)]}{self.path(place)}"
        return replace(kernel, spec=spec, paths=self.paths(kernel.paths))
