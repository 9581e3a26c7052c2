"""A recorded space: every config of one task with its status, time and static facts.

The file format `tuner-space/1` is described in docs/recorded_spaces.md; reading and writing it is
in `search_spaces.recorded.file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, config_key


@dataclass(frozen=True, slots=True)
class Noise:
    """How times scatter; all figures are relative (natural logarithm of time) unless named.

    sigma: standard deviation of one sample. outlier_share, outlier_mean: how often and by how much,
    exponentially distributed, a sample is slower. drift_sd, drift_tau_s: a stationary
    Ornstein-Uhlenbeck process common to everything timed in one pass. ramp, ramp_tau_s: slow-down
    of a clock that falls from boost as the device gets warm. overhead_us: device time of one
    sample beyond the kernel's (the cache flush, mostly).
    """

    sigma: float = 0.0
    outlier_share: float = 0.0
    outlier_mean: float = 0.0
    drift_sd: float = 0.0
    drift_tau_s: float = 1.0
    ramp: float = 0.0
    ramp_tau_s: float = 0.5
    overhead_us: float = 40.0


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """A parameter as recorded. kind: `power_of_two`, `integer`, `choice` or `boolean`.

    when: for a conditional parameter, the values of others under which a config has it.
    """

    name: str
    kind: str
    values: tuple[Value, ...]
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedConfig:
    """One config: how it ended and, if correct, its median time.

    binary: configs with equal text are the same machine code. samples_us: raw samples in order of
    time; where given, they are replayed instead of the noise model. message: why it failed.
    """

    config: Config
    status: Status = Status.CORRECT
    median_us: float | None = None
    binary: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    build_s: float = 0.0
    message: str = ""
    samples_us: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class RecordedSpace:
    """All that is known of one task. baselines maps names to median times in microseconds.

    device is the one recorded on, with its own kind; tolerance is the relative one.
    """

    kernel: str
    workload: Workload
    device: Device
    toolchain: Toolchain
    parameters: tuple[RecordedParameter, ...]
    default: Config
    configs: tuple[RecordedConfig, ...] = field(repr=False)
    flops: float = 0.0
    bytes: float = 0.0
    tolerance: float = 0.0
    baselines: Mapping[str, float] = field(default_factory=dict)
    noise: Noise = Noise()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RecordedSpace:
        """Read a `.json` or `.json.gz` file. Raises TunerError naming the file and the place."""
        from search_spaces.recorded.file import read

        return read(path)

    def save(self, path: str | PathLike[str], *, columns: bool = False) -> None:
        """Write the file whole or not at all, gzipped if it ends in `.gz`; equal spaces give equal
        bytes. With `columns` the configs are stored column by column, which is smaller."""
        from search_spaces.recorded.file import write

        write(self, path, columns=columns)

    def __getitem__(self, config: Config) -> RecordedConfig:
        """What was recorded of a config; raises KeyError when nothing was."""
        return self._by_key[config_key(config)]

    def __contains__(self, config: Config) -> bool:
        return config_key(config) in self._by_key

    def original(self, config: Config) -> Config:
        """The first config recorded with the binary of this one; raises KeyError as `[]` does."""
        binary = self[config].binary
        return self._originals[binary] if binary else config

    @cached_property
    def _originals(self) -> Mapping[str, Config]:
        return {entry.binary: entry.config for entry in reversed(self.configs)}

    @cached_property
    def _by_key(self) -> Mapping[str, RecordedConfig]:
        return {config_key(entry.config): entry for entry in self.configs}

    @property
    def best(self) -> RecordedConfig:
        """The fastest correct config; raises ValueError when there is none."""
        return min(
            (entry for entry in self.configs if entry.median_us is not None),
            key=lambda entry: (entry.median_us, config_key(entry.config)),
        )

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_by_key", "_originals")
        return {name: value for name, value in self.__dict__.items() if name not in derived}
