"""config.yaml: the farm's one documented configuration, validated where it enters.

Sources by precedence: command-line overrides, environment `TUNER__...`, the file, defaults.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from search_spaces.errors import TunerError

Scalar = bool | int | float | str | None


class ConfigError(TunerError):
    """A configuration that cannot be used; `message` names the file, the line and the key.

    problems: every complaint about the file, of which `message` is the first.
    """

    problems: tuple[str, ...] = ()


def parse_duration(value: object) -> object:
    """Seconds from `90`, `"90s"`, `"30m"`, `"8h"` or `"1d"`."""
    if not isinstance(value, str):
        return value
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    text = value.strip()
    try:
        return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    except ValueError:
        raise ValueError(f"{value!r} is not a duration; write 90s, 30m, 8h or 1d") from None


#: Ten years, in seconds.
_LONGEST_S = 315_360_000.0
_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": _LONGEST_S},
        {"type": "string", "pattern": r"^\s*[0-9]*\.?[0-9]+[smhd]?\s*$"},
    ],
    "description": "seconds, or text such as 90s, 30m, 8h or 1d",
}
Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0, le=_LONGEST_S, allow_inf_nan=False),
    WithJsonSchema(_DURATION_SCHEMA),
]
Pairs = Annotated[int, Field(gt=0, le=100_000)]
#: One time over another, above which something is slower.
Ratio = Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
#: Of the best time: what budget `auto` holds to be not worth a search.
DEFAULT_GAIN = 0.005
#: What torch takes as a seed and every database as an integer.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Trials = Annotated[int, Field(gt=0, le=1_000_000_000)]


class Budget(Section):
    """When a task stops: whichever comes first. `device` is seconds of device time.

    trials: a number, or `auto`: until what is untried is expected to gain less than the share
    `gain` (0.005 where it is not given), after `max_trials` at the latest. `auto` alone stands for
    `{trials: auto}`.
    """

    trials: Trials | Literal["auto"] | None = None
    gain: Share | None = None
    max_trials: Trials | None = None
    device: Seconds | None = None
    wall: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _auto_alone(cls, value: object) -> object:
        return {"trials": value} if value == "auto" else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = handler.resolve_ref_schema(handler(schema))
        described = written.pop("description", "")
        return {"anyOf": [{"const": "auto"}, written], "description": described}

    @property
    def expected_gain(self) -> float | None:
        """The share below which a task with budget `auto` ends; None for every other budget."""
        return (self.gain or DEFAULT_GAIN) if self.trials == "auto" else None

    @property
    def trials_at_most(self) -> int | None:
        return self.max_trials if self.trials == "auto" else self.trials


class StrategyConfig(Section):
    """Who suggests configs: bayes, tpe, gp, cmaes, random, grid, exhaustive, or the name of an
    entry point.

    polish: trials of each task kept for the incumbent's neighbourhood at the end; a budget `auto`
    polishes by itself. A name alone stands for `{name: ...}`.
    """

    name: str = "bayes"
    seed: Seed = 0
    polish: int = Field(default=0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = handler.resolve_ref_schema(handler(schema))
        described = written.pop("description", "")
        return {"anyOf": [{"type": "string"}, written], "description": described}


class TaskConfig(Section):
    """One kernel of a campaign. workloads: `all` (the kernel's own) or a list of dims.

    targets: overrides the campaign's. space: parameter name -> allowed values, to narrow the space.
    """

    kernel: str
    workloads: Literal["all"] | list[dict[str, Scalar]] = "all"
    targets: list[str] | None = None
    budget: Budget | None = None
    strategy: StrategyConfig | None = None
    space: dict[str, list[Scalar]] = Field(default_factory=dict)


class ScheduleConfig(Section):
    """When a campaign starts by itself: a five-field cron line in a time zone."""

    cron: str
    timezone: str = "UTC"
    grace: Seconds = 3600.0
    enabled: bool = True


class CampaignConfig(Section):
    """A named set of tasks with budget and schedule.

    targets: `cpu`, `cuda`, `hip` (each: the devices found), `cuda:90`-like (the devices found of
    that capability; where there is none, cross-compile for it and verify in Triton's interpreter),
    `simulated` (the device that a `recorded:FILE` kernel was recorded on) or `simulated:FILE` (that
    recording only). in_flight: tasks searched at once; by default two per runner, four at least.
    """

    description: str = ""
    tasks: list[TaskConfig] = Field(min_length=1)
    targets: list[str] = Field(default_factory=lambda: ["cpu"])
    budget: Budget = Budget(trials=100)
    strategy: StrategyConfig = StrategyConfig()
    in_flight: int | None = Field(default=None, gt=0, le=10_000)
    schedule: ScheduleConfig | None = None


class DatabaseConfig(Section):
    """Where results are recorded.

    timeout: how long a run waits for the answer to one statement. patience: how long a run waits
    for a database that is away, before it ends; workers go on meanwhile.
    """

    url: str = "sqlite:///results/tuner.db"
    timeout: Seconds = 30.0
    patience: Seconds = 600.0


class PathsConfig(Section):
    """Where reports and tables are written, relative to config.yaml."""

    results: str = "results"
    tables: str = "results/tables"


class SimulatedConfig(Section):
    """Simulated devices: how many, and the share of configs on which each fault is injected.

    time_scale: seconds really waited per second simulated.
    """

    runners: int = Field(default=1, ge=0, le=10_000)
    crash: float = Field(default=0.0, ge=0, le=1)
    hang: float = Field(default=0.0, ge=0, le=1)
    wrong: float = Field(default=0.0, ge=0, le=1)
    lost: float = Field(default=0.0, ge=0, le=1)
    seed: Seed = 0
    time_scale: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class DeviceConfig(Section):
    """Runners of one kind of device. runners: how many, or null for one per device that is found.

    options: what the kind's backend takes.
    """

    runners: int | None = Field(default=None, ge=0, le=10_000)
    options: dict[str, Scalar] = Field(default_factory=dict)


class PoolConfig(Section):
    """Where workers live. kind `ray` with address null starts a local Ray; `local` uses child
    processes. builders and cpu_runners: counts, or null for what the machine has. devices: runners
    and options of further kinds, those of plug-in backends included; an entry for a kind replaces
    `cpu_runners` or `simulated`."""

    kind: str = "ray"
    address: str | None = None
    builders: int | None = Field(default=None, gt=0, le=10_000)
    cpu_runners: int | None = Field(default=1, ge=0, le=10_000)
    simulated: SimulatedConfig = SimulatedConfig()
    devices: dict[str, DeviceConfig] = Field(default_factory=dict)
    build_timeout: Seconds = 120.0
    measure_timeout: Seconds = 120.0
    baseline_timeout: Seconds = 120.0
    connect_timeout: Seconds = 30.0

    def runners_of(self, kind: str) -> int | None:
        """How many runners of a kind; None when the devices decide."""
        if kind in self.devices:
            return self.devices[kind].runners
        return {"cpu": self.cpu_runners, "simulated": self.simulated.runners}.get(kind)

    def options_of(self, kind: str) -> dict[str, Scalar]:
        """The options of a kind's builds and runners."""
        if kind in self.devices:
            return dict(self.devices[kind].options)
        named = {"simulated": self.simulated.model_dump(exclude={"runners"})}
        return named.get(kind, {})


def _growing(pairs: list[int]) -> list[int]:
    if any(later <= earlier for earlier, later in pairwise(pairs)):
        raise ValueError(f"{pairs} does not grow; write checkpoints such as [1, 3, 9, 24]")
    return pairs


class MeasureConfig(Section):
    """The measuring protocol's constants, see `workers.records.MeasurementProtocol`, and what is
    confirmed.

    finalists: how many of a task meet in its finals. baselines: names of those that confirmations
    measure, each where a kernel has it; null for all.
    """

    method: Literal["auto", "events", "graph", "cupti"] = "auto"
    cache: Literal["cold", "warm", "rotate"] = "cold"
    pairs: Annotated[list[Pairs], AfterValidator(_growing)] = Field(
        default=[1, 3, 9, 24], min_length=1
    )
    cap: Ratio = 1.6
    near: Ratio = 1.15
    hopeless: Ratio = 1.02
    rounds: int = Field(default=24, ge=1, le=100_000)
    round_pairs: int = Field(default=16, ge=1, le=100_000)
    epsilon: Share = 0.005
    delta: Share = 0.05
    precision: Share = 0.004
    final_pairs: int = Field(default=64, ge=8, le=100_000)
    warm_ms: float = Field(default=100.0, ge=0, le=60_000)
    seeds: list[Seed] = Field(default=[1, 2], min_length=1)
    finalists: int = Field(default=16, ge=2, le=1000)
    baselines: list[str] | None = None


class Settings(Section):
    """The whole of config.yaml. kernels: more kernels, as `module:object` or `file.py:object`."""

    version: Literal[1] = 1
    database: DatabaseConfig = DatabaseConfig()
    paths: PathsConfig = PathsConfig()
    pool: PoolConfig = PoolConfig()
    measure: MeasureConfig = MeasureConfig()
    kernels: list[str] = Field(default_factory=list)
    campaigns: dict[str, CampaignConfig] = Field(default_factory=dict)
