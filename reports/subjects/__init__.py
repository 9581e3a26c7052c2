"""The subjects of the page: each module here is a section, with its frame, figure and view.

A module's `SECTION` says how its section is built and which one it follows. An installed package
adds a section by an entry point of the group `tuner.report_sections`. Its object is a `SectionSpec`
too, or a plain function from `RunData` to `Section`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from pkgutil import iter_modules
from typing import cast

from reports.source import RunData
from reports.view import Section, SectionBuilder, SectionSpec
from search_spaces.errors import TunerError
from search_spaces.plugins import PluginGroup

_log = logging.getLogger(__name__)

BUILT_IN = {each.name: f"{__name__}.{each.name}:SECTION" for each in iter_modules(__path__)}
SECTIONS = PluginGroup("tuner.report_sections", "report section", BUILT_IN)
_ANCHOR = re.compile(r"[a-z][a-z0-9-]*")


def build_sections(data: RunData, names: Collection[str] | None = None) -> list[Section]:
    """The sections of a run in the order of the page. names: of built-in ones; None for all.

    A plug-in that fails does not fail the report: its section says what went wrong, and a warning
    is logged.
    """
    ordered = sorted(BUILT_IN, key=_find_path)
    built = [_load(name).build(data) for name in ordered if names is None or name in names]
    sections = [section for section in built if section is not None]
    for name in SECTIONS.names() if names is None else ():
        if name not in BUILT_IN:
            _insert(sections, name, data)
    return sections


def _find_path(name: str) -> tuple[str, ...]:
    """The built-in section and those before it that it follows, from the first."""
    after = _load(name).after
    return (*(_find_path(after) if after else ()), name)


def _load(name: str) -> SectionSpec:
    found = SECTIONS.load(name)
    if isinstance(found, SectionSpec):
        return found
    if callable(found):
        return SectionSpec(cast("SectionBuilder", found))
    raise SECTIONS.unusable(name, f"is a {type(found).__name__}, not a function or a SectionSpec")


def _insert(sections: list[Section], name: str, data: RunData) -> None:
    """Build the section of a plug-in and put it into its place."""
    after = ""
    try:
        spec = _load(name)
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


def _check(name: str, section: object, others: Sequence[Section], after: str) -> None:
    if not isinstance(section, Section):
        raise SECTIONS.unusable(name, f"returned a {type(section).__name__}, not a Section")
    if not _ANCHOR.fullmatch(section.name):
        raise SECTIONS.unusable(name, f"has the name {section.name!r}; use a-z, 0-9 and dashes")
    if any(other.name == section.name for other in others):
        raise SECTIONS.unusable(name, f"has the name of another section, {section.name!r}")
    if after and after not in SECTIONS.names():
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
