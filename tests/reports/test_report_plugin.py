"""A report section from an installed package, added in one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed_plugins import install_plugins
from page_reader import Element, read
from report_samples import sample

import reports

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
    assert [record.name for record in caplog.records] == ["reports.sections"]
