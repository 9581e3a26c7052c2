"""Errors of the database, each in one line with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from results_db.masking import masked_within
from search_spaces.errors import TunerError

#: The remedy where there is no run.
FIRST_RUN = (
    "write a campaign with `tuner init` and start it with `tuner run`, or check database.url"
)
_HINTS = (
    ("disk is full", "free some space, then rerun to resume: finished trials are stored"),
    ("no space left", "free some space, then rerun to resume: finished trials are stored"),
    ("disk i/o error", "free some space on that disk or check it, then run `tuner db check`"),
    ("does not answer", "check that the server runs and is not overloaded"),
    ("statement timeout", "the server is overloaded or locked; see its log"),
    ("database is locked", "another process is writing; wait for it or stop it, then rerun"),
    ("readonly", "make the file and its folder writable, or set database.url to another place"),
    ("read-only", "make the database writable, or set database.url to another place"),
    ("unable to open", "check that the folder exists and is writable, or set database.url"),
    ("not a database", "set database.url to another file; this one is not SQLite's"),
    ("malformed", "restore the file from a backup"),
    ("no such table", "restore the file from a backup"),
    ("too large to convert", "give a smaller number"),
    ("resolve host", "check host and port in database.url and that the server runs"),
    ("foreign key", "the run or task it belongs to is not in this database"),
    ('role "', "check user and password in database.url"),
    ("authentication", "check user and password in database.url"),
    ("does not exist", "create it with `createdb`, or check the name in database.url"),
    ("connection", "check host and port in database.url and that the server runs"),
    ("[errno", "check that the folder is one and is writable, or set database.url"),
)


class StoreError(TunerError):
    """A results database that cannot be opened, read or written, or a record it cannot hold."""


class NothingStoredError(StoreError):
    """The database does not exist or is empty."""


class UnknownError(StoreError):
    """A run, task or trial that the database does not have."""


class StoreAwayError(StoreError):
    """The database is temporarily unavailable: restarting, frozen, disconnected or locked."""


class StoreMovedError(StoreError):
    """The SQLite file was deleted or replaced while it was in use."""


class LeaseLostError(StoreError):
    """A write to a run that another driver holds or that has ended."""


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Convert errors of drivers and conversions to a `StoreError` that names the database."""
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OverflowError, OSError) as error:
        raise _store_error(where, error) from error


def _store_error(where: str, error: Exception) -> StoreError:
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, StoreError):
        return cause
    kind = StoreAwayError if _is_temporary(error, cause) else StoreError
    lines = [line.strip() for line in f"{cause}".splitlines() if line.strip()]
    reason = lines[0] if lines else type(cause).__name__
    hint = next((hint for mark, hint in _HINTS if mark in f"{cause}".lower()), "")
    return kind(f"{where}: {masked_within(reason)}", hint or "run `tuner db check`")


#: Classes and codes of PostgreSQL's temporary errors: connections, shutdown and cancellation,
#: rollbacks in favour of other transactions, locks, too many connections, idle sessions.
_TEMPORARY = ("08", "40", "55P03", "53300", "57", "25P03")


def _is_temporary(error: Exception, cause: BaseException) -> bool:
    """Whether the same call may succeed later."""
    import sqlite3

    if isinstance(cause, sqlite3.OperationalError):
        return "locked" in f"{cause}" or "busy" in f"{cause}"
    if getattr(error, "connection_invalidated", False):
        return True
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return f"{state}".startswith(_TEMPORARY)
    # Errors while connecting have no code.
    return type(cause).__name__ == "OperationalError" or isinstance(cause, ConnectionError)
