"""The `Backend` role: a device kind, as seen inside the process that owns the device."""

from __future__ import annotations

from typing import Protocol

from search_spaces.records import Device, Toolchain
from workers.records import Failure, MeasureJob, Measurement


class Backend(Protocol):
    """Verifies and times variants on one device.

    `measure` may hang or take the process down with it: the parent supervises and kills. When
    `poisoned` turns true the device's context is lost (a sticky error); the reply that was given
    is good, but the process must be replaced before the next job.
    """

    kind: str
    poisoned: bool

    def info(self) -> tuple[Device, Toolchain]:
        """The device this process owns and the toolchain it runs under."""
        ...

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        """One outcome per candidate; a `Failure` only when the job as a whole could not be done."""
        ...

    def close(self) -> None:
        """Free the device's memory and stop watching it."""
        ...
