"""What tasks of one run can learn from each other."""

from __future__ import annotations

from collections.abc import Iterable

from search_spaces.records import Config, config_key
from tuner.engine.search import Search
from tuner.engine.trial import TaskSpec

#: Winners of so many neighbouring workloads are tried first.
NEIGHBOURS = 3


def winners_nearby(opening: TaskSpec, searches: Iterable[Search]) -> list[Config]:
    """Incumbents of searches that are over, of the same kernel and device, for a task that opens.

    Those of the nearest workloads come first, each config once, at most NEIGHBOURS of them; configs
    that are not feasible here are left out.
    """
    from tuner.campaign.environment import distance

    found: dict[str, Config] = {}
    over = [
        (distance(opening.workload, search.spec.workload), search.spec.task_id, search.incumbent)
        for search in searches
        if search.exhausted and search.incumbent is not None and _akin(opening, search.spec)
    ]
    for _, _, incumbent in sorted(over, key=lambda item: item[:2]):
        if opening.space.feasible(incumbent.config):
            found.setdefault(config_key(incumbent.config), incumbent.config)
    return list(found.values())[:NEIGHBOURS]


def _akin(a: TaskSpec, b: TaskSpec) -> bool:
    return (
        a.task_id != b.task_id
        and a.kernel == b.kernel
        and a.device.fingerprint == b.device.fingerprint
    )
