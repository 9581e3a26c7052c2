"""The pool that a campaign needs: kinds and numbers of runners, builders, options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from search_spaces import registry
from tuner.campaign.early_start import present
from tuner.campaign.tasks import RequestedTask, runner_kinds
from tuner.settings.sections import Settings
from workers.job_records import PoolSpec


def required_pool(settings: Settings, tasks: Sequence[RequestedTask], base: Path) -> PoolSpec:
    """The spec of a pool that can serve these tasks.

    base: the folder of config.yaml, an import path of the workers.
    """
    pool = settings.pool
    kinds = sorted(runner_kinds(tasks))
    if pool.kind == "local":
        # Libraries for accelerators that this machine lacks need not be loaded.
        here = present(kinds)
        kinds = [kind for kind in kinds if kind in here or pool.runners_of(kind)]
    return PoolSpec(
        kind=pool.kind,
        runners={kind: pool.runners_of(kind) for kind in kinds},
        builders=pool.builders,
        address=pool.address,
        connect_timeout_s=pool.connect_timeout,
        options={kind: pool.options_of(kind) for kind in kinds},
        paths=(str(base.resolve()),),
        torch_free=all(registry.compiles_without_torch(task.kernel.spec) for task in tasks),
    )
