"""The section "Time line" of a run with a trace."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from page_reader import read
from report_samples import sample

import reports
from reports import figures
from reports.subjects.timeline import timeline_frame

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m"
STORED = {
    "started_at": "2026-11-20T12:00:00+00:00",
    "lanes": ["driver", "builder-0"],
    "spans": [
        [0, 0.0, 2000.0, 0, "start", "start of Python"],
        [0, 500.0, 1500.0, 1, "import", "import torch"],
        [1, 2000.0, 1000.0, 0, "build", "build softmax", "killed"],
    ],
    "spans_left_out": 0,
}


def with_timeline(**changes: object):
    source = sample()
    source.timelines[max(run.run_id for run in source.run_list)] = {**STORED, **changes}
    return source


def figure_data(page):
    script = page.one("figure", id="figure-timeline-spans").one("script")
    return json.loads(script.text)


def test_a_run_without_a_trace_has_no_section():
    assert not read(reports.render(sample())).all("section", id="timeline")


def test_the_section_shows_spans_lanes_and_times():
    page = read(reports.render(with_timeline()))
    section = page.one("section", id="timeline")
    caption = section.one("figcaption").text
    assert "3.00 s in 2 lanes" in caption
    assert "import 1.50 s" in caption
    figure = figure_data(page)
    assert {trace["name"] for trace in figure["data"]} == {"start", "import", "build"}
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["driver", "builder-0"]
    assert "build softmax (killed)" in section.text
    # Spans inside another one do not count twice.
    totals = section.all("table")[-1]
    assert "start 0.500 s 17% 1" in " ".join(totals.text.split())


def test_hostile_names_are_inert():
    spans = [[0, 0.0, 50.0, 0, HOSTILE, HOSTILE], *STORED["spans"]]
    text = reports.render(with_timeline(spans=spans, lanes=[HOSTILE, "b"]))
    assert "<img src=x" not in text
    page = read(text)
    figure = figure_data(page)
    assert "<" not in figure["layout"]["annotations"][0]["text"]
    assert not any("<" in name for trace in figure["data"] for name in trace["text"])


def test_spans_that_were_left_out_are_counted():
    page = read(reports.render(with_timeline(spans_left_out=7)))
    assert "7 shorter spans left out" in page.one("section", id="timeline").text


def test_many_lanes_are_cut_in_the_figure_only():
    lanes = [f"builder-{n}" for n in range(60)]
    spans = [[n, 0.0, 100.0 + n, 0, "build", f"build {n}"] for n in range(60)]
    page = read(reports.render(with_timeline(spans=spans, lanes=lanes)))
    section = page.one("section", id="timeline")
    assert "Shown: 40 of 60 lanes." in section.one("figcaption").text
    assert len(figure_data(page)["layout"]["annotations"]) == 40
    assert "build 0" in section.text


def test_a_span_inside_another_is_a_row_below_it():
    figure = figures.timeline(timeline_frame(STORED))
    rows = {bars.text[0]: bars.y[0] for bars in figure.data}
    assert rows["import torch"] == rows["start of Python"] + 1
    assert rows["build softmax"] > rows["import torch"] + 1
    start = next(bars for bars in figure.data if bars.name == "import")
    assert (start.base[0], start.x[0]) == (0.5, 1.5)


def test_series_differ_by_more_than_colour():
    categories = ["start", "import", "build", "job", "verify", "timing", "strategy"]
    categories += ["database", "output", "end", "unknown"]
    frame = pd.DataFrame(
        [("a", float(n), 1.0, 0, name, name) for n, name in enumerate(categories)],
        columns=["lane", "start_s", "duration_s", "depth", "category", "name"],
    )
    figure = figures.timeline(frame)
    looks = {(bars.marker.color, bars.marker.pattern.shape) for bars in figure.data}
    assert len(looks) == len(categories)


@pytest.mark.parametrize("spans", [[], None])
def test_an_empty_time_line_is_no_section(spans):
    source = with_timeline(spans=spans or [])
    assert not read(reports.render(source)).all("section", id="timeline")


def test_many_rows_lose_their_innermost_spans_in_the_figure():
    lanes = [f"builder-{n}" for n in range(40)]
    spans = [[n, 0.0, 100.0 - d, d, "build", f"{n} {d}"] for n in range(40) for d in range(4)]
    page = read(reports.render(with_timeline(spans=spans, lanes=lanes)))
    section = page.one("section", id="timeline")
    assert "Innermost spans are in the data table only." in section.one("figcaption").text
    (bars,) = figure_data(page)["data"]
    assert len(bars["x"]) == 80
    assert "7 3" in section.text
