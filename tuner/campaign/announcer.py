"""The stages of a run before and after its search, announced as progress."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.job_records import WorkerInfo
    from workers.roles import Pool


@dataclass(slots=True)
class Announcer:
    """Reports the stages to a callback, until the callback's reader has left."""

    on_progress: ProgressCallback | None
    #: When the run began, by `time.monotonic`.
    began_s: float

    def say(self, stage: str, activity: str) -> None:
        """stage, activity: as in `Progress`."""
        if self.on_progress is None:
            return
        elapsed_s = time.monotonic() - self.began_s
        try:
            self.on_progress(Progress.of_stage(stage, activity, elapsed_s))
        except OSError:
            self.on_progress = None

    def starting(self, pool: Pool) -> None:
        """The pool has been started; its workers come up."""
        if not pool.warm:
            number = pool.builders
            self.say("starting", f"starting {number} builder{'s' * (number != 1)}")

    def opening(self, workers: Sequence[WorkerInfo]) -> None:
        """The devices of these workers are being opened."""
        names = sorted({worker.device.name for worker in workers})
        if names:
            self.say("starting", f"opening {', '.join(names)}")
