"""Exporters of all trials of a run as one flat file: CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator

from results_db.spreadsheet import inert_cell
from search_spaces.errors import TunerError
from tuner.tables.exporters import File
from tuner.tables.results import Results


class Csv:
    """`csv`: one row per trial, UTF-8, RFC 4180. Spreadsheets run no cell as a formula."""

    def files(self, results: Results) -> Iterator[File]:
        frame = results.trials_frame()
        if not frame.empty:
            texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz"])
            for name in texts.columns:
                frame[name] = frame[name].map(inert_cell)
            frame = frame.rename(columns=inert_cell)
            text = frame.to_csv(index=False, lineterminator="\r\n")
            yield File(f"run-{results.run_id}-trials.csv", text.encode(), _tasks(results))


class Parquet:
    """`parquet`: one row per trial; needs the extra `parquet`."""

    def files(self, results: Results) -> Iterator[File]:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise TunerError(
                "the format parquet needs pyarrow, which is not installed",
                "pip install 'kernel-tuning-farm[parquet]', or export as csv",
            ) from None
        frame = results.trials_frame()
        if not frame.empty:
            buffer = io.BytesIO()
            frame.to_parquet(buffer, index=False)
            yield File(f"run-{results.run_id}-trials.parquet", buffer.getvalue(), _tasks(results))


def _tasks(results: Results) -> tuple[int, ...]:
    return tuple(task.task_id for task in results.tasks)
