"""Digests of the bits of single rows, for numerics that do not depend on the batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("measurement", sa.Column("row_bits", sa.Text()))
