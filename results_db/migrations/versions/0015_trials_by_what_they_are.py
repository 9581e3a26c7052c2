"""Indexes of trials that were measured, and of those that were copied."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    for name, columns, where in (
        ("ix_trial_measured", ["task_id", "source", "status"], "source <> 'reused'"),
        ("ix_trial_copied", ["copied_from"], "copied_from <> ''"),
    ):
        only = sa.text(where)
        op.create_index(name, "trial", columns, sqlite_where=only, postgresql_where=only)
