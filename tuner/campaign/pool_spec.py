"""The pool that a campaign needs: kinds and numbers of runners, builders, options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.campaign.tasks import RequestedTask, runner_kinds
from tuner.settings.models import Settings
from workers.records import PoolSpec


def required_pool(settings: Settings, tasks: Sequence[RequestedTask], base: Path) -> PoolSpec:
    """The spec of a pool that can serve these tasks.

    base: the folder of config.yaml, an import path of the workers.
    """
    pool = settings.pool
    counts: dict[str, int | None] = {
        "cpu": pool.cpu_runners,
        "simulated": pool.simulated.runners,
        "interpreter": 1,
    }
    return PoolSpec(
        kind=pool.kind,
        runners={kind: counts.get(kind) for kind in sorted(runner_kinds(tasks))},
        builders=pool.builders,
        address=pool.address,
        connect_timeout_s=pool.connect_timeout,
        options={"simulated": pool.simulated.model_dump(exclude={"runners"})},
        paths=(str(base.resolve()),),
    )
