"""The sections of the page in their order: the built-in ones and those of plug-ins.

A plug-in is an entry point of the group `tuner.report_sections`. Its object is a `SectionSpec`, or
a plain function from `RunData` to `Section`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from reports.parts.view import Section
from reports.run_data import RunData
from search_spaces.errors import TunerError
from search_spaces.plugins import PluginGroup

_log = logging.getLogger(__name__)

#: Makes the section of a run; None where the run has nothing to show in it.
SectionBuilder: TypeAlias = Callable[[RunData], Section | None]

#: Name of each built-in section -> its builder, in the order of the page.
_BUILT_IN = {
    "summary": "reports.sections.summary:build",
    "leaderboard": "reports.sections.leaderboard:build",
    "ranges": "reports.sections.ranges:build",
    "compiled": "reports.sections.static_facts:build",
    "tasks": "reports.sections.details:build",
    "failures": "reports.sections.failures:build",
    "measuring": "reports.sections.measuring:build",
    "timeline": "reports.sections.timeline:build",
    "noise": "reports.sections.noise:build",
    "environment": "reports.sections.environment:build",
}
SECTIONS = PluginGroup("tuner.report_sections", "report section", _BUILT_IN)
_ANCHOR = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """A section that a plug-in adds to the page."""

    build: SectionBuilder
    #: Name of the section that it follows; empty for the end of the page.
    after: str = ""


def build_sections(data: RunData, names: Collection[str] | None = None) -> list[Section]:
    """The sections of a run in the order of the page. names: of built-in ones; None for all.

    A plug-in that fails does not fail the report: its section says what went wrong, and a warning
    is logged.
    """
    built = [_built_in(name)(data) for name in _BUILT_IN if names is None or name in names]
    sections = [section for section in built if section is not None]
    for name in SECTIONS.names() if names is None else ():
        if name not in _BUILT_IN:
            _insert(sections, name, data)
    return sections


def _built_in(name: str) -> SectionBuilder:
    return cast("SectionBuilder", SECTIONS.load(name))


def _insert(sections: list[Section], name: str, data: RunData) -> None:
    """Build the section of a plug-in and put it into its place."""
    after = ""
    try:
        spec = _spec(name)
        after = spec.after
        section = spec.build(data)
        if section is None:
            return
        _check(name, section, sections, after)
    except Exception as error:  # a plug-in may raise anything
        _log.warning("report section %r failed", name, exc_info=not isinstance(error, TunerError))
        section, after = _make_failed_section(name, error, sections), ""
    places = [place for place, other in enumerate(sections) if other.name == after]
    sections.insert(places[0] + 1 if places else len(sections), section)


def _spec(name: str) -> SectionSpec:
    found = SECTIONS.load(name)
    if isinstance(found, SectionSpec):
        return found
    if callable(found):
        return SectionSpec(cast("SectionBuilder", found))
    raise SECTIONS.unusable(name, f"is a {type(found).__name__}, not a function or a SectionSpec")


def _check(name: str, section: object, others: Sequence[Section], after: str) -> None:
    if not isinstance(section, Section):
        raise SECTIONS.unusable(name, f"returned a {type(section).__name__}, not a Section")
    if not _ANCHOR.fullmatch(section.name):
        raise SECTIONS.unusable(name, f"has the name {section.name!r}; use a-z, 0-9 and dashes")
    if any(other.name == section.name for other in others):
        raise SECTIONS.unusable(name, f"has the name of another section, {section.name!r}")
    if after and after not in _BUILT_IN and after not in SECTIONS.names():
        raise SECTIONS.unusable(name, f"follows {after!r}, which is no section")


def _make_failed_section(name: str, error: Exception, others: Sequence[Section]) -> Section:
    """A section in place of one that could not be built."""
    taken = {other.name for other in others}
    anchor = next(f"plugin-{n}" for n in range(len(taken) + 1) if f"plugin-{n}" not in taken)
    if isinstance(error, TunerError):
        text = f"This section could not be built: {error.message}. {error.hint}"
    else:
        text = f"This section could not be built ({type(error).__name__}: {error})."
    return Section.of(anchor, name, paragraphs=[text])
