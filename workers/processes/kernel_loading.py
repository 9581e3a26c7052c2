"""Kernels in workers: imported as the driver names them, and refused if their files differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workers.processes.machine_faults import MachineFault

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from search_spaces.records import Device
    from workers.job_records import KernelRef


def load_kernel(ref: KernelRef, device: Device | None = None) -> Kernel:
    """The kernel that a reference names; device: as for `registry.load`.

    Raises `MachineFault` if a file of it has other contents than the driver has read, because the
    results would be stored as those of the driver's code.
    """
    from search_spaces import registry, source_changes

    names = ", ".join(Path(file).name for file in source_changes.list_edited(ref.sources))
    if not names:
        kernel = registry.load(ref.spec, ref.paths, device)
        # Once more, because the file may have been edited before it was imported.
        names = ", ".join(Path(file).name for file in source_changes.list_edited(ref.sources))
    if names:
        raise MachineFault(
            f"{names} is not the file that the driver has read",
            "run it again after the edit; on a cluster, give all nodes the same files",
        )
    return kernel
