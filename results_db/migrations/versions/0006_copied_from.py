"""The attempt that a copied result was taken from is named by its role."""

from __future__ import annotations

from typing import Literal

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    with op.batch_alter_table("trial", recreate=recreate) as batch:
        batch.alter_column("twin", new_column_name="copied_from")
