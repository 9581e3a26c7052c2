"""SQL functions that read the database's clock, so that all hosts agree on ages.

On PostgreSQL it is the server's clock. On SQLite it is the clock of the only host that uses the
file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from results_db.columns import UtcDateTime


class now(FunctionElement[datetime]):
    """The current time, not the start time of the transaction."""

    type = UtcDateTime()
    inherit_cache = True


class age_s(FunctionElement[float]):
    """Seconds since the time in a column; NULL for a NULL time."""

    type = Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **_: Any) -> str:
    # The form in which SQLAlchemy writes times: microseconds in six digits.
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **_: Any) -> str:
    return "clock_timestamp()"


@compiles(age_s, "sqlite")
def _age_sqlite(element: age_s, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"((julianday('now') - julianday({column})) * 86400.0)"


@compiles(age_s, "postgresql")
def _age_postgresql(element: age_s, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"extract(epoch FROM clock_timestamp() - {column})::double precision"
