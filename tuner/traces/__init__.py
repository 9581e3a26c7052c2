"""Traces of a run: the spans of all its processes, as a file for Perfetto and in the report.

`tuner.base.tracing` records the spans; this package joins the records of all processes.
"""

from __future__ import annotations

from tuner.traces.recording import keep_exit, record, timeline_so_far

__all__ = ["keep_exit", "record", "timeline_so_far"]
