"""Digests of the bits of single rows, and cards in quarantine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("measurement", sa.Column("row_bits", sa.Text()))
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    instant = sa.DateTime(timezone=True)
    op.create_table(
        "quarantine",
        sa.Column("id", number, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("card", "device", "reason")),
        *(sa.Column(name, instant, nullable=False) for name in ("since", "found_at")),
        *(sa.Column(name, instant) for name in ("notified_at", "admitted_at")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quarantine")),
    )
