"""How it was measured: finals with their samples, calibrations, time spent timing, determinism."""

from __future__ import annotations

from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

Column: TypeAlias = "sa.Column[Any]"

_STATUS = "status IN ('correct', 'constraints', 'compile', 'runtime', 'timeout', 'correctness')"


def upgrade() -> None:
    _measurement()
    _finalist()
    _calibration()


def _measurement() -> None:
    """Earlier trials have spent no known time timing; nobody looked whether they repeat."""
    sqlite = op.get_bind().dialect.name == "sqlite"
    with op.batch_alter_table("measurement", recreate="always" if sqlite else "auto") as batch:
        batch.add_column(
            sa.Column("timing_s", sa.Double(), server_default=sa.text("0"), nullable=False)
        )
        batch.add_column(sa.Column("deterministic", sa.Boolean()))


def _finalist() -> None:
    op.create_table(
        "finalist",
        _id(),
        _reference("task"),
        sa.Column("position", sa.BigInteger(), nullable=False),
        *_texts("stage", "config", "status"),
        sa.Column("dropped", sa.Boolean(), nullable=False),
        *_texts("message", "method", "cache"),
        *(
            sa.Column(name, sa.Double())
            for name in ("median_us", "log_ratio", "log_ratio_low", "log_ratio_high")
        ),
        sa.Column("samples_us", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_finalist"),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name="fk_finalist_task_id_task"),
        sa.UniqueConstraint("task_id", "position", name="uq_finalist_task_id_position"),
        sa.CheckConstraint("stage IN ('race', 'confirm')", name=op.f("ck_finalist_stage")),
        sa.CheckConstraint(_STATUS, name=op.f("ck_finalist_status")),
    )


def _calibration() -> None:
    op.create_table(
        "calibration",
        _id(),
        *_texts("identity"),
        _reference("device"),
        _reference("toolchain"),
        *_texts("host"),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("quantum_us", sa.Double(), nullable=False),
        *_texts("overhead_us"),
        sa.Column("flush_us", sa.Double(), nullable=False),
        sa.Column("copy_bytes_per_us", sa.Double(), nullable=False),
        *_texts("flops_per_us"),
        sa.PrimaryKeyConstraint("id", name="pk_calibration"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name="fk_calibration_device_id_device"
        ),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchain.id"], name="fk_calibration_toolchain_id_toolchain"
        ),
        sa.UniqueConstraint("identity", name="uq_calibration_identity"),
    )
    op.create_index("ix_calibration_device_id", "calibration", ["device_id"])


def _key_type() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> Column:
    return sa.Column("id", _key_type(), nullable=False)


def _reference(other: str) -> Column:
    return sa.Column(f"{other}_id", _key_type(), nullable=False)


def _texts(*names: str) -> list[Column]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]
