"""A report section from an installed package, added in one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from installed_plugins import install_plugins
from page_reader import Element, read
from report_samples import sample

import reports
from reports import subjects
from reports.source import load

PLUGIN = """
import pandas as pd

from reports import RunData, Section, SectionSpec, Table, figure_view, figures


def build(data: RunData) -> Section:
    spreads = pd.DataFrame({"task": [task.label for task in data.tasks], "spread": 0.01})
    table = Table.of(("task", "trials"), ((t.label, len(t.trials)) for t in data.tasks))
    view = figure_view("spreads", figures.noise(spreads), "Every spread is 1 %.", table)
    return Section.of(
        "energy",
        "Energy <b>",
        paragraphs=["Joules & <script>alert(1)</script>"],
        figures=[view],
        tables={"Trials": table},
    )


def empty(data: RunData) -> None:
    return None


def failing(data: RunData) -> Section:
    raise RuntimeError("no <meter> found")


def duplicate(data: RunData) -> Section:
    return Section.of("summary", "Second summary")


AFTER_NOISE = SectionSpec(build, after="noise")
NUMBER = 7
"""

BUILT_IN = [
    *("summary", "leaderboard", "compiled", "tasks"),
    *("failures", "measuring", "noise", "environment"),
]


@pytest.fixture
def page_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], Element]]:
    """Install entry points and render the sample run: names of the sections, and the page."""

    def render(**places: str) -> tuple[list[str], Element]:
        (tmp_path / "energy_report.py").write_text(PLUGIN)
        install_plugins(tmp_path, "energy-report", "tuner.report_sections", places)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "energy_report", raising=False)
        page = read(reports.render(sample(2, built=1)))
        return [section.attributes["id"] for section in page.all("section")], page

    return render


def test_a_section_of_a_plugin_follows_the_section_it_names(page_with):
    names, page = page_with(energy="energy_report:AFTER_NOISE")
    assert names == [*BUILT_IN[:-1], "energy", "environment"]
    section = page.one("section", id="energy")
    assert "Joules & <script>alert(1)</script>" in section.text
    assert "Every spread is 1 %." in section.one("figcaption").text
    assert json.loads(section.one("figure").one("script").raw)["data"]
    assert [a.text for a in page.one("nav").all("a")][-2:] == ["Energy <b>", "Environment"]


def test_a_plain_function_is_a_section_at_the_end_and_none_is_no_section(page_with):
    names, _ = page_with(energy="energy_report:build", zero="energy_report:empty")
    assert names == [*BUILT_IN, "energy"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("energy_report:failing", "RuntimeError: no <meter> found"),
        ("energy_report:NUMBER", "is a int, not a function or a SectionSpec"),
        ("energy_report:missing", "cannot be loaded from energy_report:missing"),
        ("energy_report:duplicate", "has the name of another section, 'summary'"),
    ],
)
def test_a_plugin_that_fails_does_not_fail_the_report(page_with, caplog, place, reason):
    names, page = page_with(broken=place, energy="energy_report:build")
    assert names == [*BUILT_IN, "plugin-0", "energy"]
    section = page.one("section", id="plugin-0")
    assert "This section could not be built" in section.text
    assert reason in section.text
    assert [record.name for record in caplog.records] == ["reports.subjects"]


BUILT_IN_MODULE = """
from reports.view import Section, SectionSpec


def build(data):
    return Section.of("cost", "Cost", paragraphs=[f"{len(data.tasks)} tasks"])


SECTION = SectionSpec(build, after="tasks")
"""


def test_a_module_among_the_subjects_is_a_section_without_a_word_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "cost.py").write_text(BUILT_IN_MODULE)
    places = [*subjects.__path__, f"{tmp_path}"]
    name = subjects.__name__
    spec = spec_from_file_location(name, subjects.__file__, submodule_search_locations=places)
    longer = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, longer)
    spec.loader.exec_module(longer)
    try:
        sections = longer.build_sections(load(sample(2, built=1)))
    finally:
        sys.modules.pop(f"{name}.cost", None)
    at = BUILT_IN.index("tasks") + 1
    names = [section.name for section in sections]
    assert names == [*BUILT_IN[:at], "cost", *BUILT_IN[at:]]
    assert sections[at].context["paragraphs"] == ("3 tasks",)
