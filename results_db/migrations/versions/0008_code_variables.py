"""The variables of the environment that change generated code, as a part of the toolchain."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    column = sa.Column("variables", sa.Text(), server_default=sa.text("''"), nullable=False)
    with op.batch_alter_table("toolchain", recreate=recreate) as batch:
        batch.add_column(column)
