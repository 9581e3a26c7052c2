"""The time line of a run that was traced."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "timeline",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("spans", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_timeline_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_timeline")),
    )
