"""Parts of the page: each turns a run into what its template shows. Their order is the page's."""

from __future__ import annotations

from collections.abc import Callable

from reports.sections import (
    details,
    environment,
    failures,
    leaderboard,
    measuring,
    noise,
    static_facts,
    summary,
)
from reports.source import RunData
from reports.view import Section

BUILDERS: tuple[Callable[[RunData], Section | None], ...] = (
    summary.build,
    leaderboard.build,
    static_facts.build,
    details.build,
    failures.build,
    measuring.build,
    noise.build,
    environment.build,
)

__all__ = ["BUILDERS"]
