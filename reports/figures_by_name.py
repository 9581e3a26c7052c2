"""The figures of a report as Plotly figures, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from plotly import graph_objects

from reports.figures.theme import template
from reports.parts.view import FigureView
from reports.run_data import RunData
from reports.sections import build_sections


def figures_by_name(data: RunData, task_id: int | None = None) -> dict[str, Any]:
    """A figure for each `FigureView` of the page, with the light template.

    task_id: see `reports.plotly_figures`.
    """
    anchors = {f"{task.slug}-": task.info.task_id for task in data.tasks}
    found = {}
    for view in _views([section.context for section in build_sections(data)]):
        # One anchor may be the beginning of another.
        anchor = max(filter(view.name.startswith, anchors), key=len, default="")
        if task_id is None or not anchor:
            found[view.name] = _figure(view)
        elif anchors[anchor] == task_id:
            found[view.name.removeprefix(anchor)] = _figure(view)
    return found


def _figure(view: FigureView) -> Any:
    figure = graph_objects.Figure(view.figure)
    # Notebooks may be dark, and the template's text is dark.
    figure.update_layout(template=template(dark=False), paper_bgcolor="#fff")
    return figure


def _views(value: object) -> Iterator[FigureView]:
    """The figures anywhere in the variables of a template, in their order."""
    if isinstance(value, FigureView):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _views(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _views(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _views(getattr(value, each.name))
