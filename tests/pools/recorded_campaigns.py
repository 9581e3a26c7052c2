"""A campaign over a recorded space, for tests that run it in their own process."""

from __future__ import annotations

from pathlib import Path

from search_spaces.recorded.recorded_kernel import synthesize
from tuner.settings import validate
from tuner.settings.sections import Settings


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
