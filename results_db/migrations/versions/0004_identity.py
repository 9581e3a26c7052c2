"""A kernel's identity in two halves, and trials whose time was kept and verified again."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_SOURCES = "source IN ('measured', 'built', 'binary', 'reused', 'verified')"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    _kernel(recreate)
    with op.batch_alter_table("trial", recreate=recreate) as batch:
        batch.drop_constraint(op.f("ck_trial_source"), type_="check")
        batch.create_check_constraint(op.f("ck_trial_source"), _SOURCES)


def _kernel(recreate: Literal["always", "auto"]) -> None:
    """Earlier kernels have no second half, so their results are not taken over."""
    with op.batch_alter_table("kernel", recreate=recreate) as batch:
        batch.drop_constraint(op.f("uq_kernel_name_source_hash_space_hash"), type_="unique")
        batch.alter_column("source_hash", new_column_name="launch_hash")
    with op.batch_alter_table("kernel", recreate=recreate) as batch:
        batch.add_column(_text("check_hash", "''"))
        batch.add_column(_text("kernel_hashes", "'[]'"))
        batch.create_unique_constraint(
            op.f("uq_kernel_name_launch_hash_check_hash_space_hash"),
            ["name", "launch_hash", "check_hash", "space_hash"],
        )


def _text(name: str, default: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text(default), nullable=False)
