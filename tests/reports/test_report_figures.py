"""Figures are pure functions of their frames, and frames contain the data of the trials."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pandas as pd
import pytest
from plotly import graph_objects
from report_samples import MemorySource, measured_task, run_info, sample, trial_list

import reports
from reports import figures
from reports.figures.theme import Drawing
from reports.frames import convergence_frame, noise_frame, parameters_frame, static_frame
from reports.run_data import TaskData
from reports.source import load
from search_spaces.records import Workload


@pytest.fixture(scope="module")
def task() -> TaskData:
    source = MemorySource([run_info(1)])
    measured_task(source, 1, "matmul", Workload.of(M=64, dtype="float16"))
    return load(source).tasks[0]


def test_convergence_goes_down_to_the_fastest_trial(task):
    frame = convergence_frame(task)
    assert len(frame) == len(task.trials)
    best = frame["best_us"].dropna()
    assert best.is_monotonic_decreasing
    assert best.iloc[-1] == task.fastest_trial.median_us
    assert frame["device_s"].is_monotonic_increasing
    assert frame["device_s"].iloc[-1] == pytest.approx(sum(t.device_s for t in task.trials))


def test_device_time_of_reused_trials_is_not_counted_again(task):
    reused = replace(task, trials=tuple(replace(t, source="reused") for t in task.trials))
    assert convergence_frame(reused)["device_s"].max() == 0


def test_each_parameter_value_holds_all_its_trials(task):
    frame = parameters_frame(task)
    assert frame["slowdown"].min() == 1.0
    for _, group in frame.groupby("parameter"):
        assert len(group) == len(task.timed)
    values = list(dict.fromkeys(frame.loc[frame["parameter"] == "BLOCK_M", "value"]))
    assert values == ["32", "64", "128", "256"]


def test_parameters_of_mixed_and_of_many_values_are_grouped():
    rng = random.Random(3)
    odd = [True, 1, 1.0, 0, "x", None, False]
    trials = tuple(
        replace(t, config={"odd": odd[n % 7], "many": n * 1.5, "fixed": 7})
        for n, t in enumerate(trial_list(rng, 5.0, 120))
        if t.median_us
    )
    source = MemorySource([run_info(1)])
    info = measured_task(source, 1, "k", Workload.of(M=1))
    frame = parameters_frame(TaskData(info, trials, "slug", "k"))
    groups = frame.groupby("parameter")["value"].unique()
    assert "fixed" not in groups
    assert list(groups["odd"]) == ["0", "1", "None", "False", "True", "x"]
    assert 4 <= len(groups["many"]) <= 8
    assert groups["many"][0].startswith("0 to ")


def test_figures_do_not_change_their_frames_and_repeat_exactly(task):
    frames = {
        figures.convergence: convergence_frame(task),
        figures.parameters: parameters_frame(task),
        figures.noise: noise_frame([task]),
        figures.static_facts: static_frame([task]),
    }
    for draw, frame in frames.items():
        before = frame.copy(deep=True)
        first = draw(frame).to_json(engine="json")
        assert draw(frame).to_json(engine="json") == first
        pd.testing.assert_frame_equal(frame, before)


def test_speedups_without_intervals_still_draw():
    frame = pd.DataFrame(
        {
            "task": ["<b>a</b>", "b"],
            "opponent": ["default", "fastest baseline"],
            "name": ["default", "<a href=x>"],
            "ratio": [1.2, 0.9],
            "low": [math.nan, 0.8],
            "high": [math.nan, 1.0],
        }
    )
    figure = figures.speedups(frame)
    assert len(figure.data) == 2
    assert "<" not in "".join(note.text for note in figure.layout.annotations)
    assert list(figure.data[0].error_x.array) == [0]


def test_large_searches_are_thinned_but_summarised_whole():
    n = 30_000
    frame = pd.DataFrame(
        {
            "parameter": ["P"] * n,
            "value": ["a", "b"] * (n // 2),
            "slowdown": [1.0 + place / n for place in range(n)],
            "trial": range(n),
            "place": range(n),
        }
    )
    strips, medians, _ = figures.parameters(frame).data
    assert len(strips.x) <= 6000
    assert list(medians.x) == pytest.approx([1.5, 1.5], abs=1e-3)


def test_plotly_accepts_every_figure():
    moments = pd.to_datetime(["2026-01-01", "2026-01-02"], utc=True)
    results = pd.DataFrame(
        {
            "series": "M=64",
            "segment": [0, 1],
            "started": moments,
            "relative": [1.1, 1.0],
            "step": ["", "faster"],
            "label": ["run 1", "run 2"],
        }
    )
    sizes = pd.DataFrame(
        {"size": [64, 128], "series": "table", "ratio": 1.0, "held_out": False, "label": "c"}
    )
    spans = pd.DataFrame(
        {
            "lane": ["builder"],
            "start_s": 0.0,
            "duration_s": 1.5,
            "depth": 0,
            "category": "build",
            "name": "k",
        }
    )
    drawn = [
        figures.history(results),
        figures.ranges(sizes, [96]),
        figures.timeline(spans),
        # Figures of a page are validated where they are made for notebooks.
        *reports.plotly_figures(sample(3, built=1)).values(),
    ]
    for figure in drawn:
        assert graph_objects.Figure(figure.to_dict()).data == figure.data
    drawing = Drawing(100)
    drawing.add("scatter", colour="red")
    with pytest.raises(ValueError, match="Invalid property"):
        graph_objects.Figure(drawing.finish().to_dict())
