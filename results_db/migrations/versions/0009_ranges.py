"""The place of a task in a range of sizes; an empty object for every other task."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    column = sa.Column("place", sa.Text(), server_default=sa.text("'{}'"), nullable=False)
    with op.batch_alter_table("task", recreate=recreate) as batch:
        batch.add_column(column)
