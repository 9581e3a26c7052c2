"""The part of plotly.js in the page: its version, its traces, its size."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from plotly import graph_objects
from plotly.offline import get_plotlyjs_version
from report_samples import MemorySource, measured_task, run_info, sample

import reports
from reports.view import Table, figure_view, version_and_traces
from search_spaces.errors import TunerError
from search_spaces.records import Workload

#: What a trial may add to a page: its part of the figures and of the table of all trials.
BYTES_PER_TRIAL = 400
ROOT = Path(reports.__file__).parents[1]


def test_the_bundle_is_what_its_script_makes():
    subprocess.run([ROOT / "scripts/build_plotly.sh", "--check"], check=True)


def test_the_bundle_draws_the_figures_of_the_installed_plotly():
    version, traces = version_and_traces()
    assert version == get_plotlyjs_version()
    source = sample(3, built=1)
    drawn = {
        trace.type for figure in reports.plotly_figures(source).values() for trace in figure.data
    }
    assert drawn == {"bar", "box", "heatmap", "scatter"}
    assert drawn <= traces


def test_a_small_report_is_small():
    assert len(reports.render(sample(3, built=1)).encode()) < 1_600_000


def test_a_trial_takes_few_bytes():
    sizes = []
    for count in (200, 1200):
        source = MemorySource([run_info(1)])
        measured_task(source, 1, "matmul", Workload.of(M=64), count=count)
        sizes.append(len(reports.render(source).encode()))
    assert sizes[1] - sizes[0] < 1000 * BYTES_PER_TRIAL
    assert sizes[1] < 2_000_000


def test_a_trace_that_the_page_cannot_draw_is_refused():
    heat = graph_objects.Figure(graph_objects.Heatmap(z=[[1.0]]), {"height": 200})
    assert figure_view("map", heat, "A map.", Table((), ())).height == 200
    pie = graph_objects.Figure(graph_objects.Pie(values=[1.0]), {"height": 200})
    with pytest.raises(TunerError, match="no pie traces"):
        figure_view("pie", pie, "A pie.", Table((), ()))


def test_figures_are_made_again_in_the_same_process():
    source = sample(1, built=0)
    assert reports.plotly_figures(source).keys() == reports.plotly_figures(source).keys()
