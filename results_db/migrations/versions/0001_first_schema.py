"""The first schema."""

from __future__ import annotations

from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Column: TypeAlias = "sa.Column[Any]"

_STATUS = "status IN ('correct', 'constraints', 'compile', 'runtime', 'timeout', 'correctness')"


def upgrade() -> None:
    _identities()
    _campaigns()
    _tasks()
    _trials()
    _outcomes()
    _events()


def _identities() -> None:
    _table(
        "device",
        _id(),
        *_texts("identity", "fingerprint", "kind", "name", "target"),
        *_integers("sm_count", "memory_bytes", "shared_bytes", "registers"),
        *_integers("warp_size", "l2_bytes"),
        *_floats("power_limit_w", nullable=False),
        *_texts("uuid"),
        _unique("device", "identity"),
    )
    op.create_index("ix_device_fingerprint", "device", ["fingerprint"])
    _table(
        "toolchain",
        _id(),
        *_texts("key", "build_key", "python", "torch", "triton", "cuda", "ptxas", "driver"),
        *_texts("compiler"),
        _unique("toolchain", "key"),
    )
    _table(
        "kernel",
        _id(),
        *_texts("name", "source_hash", "space_hash"),
        _unique("kernel", "name", "source_hash", "space_hash"),
    )
    _table("workload", _id(), *_texts("identity", "key", "dims"), _unique("workload", "identity"))


def _campaigns() -> None:
    _table("campaign", _id(), *_texts("name"), _unique("campaign", "name"))
    _table(
        "run",
        _id(),
        *_reference("run", "campaign"),
        *_texts("status"),
        _instant("started_at"),
        _instant("finished_at", nullable=True),
        *_texts("spec_hash"),
        *_integers("seed"),
        *_texts("environment", "spec", "summary", "holder"),
        _instant("heartbeat_at", nullable=True),
        _check("run", "status", "status IN ('running', 'finished', 'interrupted', 'failed')"),
    )
    op.create_index("ix_run_campaign_id", "run", ["campaign_id"])


def _tasks() -> None:
    _table(
        "task",
        _id(),
        *_reference("task", "run"),
        *_reference("task", "kernel"),
        *_reference("task", "workload"),
        *_reference("task", "device"),
        *_reference("task", "toolchain"),
        *_texts("protocol", "reuse_key", "stage"),
        *_floats("flops", "bytes", nullable=False),
        *_floats("tolerance"),
        *_texts("note"),
        _unique("task", "run_id", "kernel_id", "reuse_key"),
    )
    op.create_index("ix_task_kernel_id", "task", ["kernel_id"])
    op.create_index("ix_task_reuse_key", "task", ["reuse_key"])


def _trials() -> None:
    _table(
        "trial",
        _id(),
        *_reference("trial", "task"),
        *_texts("attempt_id"),
        *_integers("number"),
        *_texts("config_hash", "config", "status", "source", "message", "detail", "strategy"),
        *_texts("twin", "binary_hash"),
        *_integers("registers", "spill_bytes", "shared_bytes", "binary_bytes", nullable=True),
        *_floats("build_s", "device_s", nullable=False),
        *_texts("worker"),
        _instant("finished_at", nullable=True),
        _instant("recorded_at"),
        _unique("trial", "attempt_id"),
        _unique("trial", "task_id", "config_hash"),
        _unique("trial", "task_id", "number"),
        _check("trial", "status", _STATUS),
        _check("trial", "source", "source IN ('measured', 'built', 'binary', 'reused')"),
    )
    _table(
        "measurement",
        *_reference("measurement", "trial"),
        *_texts("method", "cache", "champion"),
        *_floats("error"),
        *_integers("compiled"),
        *_texts("verified_by"),
        sa.Column("champion_samples_us", sa.LargeBinary()),
        *_texts("clocks"),
        *_figures(),
        sa.PrimaryKeyConstraint("trial_id", name="pk_measurement"),
    )


def _outcomes() -> None:
    _table(
        "baseline",
        _id(),
        *_reference("baseline", "task"),
        *_integers("position"),
        *_texts("name", "status"),
        *_floats("error"),
        *_texts("message"),
        *_figures(),
        _unique("baseline", "task_id", "name"),
        _check("baseline", "status", _STATUS),
    )
    _table(
        "selection",
        _id(),
        *_reference("selection", "task"),
        *_texts("winner", "tie_set"),
        *_texts("runner_up", "default_config", nullable=True),
        *_texts("verdict", "reason"),
        *_floats("default_us"),
        *_integers("compiled"),
        *_texts("clocks"),
        _instant("confirmed_at", nullable=True),
        _instant("recorded_at"),
        *_figures(),
        _unique("selection", "task_id"),
    )


def _events() -> None:
    _table(
        "schedule_fire",
        _id(),
        *_texts("schedule"),
        _instant("instant"),
        *_texts("state", "host"),
        *_reference("schedule_fire", "run", nullable=True),
        _instant("fired_at", nullable=True),
        *_texts("message"),
        _unique("schedule_fire", "schedule", "instant"),
        _check("schedule_fire", "state", "state IN ('started', 'finished', 'failed', 'missed')"),
    )
    _table(
        "export",
        _id(),
        *_texts("path", "format"),
        *_reference("export", "run", nullable=True),
        *_texts("sha256", "task_ids"),
        _instant("exported_at"),
    )
    op.create_index("ix_export_path", "export", ["path"])


def _table(name: str, *items: Column | sa.Constraint) -> None:
    keyed = any(isinstance(item, sa.PrimaryKeyConstraint) for item in items)
    key = () if keyed else (sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),)
    op.create_table(name, *items, *key)


def _key_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> Column:
    return sa.Column("id", _key_type(), nullable=False)


def _reference(table: str, other: str, *, nullable: bool = False) -> list[Any]:
    column = f"{other}_id"
    name = f"fk_{table}_{column}_{other}"
    return [
        sa.Column(column, _key_type(), nullable=nullable),
        sa.ForeignKeyConstraint([column], [f"{other}.id"], name=name),
    ]


def _texts(*names: str, nullable: bool = False) -> list[Column]:
    return [sa.Column(name, sa.Text(), nullable=nullable) for name in names]


def _integers(*names: str, nullable: bool = False) -> list[Column]:
    return [sa.Column(name, sa.BigInteger(), nullable=nullable) for name in names]


def _floats(*names: str, nullable: bool = True) -> list[Column]:
    return [sa.Column(name, sa.Double(), nullable=nullable) for name in names]


def _instant(name: str, *, nullable: bool = False) -> Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _figures() -> list[Column]:
    ratios = _floats("median_us", "log_ratio", "log_ratio_low", "log_ratio_high")
    return [*ratios, sa.Column("samples_us", sa.LargeBinary())]


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))
