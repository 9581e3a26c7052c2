"""Pure functions from a frame to a `plotly.graph_objects.Figure`, for plug-ins and notebooks."""

from __future__ import annotations

from reports.history import history as history
from reports.subjects.compiled import static_facts as static_facts
from reports.subjects.failures import failures as failures
from reports.subjects.leaderboard import speedups as speedups
from reports.subjects.measuring import depths as depths
from reports.subjects.noise import noise as noise
from reports.subjects.ranges import ranges as ranges
from reports.subjects.tasks.convergence import convergence as convergence
from reports.subjects.tasks.errors import errors as errors
from reports.subjects.tasks.finals import finals as finals
from reports.subjects.tasks.parameters import pair_map as pair_map
from reports.subjects.tasks.parameters import parameters as parameters
from reports.subjects.timeline import timeline as timeline
