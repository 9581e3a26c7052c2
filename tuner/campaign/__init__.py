"""One run of a campaign: plan it, bring workers up, drive the engine, select, report, export."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.campaign.options import Control, RunOptions, RunOutcome
    from tuner.campaign.plan import PlannedTask
    from tuner.campaign.run import pool_spec_of, run_campaign

__all__ = ["Control", "PlannedTask", "RunOptions", "RunOutcome", "pool_spec_of", "run_campaign"]

_HOMES = {
    "Control": "tuner.campaign.driver",
    "PlannedTask": "tuner.campaign.plan",
    "RunOptions": "tuner.campaign.options",
    "RunOutcome": "tuner.campaign.options",
    "pool_spec_of": "tuner.campaign.run",
    "run_campaign": "tuner.campaign.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
