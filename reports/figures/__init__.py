"""Pure functions from a frame to a `plotly.graph_objects.Figure`, for pages and notebooks."""

from __future__ import annotations

from reports.figures.convergence import convergence
from reports.figures.depths import depths
from reports.figures.errors import errors
from reports.figures.failures import failures
from reports.figures.finals import finals
from reports.figures.history import history
from reports.figures.noise import noise
from reports.figures.pair_map import pair_map
from reports.figures.parameters import parameters
from reports.figures.ranges import ranges
from reports.figures.speedups import speedups
from reports.figures.static_facts import static_facts
from reports.figures.timeline import timeline

__all__ = [
    "convergence",
    "depths",
    "errors",
    "failures",
    "finals",
    "history",
    "noise",
    "pair_map",
    "parameters",
    "ranges",
    "speedups",
    "static_facts",
    "timeline",
]
