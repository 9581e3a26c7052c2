"""The tag of a run: a name that one run of the database has."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    # SQLite gives defaults of an existing table back in parentheses.
    columns = (_text("lease"), _text("process"))
    with op.batch_alter_table("run", recreate=recreate, reflect_args=columns) as batch:
        batch.add_column(sa.Column("tag", sa.Text()))
        batch.create_unique_constraint(op.f("uq_run_tag"), ["tag"])


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)
