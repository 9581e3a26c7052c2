"""The tables. docs/database.md describes every column."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from results_db.columns import AnyText, Json, Samples, UtcDateTime
from results_db.promotion_records import PromotionOutcome
from results_db.regression_records import RegressionState
from results_db.stored_records import FireState, RunStatus, Source
from search_spaces.records import Status
from workers.job_records import Mode

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# On SQLite only an INTEGER primary key is assigned automatically.
Id = Annotated[int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)]
JsonObject = Annotated[Any, mapped_column(Json(dict))]
JsonArray = Annotated[Any, mapped_column(Json(list))]
Array = Annotated[tuple[float, ...], mapped_column(Samples, nullable=True)]


def one_of(column: str, *values: str) -> CheckConstraint:
    """A CHECK constraint: the column contains one of these words."""
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=column)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: AnyText,
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
    }


class Figures:
    """The columns of a timing: a median, and its ratio to a reference in the same passes."""

    median_us: Mapped[float | None]
    log_ratio: Mapped[float | None]
    log_ratio_low: Mapped[float | None]
    log_ratio_high: Mapped[float | None]
    samples_us: Mapped[Array]


class Device(Base):
    __tablename__ = "device"

    id: Mapped[Id]
    identity: Mapped[str]
    fingerprint: Mapped[str] = mapped_column(index=True)
    kind: Mapped[str]
    name: Mapped[str]
    target: Mapped[str]
    sm_count: Mapped[int]
    memory_bytes: Mapped[int]
    shared_bytes: Mapped[int]
    registers: Mapped[int]
    warp_size: Mapped[int]
    l2_bytes: Mapped[int]
    power_limit_w: Mapped[float]
    uuid: Mapped[str]

    __table_args__ = (UniqueConstraint("identity"),)


class Toolchain(Base):
    __tablename__ = "toolchain"

    id: Mapped[Id]
    key: Mapped[str]
    build_key: Mapped[str]
    python: Mapped[str]
    torch: Mapped[str]
    triton: Mapped[str]
    cuda: Mapped[str]
    ptxas: Mapped[str]
    driver: Mapped[str]
    compiler: Mapped[str]
    variables: Mapped[str] = mapped_column(server_default=text("''"))

    __table_args__ = (UniqueConstraint("key"),)


class Kernel(Base):
    __tablename__ = "kernel"

    id: Mapped[Id]
    name: Mapped[str]
    launch_hash: Mapped[str]
    kernel_hashes: Mapped[JsonArray] = mapped_column(server_default=text("'[]'"))
    space_hash: Mapped[str]

    __table_args__ = (UniqueConstraint("name", "launch_hash", "space_hash"),)


class Workload(Base):
    __tablename__ = "workload"

    id: Mapped[Id]
    identity: Mapped[str]
    key: Mapped[str]
    dims: Mapped[JsonObject]

    __table_args__ = (UniqueConstraint("identity"),)


class Campaign(Base):
    __tablename__ = "campaign"

    id: Mapped[Id]
    name: Mapped[str]

    __table_args__ = (UniqueConstraint("name"),)


class Run(Base):
    __tablename__ = "run"

    id: Mapped[Id]
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaign.id"), index=True)
    status: Mapped[str]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    spec_hash: Mapped[str]
    seed: Mapped[int]
    environment: Mapped[JsonObject]
    spec: Mapped[JsonObject]
    summary: Mapped[JsonObject]
    holder: Mapped[str]
    heartbeat_at: Mapped[datetime | None]
    lease: Mapped[str] = mapped_column(server_default=text("''"))
    process: Mapped[str] = mapped_column(server_default=text("''"))
    tag: Mapped[str | None]

    campaign: Mapped[Campaign] = relationship(lazy="joined", innerjoin=True)

    __table_args__ = (UniqueConstraint("tag"), one_of("status", *RunStatus))


class Timeline(Base):
    __tablename__ = "timeline"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    spans: Mapped[JsonObject]
    recorded_at: Mapped[datetime]


class Task(Base):
    __tablename__ = "task"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernel.id"), index=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    protocol: Mapped[str]
    reuse_key: Mapped[str] = mapped_column(index=True)
    stage: Mapped[str]
    flops: Mapped[float]
    bytes: Mapped[float]
    tolerance: Mapped[float | None]
    note: Mapped[str]
    best_us: Mapped[float | None]
    place: Mapped[JsonObject] = mapped_column(server_default=text("'{}'"))

    run: Mapped[Run] = relationship()
    kernel: Mapped[Kernel] = relationship(lazy="joined", innerjoin=True)
    workload: Mapped[Workload] = relationship(lazy="joined", innerjoin=True)
    device: Mapped[Device] = relationship(lazy="joined", innerjoin=True)
    toolchain: Mapped[Toolchain] = relationship(lazy="joined", innerjoin=True)
    selection: Mapped[Selection | None] = relationship(lazy="joined")
    baselines: Mapped[list[Baseline]] = relationship(lazy="selectin", order_by="Baseline.position")
    finals: Mapped[list[Finalist]] = relationship(lazy="selectin", order_by="Finalist.position")

    __table_args__ = (UniqueConstraint("run_id", "kernel_id", "reuse_key"),)


class Trial(Base):
    __tablename__ = "trial"

    id: Mapped[Id]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    attempt_id: Mapped[str]
    number: Mapped[int]
    config_hash: Mapped[str]
    config: Mapped[JsonObject]
    status: Mapped[str]
    source: Mapped[str]
    message: Mapped[str]
    detail: Mapped[str]
    strategy: Mapped[str]
    copied_from: Mapped[str]
    binary_hash: Mapped[str]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    shared_bytes: Mapped[int | None]
    binary_bytes: Mapped[int | None]
    build_s: Mapped[float]
    device_s: Mapped[float]
    worker: Mapped[str]
    finished_at: Mapped[datetime | None]
    recorded_at: Mapped[datetime]

    __table_args__ = (
        UniqueConstraint("attempt_id"),
        UniqueConstraint("task_id", "config_hash"),
        UniqueConstraint("task_id", "number"),
        Index(None, "task_id", "status"),
        one_of("status", *Status),
        one_of("source", *Source),
    )


class Measurement(Figures, Base):
    __tablename__ = "measurement"

    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id"), primary_key=True)
    method: Mapped[str]
    cache: Mapped[str]
    incumbent: Mapped[str]
    error: Mapped[float | None]
    compiled: Mapped[int]
    verified_by: Mapped[str]
    timing_s: Mapped[float] = mapped_column(server_default=text("0"))
    deterministic: Mapped[bool | None]
    incumbent_samples_us: Mapped[Array]
    clocks: Mapped[JsonObject]


class Baseline(Figures, Base):
    __tablename__ = "baseline"

    id: Mapped[Id]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    position: Mapped[int]
    name: Mapped[str]
    status: Mapped[str]
    error: Mapped[float | None]
    message: Mapped[str]

    __table_args__ = (UniqueConstraint("task_id", "name"), one_of("status", *Status))


class Finalist(Figures, Base):
    __tablename__ = "finalist"

    id: Mapped[Id]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    position: Mapped[int]
    stage: Mapped[str]
    config: Mapped[JsonObject]
    status: Mapped[str]
    dropped: Mapped[bool]
    message: Mapped[str]
    method: Mapped[str]
    cache: Mapped[str]

    __table_args__ = (
        UniqueConstraint("task_id", "position"),
        one_of("stage", Mode.RACE, Mode.CONFIRM),
        one_of("status", *Status),
    )


class Selection(Figures, Base):
    __tablename__ = "selection"

    id: Mapped[Id]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    winner: Mapped[JsonObject]
    tie_set: Mapped[JsonArray]
    runner_up: Mapped[JsonObject | None]
    default_config: Mapped[JsonObject | None]
    verdict: Mapped[str]
    reason: Mapped[str]
    default_us: Mapped[float | None]
    compiled: Mapped[int]
    clocks: Mapped[JsonObject]
    confirmed_at: Mapped[datetime | None]
    recorded_at: Mapped[datetime]

    __table_args__ = (UniqueConstraint("task_id"),)


class Calibration(Base):
    __tablename__ = "calibration"

    id: Mapped[Id]
    identity: Mapped[str]
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"), index=True)
    toolchain_id: Mapped[int] = mapped_column(ForeignKey("toolchain.id"))
    host: Mapped[str]
    measured_at: Mapped[datetime]
    quantum_us: Mapped[float]
    overhead_us: Mapped[JsonObject]
    flush_us: Mapped[float]
    copy_bytes_per_us: Mapped[float]
    flops_per_us: Mapped[JsonObject]

    device: Mapped[Device] = relationship(lazy="joined", innerjoin=True)
    toolchain: Mapped[Toolchain] = relationship(lazy="joined", innerjoin=True)

    __table_args__ = (UniqueConstraint("identity"),)


class ScheduleFire(Base):
    __tablename__ = "schedule_fire"

    id: Mapped[Id]
    schedule: Mapped[str]
    instant: Mapped[datetime]
    state: Mapped[str]
    host: Mapped[str]
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    fired_at: Mapped[datetime | None]
    message: Mapped[str]
    process: Mapped[str] = mapped_column(server_default=text("''"))
    attempts: Mapped[int] = mapped_column(server_default=text("1"))

    __table_args__ = (
        UniqueConstraint("schedule", "instant"),
        one_of("state", *FireState),
    )


class Export(Base):
    __tablename__ = "export"

    id: Mapped[Id]
    path: Mapped[str] = mapped_column(index=True)
    format: Mapped[str]
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    sha256: Mapped[str]
    task_ids: Mapped[JsonArray]
    exported_at: Mapped[datetime]


class Promotion(Base):
    __tablename__ = "promotion"

    id: Mapped[Id]
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), index=True)
    path: Mapped[str]
    kernel: Mapped[str]
    workload: Mapped[str]
    outcome: Mapped[str]
    reason: Mapped[str]
    config: Mapped[JsonObject]
    former: Mapped[JsonObject | None]
    log_ratio: Mapped[float | None]
    log_ratio_low: Mapped[float | None]
    log_ratio_high: Mapped[float | None]
    decided_at: Mapped[datetime]

    __table_args__ = (one_of("outcome", *PromotionOutcome),)


class Regression(Base):
    __tablename__ = "regression"

    id: Mapped[Id]
    task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    former_task_id: Mapped[int] = mapped_column(ForeignKey("task.id"))
    found_run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    state: Mapped[str]
    reason: Mapped[str]
    log_ratio: Mapped[float | None]
    log_ratio_low: Mapped[float | None]
    log_ratio_high: Mapped[float | None]
    found_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]
    notified_at: Mapped[datetime | None]
    acknowledged_at: Mapped[datetime | None]

    __table_args__ = (UniqueConstraint("task_id"), one_of("state", *RegressionState))
