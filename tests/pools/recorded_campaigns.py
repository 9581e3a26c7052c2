"""A campaign over a recorded space and a pool for it, for tests that run it in their process."""

from __future__ import annotations

from pathlib import Path

from made_up_spaces import synthesize
from virtual_pool import VirtualPool

from tuner.settings import validate
from tuner.settings.sections import Settings


class CountingPool(VirtualPool):
    """A pool in virtual time that counts how often it is started and closed."""

    started = closed = 0

    def start(self) -> None:
        self.started += 1
        super().start()

    def close(self, *, kill: bool = False) -> None:
        self.closed += 1
        super().close(kill=kill)


def campaign_settings(
    folder: Path, trials: int = 12, configs: int = 120, **sections: object
) -> Settings:
    """The settings of a campaign `c` with a database in the folder.

    configs: the size of the space, which is made if the folder has none. sections: other sections.
    """
    if not (folder / "space.json").exists():
        synthesize(configs, seed=5).save(folder / "space.json")
    campaign = {
        "targets": ["simulated"],
        "tasks": [{"kernel": "recorded:space.json"}],
        "budget": {"trials": trials},
    }
    given = {
        "version": 1,
        "database": {"url": f"sqlite:///{folder}/tuner.db"},
        "measure": {"baselines": []},
        "campaigns": {"c": campaign},
    }
    return validate({**given, **sections}, str)
