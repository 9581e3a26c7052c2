"""The result of `tune`: the confirmed outcome of one task, and ways to the run's data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_db.shipped import describe_ratio
from search_spaces.records import Config, Value, Workload
from tuner.base.inert_text import inert
from tuner.base.log_ratio import Verdict, join_ratio

if TYPE_CHECKING:
    import pandas as pd

    from results_db.promotion_records import PromotionRecord
    from search_spaces.kernel import Kernel
    from tuner.api.databases import CallDatabase

Interval = tuple[float, float]
#: Most tied configs that the table lists.
_TIES = 4
#: A sign for each verdict, so that it is readable without colour.
_ICONS: dict[str, str] = dict(zip(Verdict, "▲▼=?", strict=True))
#: Most characters of a line of `repr`.
_LINE = 100


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """A baseline against the config that ships."""

    name: str
    #: `correct`, or why the baseline has no time.
    status: str
    #: Confirmed median time, microseconds.
    median_us: float | None = None
    #: Time of the baseline over the time of the config that ships: above 1 the config is faster.
    ratio: float | None = None
    #: 95 % interval of the ratio.
    interval: Interval | None = None
    #: One line on a failure.
    message: str = ""


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """The place of a result in its database."""

    database: CallDatabase
    run_id: int
    #: None where the run has no task for the workload.
    task_id: int | None
    #: The tuned kernel, for the lookup rule of an exported table.
    kernel: Kernel | None = None

    def __reduce__(self) -> tuple[type[ResultOrigin], tuple[CallDatabase, int, int | None]]:
        return ResultOrigin, (self.database, self.run_id, self.task_id)


@dataclass(frozen=True)
class TuneResult:
    """The outcome of `tune` for one workload. A notebook shows it as a table."""

    #: The fastest correct config; None when nothing ran correctly.
    winner: Config | None
    #: The configs that cannot be distinguished from the winner within 1 %.
    tie_set: tuple[Config, ...]
    #: The winner against the default config: `faster`, `slower`, `same` or `undecided`.
    verdict: str
    #: Confirmed time of the config that ships, microseconds.
    median_us: float | None
    #: Time of the default config over that of the config that ships.
    speedup: float | None
    #: Confirmed times in microseconds by name; None for a baseline that failed.
    baselines: Mapping[str, float | None]
    #: The device's exact name; empty where nothing ran.
    device: str
    #: Remarks on the task: why it ended early, or why nothing was found.
    note: str = ""
    #: The config of a table: the winner or, where that may be slower, the default config; None
    #: where nothing is confirmed.
    ships: Config | None = None
    #: Why the default config ships instead of the winner; empty where the winner ships.
    kept_because: str = ""
    #: The kernel's name.
    kernel: str = ""
    workload: Workload = field(default_factory=Workload.of)
    #: 95 % interval of `median_us`.
    interval_us: Interval | None = None
    #: 95 % interval of `speedup`.
    speedup_interval: Interval | None = None
    #: The figures behind the verdict, and how the winner was chosen from its tie set.
    reason: str = ""
    #: Each baseline against the config that ships, by name.
    comparisons: Mapping[str, BaselineComparison] = field(default_factory=dict)
    #: Name, target, power limit, driver and versions of the toolchain.
    device_facts: Mapping[str, Value] = field(default_factory=dict)
    #: Seconds of `search`, `finals` and `confirm`, and of the call's `start` and `end`.
    stage_s: Mapping[str, float] = field(default_factory=dict)
    _origin: ResultOrigin | None = field(default=None, repr=False, compare=False)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial, read from the database at first access."""
        origin = self._require_origin()
        with origin.database.open() as store:
            # No task has the number 0: the frame is empty and has all columns.
            return store.trials_frame(task_id=origin.task_id or 0)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the HTML report of the run, with all its workloads; returns the path."""
        import reports

        origin = self._require_origin()
        with origin.database.open() as store:
            return reports.write(store, origin.run_id, Path(path))

    def export(self, path: str | Path, format: str = "tuner") -> list[Path]:
        """Write the run's results into the folder `path`; returns the paths of the files.

        format: the name of an exporter, as `tuner` (tables for kernels), `triton`, `vllm`, `csv`; a
        wrong one lists all. A run without a confirmed time gives no table.
        """
        from tuner import tables

        origin = self._require_origin()
        kernels = {origin.kernel.name: origin.kernel} if origin.kernel else None
        with origin.database.open() as store:
            return tables.export(store, origin.run_id, path, format, kernels)

    def promote(self, folder: str | Path) -> list[PromotionRecord]:
        """Add the run's entries to a folder of published tables, as `tuner promote` does.

        Returns what was decided about each entry. Raises `TunerError` where nothing is confirmed.
        """
        from tuner.tables.promotion import Promoter

        origin = self._require_origin()
        kernels = {origin.kernel.name: origin.kernel} if origin.kernel else {}
        with origin.database.open() as store:
            return Promoter(store, origin.run_id, Path(folder), kernels).promote(lambda: None)

    def figures(self) -> dict[str, Any]:
        """The report's Plotly figures of this workload and of the whole run, by name."""
        import reports

        origin = self._require_origin()
        with origin.database.open() as store:
            return reports.plotly_figures(store, origin.run_id, origin.task_id)

    def __repr__(self) -> str:
        """One or two lines: kernel, workload, time, config, verdict and ratios."""
        head = f"<TuneResult {inert(self.kernel)} {inert(self.workload.key)}: "
        config = " ".join(f"{name}={value}" for name, value in (self.ships or {}).items())
        if self.median_us is None:
            tail = inert(self.note or self.reason or "no config is confirmed")
        else:
            tail = f"{_micros(self.median_us)} us, {inert(config)}; {', '.join(self._ratios())}"
        gap = "\n  " if len(head) + len(tail) > _LINE else ""
        return f"{head.rstrip() if gap else head}{gap}{tail}>"

    def _repr_html_(self) -> str:
        return format_html(f"{self.kernel} {self.workload.key}", _rows(self))

    def _ratios(self) -> list[str]:
        """The verdict, and the ratio to the default config and to each baseline, as text."""
        found = [self.verdict + (" (the default config ships)" if self.kept_because else "")]
        ratios = [("default", self.speedup, self.speedup_interval)]
        ratios += [(each.name, each.ratio, each.interval) for each in self.comparisons.values()]
        texts = (describe_ratio(join_ratio(r, *(ends or ())), inert(n)) for n, r, ends in ratios)
        return [*found, *filter(None, texts)]

    @property
    def run_id(self) -> int | None:
        """The number of the run in its database; None where nothing ran."""
        return self._origin.run_id if self._origin is not None else None

    def _require_origin(self) -> ResultOrigin:
        from search_spaces.errors import TunerError

        if self._origin is None:
            raise TunerError("this result has no run in a database", f"it says: {self.note}")
        return self._origin


def _micros(value: float) -> str:
    return f"{value:,.1f}" if value >= 1000 else f"{value:.4g}"


def _rows(result: TuneResult) -> Iterator[tuple[str, str]]:
    yield "verdict", f"{_ICONS.get(result.verdict, '?')} {result.verdict}"
    yield "config that ships", _pairs(result.ships)
    yield "time", _time(result.median_us, result.interval_us)
    yield "over the default config", _ratio(result.speedup, result.speedup_interval)
    for each in result.comparisons.values():
        against = _ratio(each.ratio, each.interval)
        time = f" ({_time(each.median_us, None)})" if each.median_us is not None else ""
        yield f"over {each.name}", f"{against}{time}" if against else each.message or each.status
    yield "reason", result.reason
    if len(result.tie_set) > 1:
        shown = "; ".join(_pairs(config) for config in result.tie_set[:_TIES])
        more = len(result.tie_set) - _TIES
        yield "tie set", f"{shown}; and {more} more" if more > 0 else shown
    yield (
        "device",
        ", ".join(
            f"{value}" if name == "name" else f"{name} {value}"
            for name, value in result.device_facts.items()
        ),
    )
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in result.stage_s.items())
    yield "note", result.note


def _pairs(config: Mapping[str, object] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (config or {}).items())


def _time(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    text = f"{value:,.4g} µs" if value < 1e4 else f"{value:,.0f} µs"
    if interval is None or not all(map(math.isfinite, interval)):
        return text
    return f"{text}, 95 % interval {interval[0]:,.5g} to {interval[1]:,.5g}"


def _ratio(value: float | None, interval: Interval | None) -> str:
    over = join_ratio(value, *(interval or ()))
    if over is None or over.ends is None or interval is None:
        return describe_ratio(over) or ""
    return f"{value:.2f}x{over.doubt}, 95 % interval {interval[0]:.3f} to {interval[1]:.3f}"


_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:0.95em"
_CELL = (
    "text-align:left;vertical-align:top;padding:0.2em 0.8em 0.2em 0;color:inherit;"
    "background:transparent;border:none;border-top:1px solid rgba(128,128,128,0.4)"
)


def format_html(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as one `<table>`, without empty values; all text in it is escaped."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_text(name)}</th>'
        f'<td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in rows
        if value
    )
    return (
        f'<table style="{_TABLE}"><caption style="text-align:left;font-weight:bold;color:inherit">'
        f"{_text(caption)}</caption><tbody>{body}</tbody></table>"
    )


def _text(value: object) -> str:
    return escape(inert(value))
