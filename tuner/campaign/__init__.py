"""One run of a campaign: plan it, bring workers up, drive the engine, select, report, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from tuner.campaign.options import Control, RunOptions, RunOutcome
    from tuner.campaign.plan import PlannedTask
    from tuner.campaign.run import pool_spec_of, run_campaign

__all__ = ["Control", "PlannedTask", "RunOptions", "RunOutcome", "pool_spec_of", "run_campaign"]

__getattr__ = lazy_names(
    __name__,
    {
        "tuner.campaign.options": ("Control", "RunOptions", "RunOutcome"),
        "tuner.campaign.plan": ("PlannedTask",),
        "tuner.campaign.run": ("pool_spec_of", "run_campaign"),
    },
)
