"""Logging of one command: warnings to stderr, and a log file on request.

`--log-file` takes precedence over `logging.file` of config.yaml, `--log-level` over
`logging.level`. The level applies to the file where there is one, otherwise to stderr. With a
file, stderr shows warnings and errors.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.masking import masked_within
from search_spaces.errors import TunerError
from search_spaces.log_file import FILE_VARIABLE, LEVEL_VARIABLE, LogFile, set_levels
from tuner.base.inert_text import inert

if TYPE_CHECKING:
    from tuner.settings.sections import LoggingConfig


class Level(StrEnum):
    """The least severe records that are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level as `logging` counts it."""
        return int(getattr(logging, self.name))


class _Stderr(logging.Handler):
    """Prints records as `warning: ...` to the present sys.stderr, which a live display replaces."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; what stderr does not take is lost."""
        with suppress(Exception):
            source = "" if record.levelno >= logging.WARNING else f" {record.name}:"
            text = masked_within(record.getMessage().removeprefix("tuner: "))
            print(f"{record.levelname.lower()}:{source} {inert(text)}", file=sys.stderr)


@dataclass(slots=True)
class CommandLog:
    """The log of the command that this process runs."""

    #: From the command line; None where it does not say.
    level: Level | None = None
    file: Path | None = None
    _handlers: list[logging.Handler] = field(default_factory=list)
    _variables: dict[str, str | None] = field(default_factory=dict)

    def start(self) -> None:
        """Show warnings on stderr, and open the command line's log file."""
        self._add(_Stderr())
        self._apply(self.level, self.file, "--log-file")

    def configure(self, config: LoggingConfig) -> None:
        """Take the settings of config.yaml for what the command line leaves open."""
        level = self.level or (Level(config.level) if config.level else None)
        file = None if self.file or not config.file else Path(config.file)
        self._apply(level, file, "logging.file")

    def stop(self) -> None:
        """Remove all handlers and restore the environment."""
        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()
        self._handlers.clear()
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._variables.clear()
        set_levels(logging.NOTSET)

    def _apply(self, level: Level | None, file: Path | None, source: str) -> None:
        if file is not None and not any(isinstance(item, LogFile) for item in self._handlers):
            path = file.absolute()
            try:
                self._add(LogFile(path, "tuner", masked_within))
            except OSError as error:
                reason = error.strerror or f"{error}"
                raise TunerError(
                    f"{source}: {path} cannot be written: {reason}", "name another file"
                ) from None
            self._set_variable(FILE_VARIABLE, f"{path}")
        to_file = any(isinstance(item, LogFile) for item in self._handlers)
        number = (level or (Level.INFO if to_file else Level.WARNING)).number
        for handler in self._handlers:
            in_file = isinstance(handler, LogFile) or not to_file
            handler.setLevel(number if in_file else logging.WARNING)
        set_levels(number if number < logging.WARNING else logging.WARNING)
        if to_file:
            self._set_variable(LEVEL_VARIABLE, f"{number}")

    def _add(self, handler: logging.Handler) -> None:
        self._handlers.append(handler)
        logging.getLogger().addHandler(handler)

    def _set_variable(self, name: str, value: str) -> None:
        self._variables.setdefault(name, os.environ.get(name))
        os.environ[name] = value


#: The log of the command in progress; one at a time in a process.
current = CommandLog()


@contextmanager
def command_log() -> Iterator[CommandLog]:
    """A log for one command, removed at its end."""
    global current
    current = CommandLog()
    try:
        yield current
    finally:
        current.stop()
