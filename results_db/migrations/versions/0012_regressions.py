"""Steps of a kernel's times that were raised as regressions, and what became of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATES = "state IN ('candidate', 'confirmed', 'refuted')"


def upgrade() -> None:
    references = {"task_id": "task", "former_task_id": "task", "found_run_id": "run"}
    op.create_table(
        "regression",
        sa.Column("id", _NUMBER, nullable=False),
        *(sa.Column(name, _NUMBER, nullable=False) for name in references),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        *(sa.Column(f"log_ratio{end}", sa.Double()) for end in ("", "_low", "_high")),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.Column(f"{name}_at", sa.DateTime(timezone=True))
            for name in ("decided", "notified", "acknowledged")
        ),
        sa.CheckConstraint(_STATES, name=op.f("ck_regression_state")),
        *(
            sa.ForeignKeyConstraint(
                [name], [f"{table}.id"], name=op.f(f"fk_regression_{name}_{table}")
            )
            for name, table in references.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regression")),
        sa.UniqueConstraint("task_id", name=op.f("uq_regression_task_id")),
    )
