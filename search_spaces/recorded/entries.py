"""What a recorded space consists of: its parameters, its configs and the noise of its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search_spaces.records import Config, Status, Value


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of times, relative (natural logarithm of time) unless the unit says otherwise."""

    #: Standard deviation of one sample.
    sigma: float = 0.0
    #: Share of samples that are slower than the others.
    outlier_share: float = 0.0
    #: Mean of the exponentially distributed slow-down of these samples.
    outlier_mean: float = 0.0
    #: Standard deviation of the drift, an Ornstein-Uhlenbeck process common to all variants of a
    #: pass.
    drift_sd: float = 0.0
    #: Correlation time of the drift in seconds.
    drift_tau_s: float = 1.0
    #: Slow-down of the clock from its boost to its steady state as the device warms up.
    ramp: float = 0.0
    #: Time constant of that slow-down in seconds.
    ramp_tau_s: float = 0.5
    #: Device time of one sample beyond the kernel's (mostly the cache flush), microseconds.
    overhead_us: float = 40.0


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """A parameter as recorded."""

    name: str
    #: `power_of_two`, `integer`, `choice` or `boolean`.
    kind: str
    values: tuple[Value, ...]
    #: The values of other parameters under which a config has this one.
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedConfig:
    """One config: its status and, if correct, its median time."""

    config: Config
    status: Status = Status.CORRECT
    #: Microseconds; None unless the status is `correct`.
    median_us: float | None = None
    #: Configs with equal text have the same machine code.
    binary: str = ""
    #: 32-bit registers of one thread.
    registers: int = 0
    #: Bytes of local memory of one thread.
    spill_bytes: int = 0
    #: Shared memory of one block.
    shared_bytes: int = 0
    #: Build time in seconds.
    build_s: float = 0.0
    #: Why it failed.
    message: str = ""
    #: Raw samples in order of time; where given, they replace the noise model.
    samples_us: tuple[float, ...] = field(default=(), repr=False)
