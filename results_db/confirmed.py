"""The confirmed tasks of all runs, in outline, for the choice of the best known result."""

from __future__ import annotations

from sqlalchemy import Connection, select

from results_db.stored_records import ConfirmedTask
from results_db.tables import DEVICE, KERNEL, SELECTION, TASK, TASKS, TOOLCHAIN, WORKLOAD


def tasks(connection: Connection, kernel: str | None) -> list[ConfirmedTask]:
    """Tasks with a confirmed time, the newest result first. Loads no samples.

    kernel: only tasks of the kernel with this name.
    """
    query = (
        select(
            TASK.c.id.label("task_id"),
            KERNEL.c.name.label("kernel"),
            KERNEL.c.launch_hash,
            WORKLOAD.c.key.label("workload"),
            DEVICE.c.kind.label("device_kind"),
            DEVICE.c.name.label("device"),
            DEVICE.c.target,
            DEVICE.c.fingerprint,
            TOOLCHAIN.c.torch,
            TOOLCHAIN.c.triton,
        )
        .select_from(TASKS.join(SELECTION))
        .where(SELECTION.c.median_us.is_not(None))
        .order_by(SELECTION.c.recorded_at.desc(), SELECTION.c.id.desc())
    )
    if kernel is not None:
        query = query.where(KERNEL.c.name == kernel)
    return [ConfirmedTask(**row) for row in connection.execute(query).mappings()]
