"""The figures of a task's search: convergence, parameters, error."""

from __future__ import annotations

import pandas as pd

from reports import figures
from reports.figures.errors import LOOKS
from reports.frames import convergence_frame, errors_frame, pair_frame, parameters_frame
from reports.parts.view import MOST_ROWS, FigureView, Table, TrialColumns, figure_view
from reports.quantity import factor, finite, micros, plain, seconds
from reports.run_data import TaskData
from search_spaces.records import config_key

#: Fewest timed trials that say what each parameter does.
ENOUGH = 30


def view_convergence(task: TaskData, trials: TrialColumns) -> list[FigureView]:
    frame = convergence_frame(task)
    default_us = _default_in_search(task)
    steps = frame[frame["best_us"].notna() & (frame["best_us"] != frame["best_us"].shift())]
    last = steps.iloc[-1]
    caption = (
        f"The fastest trial takes {micros(last['best_us'])} µs and is number {int(last['trial'])} "
        f"of {len(frame)}"
    )
    if default_us is not None and last["best_us"]:
        caption += f"; the default config takes {factor(default_us / last['best_us'])} that time"
    total_s = float(frame["device_s"].iloc[-1])
    views = [
        figure_view(
            f"{task.slug}-convergence",
            figures.convergence(frame, "trial", default_us),
            f"{caption}.",
            _steps_table(steps),
            trials,
        )
    ]
    if total_s > 0 and len(task.timed) >= ENOUGH:
        text = (
            f"The search found the fastest trial after {seconds(last['device_s'])} of "
            f"{seconds(total_s)} of device time."
        )
        name = f"{task.slug}-device-time"
        figure = figures.convergence(frame, "device_s", default_us)
        views.append(figure_view(name, figure, text, _steps_table(steps), trials))
    return views


def _steps_table(steps: pd.DataFrame) -> Table:
    return Table.of(
        ("trial", "device time, s", "best so far, µs"),
        (
            (int(row["trial"]), plain(row["device_s"]), micros(row["best_us"]))
            for _, row in steps.iterrows()
        ),
    )


def _default_in_search(task: TaskData) -> float | None:
    """The default config's time in the search, which is comparable with the other trials."""
    selection = task.info.selection
    if selection is None or selection.default is None:
        return None
    key = config_key(selection.default)
    # Keys are slow to make; equal values may be of different types.
    alike = (trial for trial in task.timed if trial.config == selection.default)
    found = next((trial for trial in alike if config_key(trial.config) == key), None)
    return finite(found.median_us) if found else None


def view_parameters(task: TaskData, trials: TrialColumns) -> list[FigureView]:
    """The effect of each parameter, and the map of the two with the largest."""
    frame = parameters_frame(task)
    if frame.empty:
        return []
    summary = [
        (f"{name}", f"{value}", len(group), float(group.min()), float(group.median()))
        for (name, value), group in frame.groupby(["parameter", "value"], sort=False)["slowdown"]
    ]
    worst: dict[str, tuple[float, str]] = {}
    for name, value, _, best, _ in summary:
        worst[name] = max(worst.get(name, (0.0, "")), (best, value), key=lambda found: found[0])
    ranked = sorted(worst, key=lambda name: -worst[name][0])
    most, value = worst[ranked[0]]
    caption = (
        f"{ranked[0]} has the largest effect: the best trial with {value} takes "
        f"{factor(most)} the fastest time."
    )
    table = Table.of(
        ("parameter", "value", "trials", "best ÷ fastest", "median ÷ fastest"),
        ((n, v, trials, factor(best), factor(middle)) for n, v, trials, best, middle in summary),
    )
    name, figure = f"{task.slug}-parameters", figures.parameters(frame)
    views = [figure_view(name, figure, caption, table, trials)]
    few = [
        name
        for name in ranked
        if frame.loc[frame["parameter"] == name, "value"].nunique() <= MOST_ROWS
    ]
    return [*views, _pair_map(task, trials, *few[:2])] if len(few) > 1 else views


def _pair_map(task: TaskData, trials: TrialColumns, across: str, down: str) -> FigureView:
    frame = pair_frame(task, across, down)
    counts = frame["mark"].value_counts()
    rest = "".join(f", {counts[mark]} {mark}" for mark in sorted(counts.index) if mark)
    caption = (
        f"The best time ÷ the fastest by {across} and {down}, the parameters with the largest "
        f"effect; of {len(frame)} pairs {counts.get('', 0)} are timed{rest}."
    )
    cells = [mark or factor(best) for best, mark in zip(frame["best"], frame["mark"], strict=True)]
    columns, lines = list(frame["across"].unique()), list(frame["down"].unique())
    table = Table.of(
        (down, *(f"{across}={value}" for value in columns)),
        ((value, *cells[at :: len(lines)]) for at, value in enumerate(lines)),
    )
    figure = figures.pair_map(frame, across, down)
    return figure_view(f"{task.slug}-map", figure, caption, table, trials)


def view_errors(task: TaskData, trials: TrialColumns) -> FigureView | None:
    """The error against the time, where trials differ in it."""
    parameter, frame = errors_frame(task, len(LOOKS))
    if frame.empty:
        return None
    summary = [
        (f"{value}", len(group), *group["error"].agg(["min", "max"]), group["median_us"].min())
        for value, group in frame.groupby("value", sort=False)
    ]
    exact = min(summary, key=lambda row: row[3])
    fast = min(summary, key=lambda row: row[4])
    caption = (
        f"{parameter} explains most of the error: the fastest trial with {fast[0]} takes "
        f"{micros(fast[4])} µs, and such trials have an error of up to {fast[3]:.2g}"
    )
    if exact is not fast:
        caption += f"; {exact[0]} has up to {exact[3]:.2g} and takes {micros(exact[4])} µs"
    table = Table.of(
        (parameter, "trials", "least error", "largest error", "fastest, µs"),
        ((v, n, f"{low:.2g}", f"{high:.2g}", micros(us)) for v, n, low, high, us in summary),
    )
    figure = figures.errors(frame, parameter, task.info.tolerance)
    return figure_view(f"{task.slug}-errors", figure, f"{caption}.", table, trials)
