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
from reports.source import load
from reports.subjects.compiled import static_frame
from reports.subjects.noise import noise_frame
from reports.subjects.tasks.convergence import convergence_frame
from reports.subjects.tasks.errors import errors_frame
from reports.subjects.tasks.parameters import pair_frame, parameters_frame
from reports.task_data import TaskData
from reports.theme import Drawing
from search_spaces.records import Status, Workload


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


def _change(task: TaskData, change) -> TaskData:
    return TaskData(task.info, tuple(map(change, task.trials)), task.slug, task.label)


def test_each_cell_of_the_map_has_its_best_time_or_says_why_not(task):
    def untime(trial):
        pair = trial.config["BLOCK_M"], trial.config["num_warps"]
        status = {(32, 4): Status.CONSTRAINTS, (64, 8): Status.RUNTIME}.get(pair)
        return replace(trial, status=status, median_us=None) if status else trial

    found = _change(task, untime)
    kept = tuple(t for t in found.trials if (t.config["BLOCK_M"], t.config["num_warps"]) != (32, 8))
    found = TaskData(task.info, kept, task.slug, task.label)
    frame = pair_frame(found, "BLOCK_M", "num_warps")
    cells = {(row.across, row.down): row for row in frame.itertuples()}
    assert list(cells)[:3] == [("32", "4"), ("32", "8"), ("64", "4")]
    assert len(cells) == 8
    assert cells["32", "4"].mark == "infeasible"
    assert cells["64", "8"].mark == "failed"
    assert cells["32", "8"].mark == "not tried"
    assert sum(cell.trials for cell in cells.values()) == len(kept)
    fastest = min(trial.median_us for trial in found.timed)
    for (across, down), cell in cells.items():
        times = [
            trial.median_us
            for trial in found.timed
            if f"{trial.config['BLOCK_M']}" == across and f"{trial.config['num_warps']}" == down
        ]
        assert math.isnan(cell.best) if not times else cell.best == min(times) / fastest
    drawn = figures.pair_map(frame, "BLOCK_M", "num_warps")
    assert [trace.name for trace in drawn.data[1:]] == ["failed", "infeasible"]
    assert [(mark.x[0], mark.y[0]) for mark in drawn.data[1:]] == [(1, 1), (0, 0)]
    assert list(drawn.data[0].z).count(None) == 3


def test_errors_are_coloured_by_the_parameter_that_explains_them(task):
    exact = {"ieee": 3e-4, "tf32": 1.2e-3}
    found = _change(task, lambda t: replace(t, error=exact[t.config["precision"]]))
    name, frame = errors_frame(found, 5)
    assert name == "precision"
    assert set(zip(frame["value"], frame["error"], strict=True)) == set(exact.items())
    assert len(frame) == len(found.timed)
    drawn = figures.errors(frame, name, 2e-3)
    assert [trace.name for trace in drawn.data] == ["precision=ieee", "precision=tf32", "tolerance"]
    assert errors_frame(task, 5)[1].empty  # all alike
    assert errors_frame(_change(task, lambda t: replace(t, error=None)), 5)[1].empty


def test_figures_do_not_change_their_frames_and_repeat_exactly(task):
    frames = {
        figures.convergence: convergence_frame(task),
        figures.parameters: parameters_frame(task),
        figures.noise: noise_frame([task]),
        figures.static_facts: static_frame([task]),
        lambda frame: figures.pair_map(frame, "BLOCK_M", "BLOCK_N"): pair_frame(
            task, "BLOCK_M", "BLOCK_N"
        ),
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


def _results(oldest: float) -> pd.DataFrame:
    """Two runs of one workload. oldest: time of the first over that of the second."""
    return pd.DataFrame(
        {
            "series": "M=64",
            "segment": [0, 1],
            "run": [3, 12],
            "revision": ["01a2659", "4815765"],
            "relative": [oldest, 1.0],
            "step": ["", "faster"],
            "label": ["run 3", "run 12"],
        }
    )


@pytest.mark.parametrize("oldest", [1.0, 1.1, 20.0])
def test_the_axes_of_a_history_fit_its_times_and_name_its_revisions(oldest):
    layout = figures.history(_results(oldest)).layout
    low, high = layout.yaxis.range
    assert 10**low < 1.0 <= oldest < 10**high
    assert high - low == pytest.approx(math.log10(oldest * 1.02**2))
    assert layout.xaxis.ticktext == ("3<br>01a2659", "12<br>4815765")
    assert [line.x0 for line in layout.shapes] == [1]


def test_the_legend_of_a_history_names_what_differs():
    (line, *_) = figures.history(_results(1.0)).data
    assert not line.showlegend
    both = [_results(1.0).assign(series=f"M={rows} N=64 NVIDIA H200") for rows in (8, 16)]
    drawn = figures.history(pd.concat(both)).data
    assert [trace.name for trace in drawn if trace.showlegend] == ["M=8", "M=16"]


def test_plotly_accepts_every_figure():
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
    inexact = pd.DataFrame(
        {"value": ["tf32", "ieee"], "median_us": [1.0, 2.0], "error": [1e-3, 1e-6], "trial": [1, 2]}
    )
    drawn = [
        figures.errors(inexact, "precision", 0.002),
        figures.history(_results(1.1)),
        figures.ranges(sizes, [96]),
        figures.timeline(spans),
        # Figures of a page are validated where they are made for notebooks.
        *reports.plotly_figures(sample(3, built=1)).values(),
    ]
    for figure in drawn:
        assert graph_objects.Figure(figure.to_dict()).data == figure.data
    drawing = Drawing(100)
    drawing.add("scatter", "", colour="red")
    with pytest.raises(ValueError, match="Invalid property"):
        graph_objects.Figure(drawing.finish().to_dict())
