"""The sections and keys of config.yaml, with their types, limits and defaults.

The text under a key is its description in the JSON Schema.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from search_spaces.errors import TunerError
from search_spaces.size_range import Range

if TYPE_CHECKING:
    from workers.job_records import MeasurementProtocol

Scalar = bool | int | float | str | None


class ConfigError(TunerError):
    """A configuration that cannot be used; `message` names the file, the line and the key."""

    #: One message for every mistake in the file; `message` is the first of them.
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


def read_seconds(name: str, given: float | str) -> float:
    """The seconds of a positive duration such as 90 or "30m". Raises `TunerError`.

    name: what the duration is of, for the message.
    """
    try:
        value = parse_duration(given)
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{given!r} is not a positive duration")
    except ValueError as error:
        raise TunerError(f"{name}: {error}", "for example 30m") from None
    return float(value)


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
Runners = Annotated[int, Field(ge=0, le=10_000)]
Pairs = Annotated[int, Field(gt=0, le=100_000)]
#: A ratio of two times above which a candidate counts as slower.
Ratio = Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
#: The expected gain, as a share of the best time, below which budget `auto` ends a search.
DEFAULT_GAIN = 0.005
#: A seed that torch accepts and every database can store.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class SettingsSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Trials = Annotated[int, Field(gt=0, le=1_000_000_000)]


class Budget(SettingsSection):
    """The limits of a task; the first one reached ends it. `auto` alone means `{trials: auto}`."""

    trials: Trials | Literal["auto"] | None = None
    """A number, or `auto`: until untried configs are expected to gain less than `gain`."""
    gain: Share | None = None
    """For `auto`: the expected gain, as a share of the best time; 0.005 by default."""
    max_trials: Trials | None = None
    """For `auto`: the most trials; 300 by default."""
    device: Seconds | None = None
    """Time that a device is held."""
    search: Seconds | None = None
    """Time since the task's search began."""

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
        """The expected gain below which budget `auto` ends a task; None for every other budget."""
        return (self.gain or DEFAULT_GAIN) if self.trials == "auto" else None

    @property
    def trials_at_most(self) -> int | None:
        """The most trials; None without such a limit."""
        return self.max_trials if self.trials == "auto" else self.trials


class StrategyConfig(SettingsSection):
    """The search strategy. A name alone means `{name: ...}`."""

    name: str = "bayes"
    """`bayes`, `tpe`, `gp`, `cmaes`, `random`, `grid`, `exhaustive`, or an entry point
    `tuner.strategies`."""
    seed: Seed = 0
    """Searches of equal seed suggest the same configs for the same results."""
    polish: int = Field(default=0, ge=0)
    """The last trials of each task, spent on the incumbent's neighbours; budget `auto` includes
    such a phase without it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy, checked before a run begins: arguments of Optuna's sampler, as
    `n_startup_trials` of `tpe` and `gp`; `shuffle: true` of `exhaustive`; `initial` of `bayes`."""

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


class HistogramFile(SettingsSection):
    """A file of the sizes that occur."""

    file: str
    """A CSV file with a size and its weight, such as the number of launches, in every line."""


def parse_range(value: object) -> object:
    """A range of sizes from text, or from a list of texts, sizes and `[low, high, step]`."""
    if isinstance(value, str):
        return Range.parse(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Range(value, value)
    if isinstance(value, list):
        pieces = [
            piece
            for each in value
            for piece in ([each] if isinstance(each, list) else parse_range(each).to_json())  # type: ignore[attr-defined]
        ]
        if all(2 <= len(piece) <= 4 for piece in pieces):
            return Range.from_json(pieces)
    if isinstance(value, Range | Mapping | HistogramFile):
        return value
    raise ValueError(f"{value!r} is no range; write 1..8192 or [1..64, 64..8192 step 64]")


_PIECE_SCHEMA = {
    "type": "string",
    "pattern": r"^\s*\d+\s*(\.\.\s*\d+\s*(step\s+\d+\s*)?)?(,.*)?$",
}
_SIZE_SCHEMA = {"type": "integer", "minimum": 1}
_RANGE_SCHEMA = {
    "anyOf": [
        _PIECE_SCHEMA,
        _SIZE_SCHEMA,
        {"type": "array", "items": {"anyOf": [_PIECE_SCHEMA, _SIZE_SCHEMA]}, "minItems": 1},
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["file"],
            "properties": {"file": {"type": "string"}},
        },
    ],
    "description": "1..8192, 64..8192 step 64, a list of these, or {file: histogram.csv}",
}
SizeRange = Annotated[
    InstanceOf[Range] | HistogramFile,
    BeforeValidator(parse_range),
    PlainSerializer(
        lambda value: value.to_json() if isinstance(value, Range) else value.model_dump()
    ),
    WithJsonSchema(_RANGE_SCHEMA),
]


class CoverageConfig(SettingsSection):
    """How well the sizes of a range are to be served."""

    gain: Share = 0.02
    """A size is searched where a search may find a config that is faster by more than this."""
    searches: int = Field(default=12, ge=2, le=1000)
    """The most sizes of a range that are searched, those held out apart."""
    held_out: int = Field(default=4, ge=0, le=1000)
    """Random sizes that are searched at the end, to say what the chosen configs lose there."""


class TaskConfig(SettingsSection):
    """One kernel of a campaign, on each of its workloads and each device of its targets."""

    kernel: str = ""
    """A name, `module:object`, `file.py:object` or `recorded:FILE`."""
    from_model: str = ""
    """In the place of `kernel` and `workloads`: calls that a model made, a file of `tuner.optimize`
    or a folder of TUNER_RECORD."""
    workloads: Literal["all"] | list[dict[str, Scalar]] = "all"
    """`all` (the kernel's own), or a list of dims: `[{M: 32, N: 8192, dtype: bfloat16}]`."""
    weight: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Calls a day of each workload; of `from_model`, how many times a day what was recorded is run.
    Tasks that save most are tuned first."""
    targets: list[str] | None = None
    """Replaces the campaign's targets."""
    budget: Budget | None = None
    """Limits that replace the campaign's, one by one."""
    strategy: StrategyConfig | None = None
    """Replaces the campaign's strategy."""
    space: dict[str, list[Scalar]] = Field(default_factory=dict)
    """Parameter name to allowed values, to narrow the search space: `{num_warps: [4, 8]}`."""
    ranges: dict[str, SizeRange] = Field(default_factory=dict)
    """Dim name to the sizes that the table is to serve, for each of the workloads: `1..8192`,
    `[1..64, 64..8192 step 64]` or `{file: histogram.csv}`. Captured calls need no workloads."""
    coverage: CoverageConfig = CoverageConfig()
    """How well the sizes of `ranges` are to be served."""


def split_limits(limits: object) -> dict[str, object]:
    """The keys `budget` and `wall` of a campaign, from a number of trials or from both in one."""
    budget = dict(limits) if isinstance(limits, Mapping) else {"trials": limits}
    whole = {name: budget.pop(name) for name in ("wall",) if name in budget}
    return {"budget": budget, **whole}


def _check_window(text: str) -> str:
    from tuner.schedule.blackout import read_window

    read_window(text)
    return text


def _check_deadline(text: str) -> str:
    from tuner.schedule.blackout import find_next

    find_next(text, datetime.min)
    return text


class ScheduleConfig(SettingsSection):
    """When a campaign starts without a command."""

    cron: str
    """A cron line of five fields: minute, hour, day of month, month, day of week."""
    timezone: str = "UTC"
    """A name of the IANA database, such as Europe/Berlin."""
    grace: Seconds = 3600.0
    """How late a firing may still start."""
    blackout: list[Annotated[str, AfterValidator(_check_window)]] = Field(default_factory=list)
    """Windows in `timezone` in which nothing starts, such as `Fri 18:00..Mon 06:00`, `08:00..18:00`
    or `2026-12-24..2026-12-26`."""
    jitter: Seconds | None = None
    """Each firing starts later by a fixed time below this, which name and instant decide."""
    catch_up: Literal["newest", "none"] = "newest"
    """`newest`: the newest missed firing starts, within `grace`; `none`: what misses its two
    minutes or falls into a blackout stays missed."""
    enabled: bool = True
    """Whether the schedule starts runs."""


class CheckConfig(SettingsSection):
    """Published tables that are checked under another toolchain."""

    tables: str | Annotated[list[str], Field(min_length=1)]
    """Tables, and folders of tables, relative to config.yaml."""
    wheels: str
    """A folder of wheels, which the check imports first."""


#: Keys of a campaign that do not change its searches, and keys that `check` allows.
_NOT_WORK = {"schedule", "description", "wall", "deadline", "priority", "regressions", "check"}
BESIDE_CHECK = {"schedule", "description", "check"}


class CampaignConfig(SettingsSection):
    """A named set of tasks with budget and schedule."""

    description: str = ""
    """One line for people."""
    tasks: list[TaskConfig] = Field(default=[], min_length=1)
    """What to tune; of a kernel, workload and device listed twice, the first entry counts."""
    check: CheckConfig | None = None
    """In the place of `tasks`: measures tables under other wheels, as `tuner check`."""
    targets: list[str] = Field(default_factory=lambda: ["cpu"])
    """By default `[cpu]`. `cpu`, `cuda`, `hip`: the devices found. `cuda:90`: the devices of that
    capability or, where there is none, cross-compilation and verification in Triton's interpreter.
    `simulated`: the device of `recorded:FILE` kernels; `simulated:FILE`: of that recording only; a
    task with targets `[cuda, simulated]` replays unless the run has such a device."""
    budget: Budget = Budget(trials=100)
    """When a task ends; 100 trials by default."""
    strategy: StrategyConfig = StrategyConfig()
    """The search strategy; `bayes` by default."""
    wall: Seconds | None = None
    """Wall-clock time of a run from the start of its command, finals included; `--wall` replaces
    it."""
    deadline: Annotated[str, AfterValidator(_check_deadline)] | None = None
    """When a run is to be over, finals included: `07:00`, `Mon 06:00` or `2026-12-24 12:00`, next
    after it began, in the schedule's time zone or, without one, the machine's."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Of jobs that wait for a device, those of a higher one go first, also between campaigns."""
    in_flight: int | None = Field(default=None, gt=0, le=10_000)
    """Tasks searched at the same time; null: two per runner and at least four."""
    reconfirm: bool = False
    """Race and confirm again what earlier runs have settled; without it, a run in which nothing is
    new takes their outcomes over, so that no drift shows."""
    regressions: bool = True
    """Decide steps to a higher time after each run, by a new pass where the device is here, and
    notify."""
    schedule: ScheduleConfig | None = None
    """When the campaign starts without a command."""

    def describe_work(self) -> dict[str, Any]:
        """What the runs of the campaign do, as JSON types; a resumed run does the same."""
        order = {"tasks": {"__all__": {"weight"}}}
        return self.model_dump(mode="json", exclude={**dict.fromkeys(_NOT_WORK, True), **order})

    def limit_s(self, began: datetime, now: datetime) -> float | None:
        """The most seconds from now on that a run has which began then; None: no limit."""
        limits = [] if self.wall is None else [self.wall]
        if self.deadline is not None:
            from zoneinfo import ZoneInfo

            from tuner.schedule.blackout import find_next

            zone = ZoneInfo(self.schedule.timezone) if self.schedule else None
            local = began.astimezone(zone)
            ends_at = find_next(self.deadline, local.replace(tzinfo=None))
            ends_at = ends_at.replace(tzinfo=zone) if zone else ends_at.astimezone()
            limits.append(max(0.0, (ends_at - now).total_seconds()))
        return min(limits, default=None)


class DatabaseConfig(SettingsSection):
    """The database of results."""

    url: str = "sqlite:///results/tuner.db"
    """`sqlite:///FILE`, or `postgresql+psycopg://user@host/name` (extra `postgres`)."""
    timeout: Seconds = 30.0
    """How long a run waits for the answer to one statement."""
    patience: Seconds = 600.0
    """How long a run waits for an unreachable database; workers continue."""


class LoggingConfig(SettingsSection):
    """The log of a command; `--log-level` and `--log-file` take precedence."""

    level: Literal["debug", "info", "warning", "error"] | None = None
    """The least severe records: of the file (default `info`), or of stderr where there is no file
    (default `warning`)."""
    file: str | None = None
    """The log file, relative to config.yaml; a name that ends with `.jsonl` gets JSON lines."""


class NotifyConfig(SettingsSection):
    """Where the farm sends confirmed regressions."""

    webhook: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The address of a webhook that takes `{"text": ...}`, as Slack's; a secret, which belongs into
    the environment: TUNER__NOTIFY__WEBHOOK."""
    morning: str | None = None
    """A cron line: when what started schedules sends `tuner note` to the webhook."""
    timezone: str = "UTC"
    """A name of the IANA database."""


class PathsConfig(SettingsSection):
    """Folders of results, relative to config.yaml."""

    results: str = "results"
    """The folder of `report.html`."""
    tables: str = "results/tables"
    """The folder of the exported tables."""
    priors: str = "results/priors"
    """The folder of imported configs, which searches try first."""


class DeviceConfig(SettingsSection):
    """The runners of one kind of device."""

    runners: Runners | Literal["auto"] | None = "auto"
    """The number of runners; null: one per device; `auto`: one for `cpu` and `simulated`, else one
    per device."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the kind's backend."""


class PoolConfig(SettingsSection):
    """The pool of workers."""

    kind: str = "auto"
    """`auto`: `ray` where `address` or the variable RAY_ADDRESS names a cluster, else `local`, for
    child processes of the command."""
    address: str | None = None
    """`auto` or HOST:PORT joins a Ray cluster; with kind `ray`, null starts Ray on this machine."""
    reserve: bool = True
    """Whether workers reserve the CPUs and GPUs of a Ray cluster; else campaigns share them."""
    builders: int | None = Field(default=None, gt=0, le=10_000)
    """Builders at once; null: as many as the machines have processors for."""
    devices: dict[str, DeviceConfig] = Field(default_factory=dict)
    """Runners and options by kind of device, plug-in backends included."""
    build_timeout: Seconds = 120.0
    """The limit of one build; the trial then has the status `timeout`."""
    measure_timeout: Seconds = 120.0
    """The limit of one measurement; on a GPU a variant without a heartbeat ends sooner."""
    baseline_timeout: Seconds = 120.0
    """The limit of compiling, warming up and checking a baseline, which then fails alone."""
    connect_timeout: Seconds = 30.0
    """How long to wait for a cluster to answer."""

    @model_validator(mode="before")
    @classmethod
    def _decide_kind(cls, data: Any) -> Any:
        """With `auto` replaced by the kind that it means."""
        if not isinstance(data, Mapping) or data.get("kind", "auto") != "auto":
            return data
        cluster = data.get("address") or os.environ.get("RAY_ADDRESS")
        return {**data, "kind": "ray" if cluster else "local"}

    def runners_of(self, kind: str) -> int | None:
        """How many runners of a kind; None when the devices decide."""
        from workers import backend_kinds

        runners = self.devices.get(kind, DeviceConfig()).runners
        return backend_kinds.spec(kind).default_runners if runners == "auto" else runners

    def options_of(self, kind: str) -> dict[str, Scalar]:
        """The options of a kind's builds and runners."""
        return dict(self.devices.get(kind, DeviceConfig()).options)


def _growing(pairs: list[int]) -> list[int]:
    if any(later <= earlier for earlier, later in pairwise(pairs)):
        raise ValueError(f"{pairs} does not grow; write checkpoints such as [1, 3, 9, 24]")
    return pairs


class MeasureConfig(SettingsSection):
    """The measuring protocol; results of another protocol are not reused."""

    method: Literal["auto", "events", "graph", "cupti"] = "auto"
    """The timer; `auto` chooses by the kernel's duration, once for all candidates of a task."""
    cache: Literal["cold", "warm", "rotate"] = "cold"
    """`cold` flushes the last-level cache before every launch, `rotate` changes the buffers
    instead, `warm` does neither."""
    pairs: Annotated[list[Pairs], AfterValidator(_growing)] = Field(
        default=[1, 3, 9, 24], min_length=1
    )
    """Increasing numbers of samples after which the screening of a candidate may stop."""
    cap: Ratio = 1.6
    """Screening stops after the first sample at this ratio to the incumbent."""
    near: Ratio = 1.15
    """Screening stops up to the third sample when even the fastest has this ratio."""
    hopeless: Ratio = 1.02
    """Screening stops later when the candidate is slower by this ratio with confidence."""
    rounds: int = Field(default=24, ge=1, le=100_000)
    """The most rounds of a race."""
    round_pairs: int = Field(default=16, ge=1, le=100_000)
    """Interleaved passes of one round."""
    epsilon: Share = 0.005
    """A race ends when all remaining finalists are within this share of the fastest."""
    delta: Share = 0.05
    """The bound on the probability of any wrong decision in a race."""
    precision: Share = 0.004
    """A confirmation is extended, up to eightfold, until close ratios are known to this share."""
    final_pairs: int = Field(default=64, ge=8, le=100_000)
    """Interleaved passes of a confirmation."""
    warm_ms: float = Field(default=100.0, ge=0, le=60_000)
    """Load before timing, in milliseconds, until the clock is steady."""
    seeds: list[Seed] = Field(default=[1, 2], min_length=1)
    """Seeds of the inputs on which every variant must be correct."""
    numerics: Literal["any", "deterministic", "batch_invariant"] = "any"
    """`deterministic` refuses variants and baselines of which a repetition gives other bits.
    `batch_invariant` needs ranges, whose configs all give a row the same bits beside other rows."""
    finalists: int = Field(default=16, ge=2, le=1000)
    """The number of trials of a task that enter the race."""
    baselines: list[str] | None = None
    """Names of the baselines that confirmations measure, where a kernel has them; null: all; `[]`:
    none. A name that no kernel of the campaign has is refused when the campaign starts."""

    def make_protocol(self) -> MeasurementProtocol:
        """What the workers keep to; its constants are keys of this section."""
        from workers.job_records import MeasurementProtocol

        names = {each.name for each in fields(MeasurementProtocol)}
        given = {name: value for name, value in self if name in names}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return MeasurementProtocol(**{**given, **lists})

    def choose_baselines(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of a kernel's baselines that confirmations measure, sorted by name."""
        selected = self.baselines
        return tuple(sorted(name for name in names if selected is None or name in selected))


class Settings(SettingsSection):
    """config.yaml."""

    version: Literal[1] = 1
    """Required; the first line by habit."""
    database: DatabaseConfig = DatabaseConfig()
    """Where results are recorded."""
    paths: PathsConfig = PathsConfig()
    """Where files are written."""
    logging: LoggingConfig = LoggingConfig()
    """The log of commands."""
    notify: NotifyConfig = NotifyConfig()
    """Where confirmed regressions are sent."""
    pool: PoolConfig = PoolConfig()
    """Where workers live."""
    measure: MeasureConfig = MeasureConfig()
    """The measuring protocol."""
    kernels: list[str] = Field(default_factory=list)
    """Kernels beyond the built-in ones and entry points: `module:object` or `file.py:object`."""
    campaigns: dict[str, CampaignConfig] = Field(default_factory=dict)
    """Campaigns by name, of letters, digits, `_`, `-` and `.`."""
