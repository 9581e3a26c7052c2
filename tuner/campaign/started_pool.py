"""A pool while a run uses it: started at once, closed exactly once."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tuner.tracing import span

if TYPE_CHECKING:
    from workers.roles import Pool


class StartedPool:
    """Starts a pool on entry. Leaving the block kills the workers of a pool that is still open."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._open = True

    def __enter__(self) -> StartedPool:
        try:
            with span("start the pool", "start"):
                self.pool.start()
        except BaseException:
            self.close(kill=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(kill=True)

    def begin_to_close(self, *, kill: bool) -> None:
        """Have the workers end while the caller continues, and leave the rest to the block's end.

        A pool that cannot do that is closed.
        """
        begin_kill = getattr(self.pool, "begin_kill", None)
        if begin_kill is not None and self._open:
            begin_kill()
        else:
            self.close(kill=kill)

    def close(self, *, kill: bool) -> None:
        """Close the pool; a second call does nothing."""
        if self._open:
            self._open = False
            with span("close the pool", "end"):
                self.pool.close(kill=kill)
