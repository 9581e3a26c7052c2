"""`tuner run FILE:object`: a campaign of one kernel, which no config.yaml lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.settings.sections import Settings


def names_kernel(word: str | None) -> bool:
    """Whether a word names a kernel: campaigns of config.yaml have no colon in their names."""
    return word is not None and ":" in word


def with_kernel(
    settings: Settings,
    base: Path,
    spec: str,
    *,
    workloads: Sequence[str] = (),
    target: str | None = None,
) -> tuple[Settings, str]:
    """The settings with a campaign of one kernel, and the campaign's name.

    Its limits and strategy are the defaults of campaigns, which `tuner.tune` has too. workloads: as
    for `tuner bench`; by default all that the kernel lists. Raises `TunerError`.
    """
    from tuner.compare.targets import pick_kernel, pick_workloads
    from tuner.settings.sections import CampaignConfig, TaskConfig

    found, kinds = pick_kernel(settings, base, spec, target)
    chosen = pick_workloads(found, workloads or None)
    campaign = CampaignConfig(
        tasks=[TaskConfig(kernel=spec, workloads=[each.as_dict() for each in chosen])],
        targets=[target] if target else list(kinds),
    )
    campaigns = {**settings.campaigns, spec: campaign}
    return settings.model_copy(update={"campaigns": campaigns}), spec
