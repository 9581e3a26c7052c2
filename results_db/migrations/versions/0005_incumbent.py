"""The variant that a trial was compared with is called the incumbent."""

from __future__ import annotations

from typing import Literal

from alembic import op

revision = "0005"
down_revision = "0004"

_RENAMED = {"champion": "incumbent", "champion_samples_us": "incumbent_samples_us"}


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    with op.batch_alter_table("measurement", recreate=recreate) as batch:
        for old, new in _RENAMED.items():
            batch.alter_column(old, new_column_name=new)
