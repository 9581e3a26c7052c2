"""Paths below the driver's working folder, as they are on another node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from workers.job_records import KernelRef

_RECORDED = "recorded:"


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """The driver's working folder and its copy on this node.

    Ray unpacks a job's `working_dir` on every node, at a path that may differ. Paths stay as they
    are if the driver's folder exists here too.
    """

    #: The folder's path on the driver's node.
    there: str
    #: The path of its copy here.
    here: str

    def path(self, path: str) -> str:
        """The path on this node."""
        inside = path == self.there or path.startswith(f"{self.there}{os.sep}")
        if not inside or os.path.isdir(self.there):
            return path
        return f"{self.here}{path[len(self.there) :]}"

    def paths(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The paths on this node."""
        return tuple(map(self.path, paths))

    def kernel(self, kernel: KernelRef) -> KernelRef:
        """The reference as this node resolves it; its spec may begin with a path or contain one."""
        place = kernel.spec.removeprefix(_RECORDED)
        spec = f"{kernel.spec[: len(kernel.spec) - len(place)]}{self.path(place)}"
        sources = tuple((self.path(file), found) for file, found in kernel.sources)
        return replace(kernel, spec=spec, paths=self.paths(kernel.paths), sources=sources)
