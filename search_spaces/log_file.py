"""The log file that the processes of a run share.

The parent names the file and the level in its environment. Child processes and Ray actors on the
same machine inherit both and append to the file. Every record is one line, written by one call in
append mode, so that lines of different processes do not mix. A file named `*.jsonl` gets JSON
objects, any other file plain text.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tuner.base.inert_text import inert

#: Variables that pass the file's path and level on to other processes.
FILE_VARIABLE = "TUNER_LOG_FILE"
LEVEL_VARIABLE = "TUNER_LOG_LEVEL"
#: The packages whose loggers write at the chosen level. Others write warnings and errors only.
PACKAGES = ("tuner", "workers", "results_db", "reports", "search_spaces")


class LineFormatter(logging.Formatter):
    """Time, level, logger, process and message in one line of text.

    process: the name of this process, such as a worker's; its number is appended. clean: applied to
    messages, to hide secrets.
    """

    def __init__(self, process: str, clean: Callable[[str], str] = str) -> None:
        super().__init__()
        self._process = process
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line without its line break."""
        fields = self._fields(record)
        error = f" | {fields['exception']}" if "exception" in fields else ""
        return inert(
            f"{fields['time']} {fields['level']:<7} {fields['logger']} [{fields['process']}] "
            f"{fields['message']}{error}"
        )

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": f"{self._process}:{record.process}",
            "message": self._clean(record.getMessage().removeprefix("tuner: ")),
        }
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1]))
            fields["exception"] = self._clean(text)
        return fields


class JsonLineFormatter(LineFormatter):
    """The same fields as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object without a line break."""
        return json.dumps(self._fields(record))


class LogFile(logging.Handler):
    """Appends each record to a file by one write; a write that fails is dropped silently.

    Raises `OSError` where the file cannot be opened.
    """

    def __init__(self, path: Path, process: str, clean: Callable[[str], str] = str) -> None:
        super().__init__()
        kind = JsonLineFormatter if path.suffix == ".jsonl" else LineFormatter
        self.setFormatter(kind(process, clean))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record."""
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            os.write(self._descriptor, line)
        except Exception:  # logging must never end the work that it describes
            return

    def close(self) -> None:
        """Close the file; later records are dropped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


def set_levels(level: int) -> None:
    """Let the project's loggers pass records from this level on."""
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)


def join(process: str) -> None:
    """Append this process's records to the log file that its environment names, if any.

    For worker processes and Ray actors; `process` is the worker's name. On a machine where the file
    cannot be opened, records go where they would go without it.
    """
    path, level = os.environ.get(FILE_VARIABLE), os.environ.get(LEVEL_VARIABLE, "")
    if not path:
        return
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, LogFile):  # inherited by a fork
            root.removeHandler(handler)
    try:
        root.addHandler(LogFile(Path(path), process))
    except OSError:
        return
    set_levels(int(level) if level.isdigit() else logging.INFO)
