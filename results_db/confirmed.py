"""The confirmed tasks of all runs, in outline, for the choice of the best known result."""

from __future__ import annotations

from sqlalchemy import Connection, select

from results_db.models import Device, Kernel, Selection, Task, Toolchain, Workload
from results_db.stored_records import ConfirmedTask


def tasks(connection: Connection, kernel: str | None) -> list[ConfirmedTask]:
    """Tasks with a confirmed time, the newest result first. Loads no samples.

    kernel: only tasks of the kernel with this name.
    """
    query = (
        select(
            Task.id.label("task_id"),
            Kernel.name.label("kernel"),
            Kernel.launch_hash,
            Workload.key.label("workload"),
            Device.kind.label("device_kind"),
            Device.name.label("device"),
            Device.target,
            Device.fingerprint,
            Toolchain.torch,
            Toolchain.triton,
        )
        .select_from(Task)
        .join(Selection, Selection.task_id == Task.id)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(Workload, Task.workload_id == Workload.id)
        .join(Device, Task.device_id == Device.id)
        .join(Toolchain, Task.toolchain_id == Toolchain.id)
        .where(Selection.median_us.is_not(None))
        .order_by(Selection.recorded_at.desc(), Selection.id.desc())
    )
    if kernel is not None:
        query = query.where(Kernel.name == kernel)
    return [ConfirmedTask(**row) for row in connection.execute(query).mappings()]
