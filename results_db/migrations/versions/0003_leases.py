"""Leases of runs and firings, resumed firings, and what `tuner status` reads at once."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_STATES = "state IN ('started', 'finished', 'failed', 'missed', 'interrupted')"
_BEST = """
UPDATE task SET best_us = (
    SELECT min(measurement.median_us)
    FROM trial JOIN measurement ON measurement.trial_id = trial.id
    WHERE trial.task_id = task.id AND trial.status = 'correct'
)
"""


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    with op.batch_alter_table("run", recreate=recreate) as batch:
        batch.add_column(_text("lease"))
        batch.add_column(_text("process"))
    with op.batch_alter_table("task", recreate=recreate) as batch:
        batch.add_column(sa.Column("best_us", sa.Double()))
    op.create_index("ix_trial_task_id_status", "trial", ["task_id", "status"])
    op.execute(_BEST)
    with op.batch_alter_table("schedule_fire", recreate=recreate) as batch:
        batch.add_column(_text("process"))
        batch.add_column(
            sa.Column("attempts", sa.BigInteger(), server_default=sa.text("1"), nullable=False)
        )
        batch.drop_constraint(op.f("ck_schedule_fire_state"), type_="check")
        batch.create_check_constraint(op.f("ck_schedule_fire_state"), _STATES)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)
