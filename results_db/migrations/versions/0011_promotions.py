"""What promotions decided about the entries of published tables, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    texts = ("path", "kernel", "workload", "outcome", "reason", "config")
    op.create_table(
        "promotion",
        sa.Column("id", number, nullable=False),
        sa.Column("run_id", number, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        sa.Column("former", sa.Text()),
        *(sa.Column(f"log_ratio{end}", sa.Double()) for end in ("", "_low", "_high")),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('promoted', 'same', 'refused')", name=op.f("ck_promotion_outcome")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_promotion_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_promotion")),
    )
    op.create_index(op.f("ix_promotion_run_id"), "promotion", ["run_id"])
