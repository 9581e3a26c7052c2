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


@dataclass(frozen=True)
class RecordedSpace:
    """All configs of one task with their times."""

    #: The kernel's name.
    kernel: str
    workload: Workload
    #: The device of the recording, with its original kind.
    device: Device
    toolchain: Toolchain
    parameters: tuple[RecordedParameter, ...]
    #: The config that users run without tuning; one of `configs`.
    default: Config
    configs: tuple[RecordedConfig, ...] = field(repr=False)
    #: The least arithmetic operations of the problem.
    flops: float = 0.0
    #: The least bytes through device memory.
    bytes: float = 0.0
    #: Relative error that a variant may have.
    tolerance: float = 0.0
    #: Median times in microseconds by name.
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
