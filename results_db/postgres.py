"""PostgreSQL connections with time limits on the server and on the client.

The server cancels a statement that takes too long. The client has its own limit, since a frozen
server process or a broken network cannot report an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Engine, create_engine, event

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10
#: Seconds by which the client's limit exceeds the server's.
_CLIENT_MARGIN_S = 5.0
#: A silent connection is closed after about a minute.
_KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}
_DEFAULTS = {"connect_timeout": CONNECT_TIMEOUT_S, **_KEEPALIVE}


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is closed if one exchange with the server takes too long."""

    #: Seconds; None for no limit.
    answer_s: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        if self.answer_s is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._limit(gen, time.monotonic() + self.answer_s), *args, **options)

    def _limit(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
        """The same exchange with a deadline, checked every 0.1 s, psycopg's polling interval."""
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("connection closed: the server does not answer")
                state = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer


def engine(url: URL, answer_s: float | None) -> Engine:
    """An engine whose connections detect a lost server. Options in the URL take precedence.

    answer_s: seconds after which a statement, or an idle transaction, is cancelled; None for no
    limit.
    """
    named = {**_DEFAULTS, "application_name": f"tuner:{os.getpid()}"}
    defaults = {name: value for name, value in named.items() if name not in url.query}
    engine = create_engine(url, connect_args=defaults, pool_pre_ping=True)
    if answer_s is not None:
        _limit(engine, answer_s)
    return engine


def _limit(engine: Engine, answer_s: float) -> None:
    milliseconds = int(answer_s * 1000)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> LimitedConnection:
        connection = LimitedConnection.connect(*arguments, **options)
        connection.answer_s = answer_s + _CLIENT_MARGIN_S
        return connection

    @event.listens_for(engine, "connect")
    def configure(connection: LimitedConnection, _record: object) -> None:
        with connection.cursor() as cursor:
            for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
                cursor.execute(f"SET SESSION {name} = {milliseconds}".encode())
        connection.commit()
