"""A kernel's identity in one digest, over the text of its code, in place of two halves."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Earlier kernels keep both halves in one text, which no identity of today equals."""
    op.execute(sa.text("UPDATE kernel SET launch_hash = launch_hash || check_hash"))
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "auto"] = "always" if sqlite else "auto"
    with op.batch_alter_table("kernel", recreate=recreate) as batch:
        batch.drop_constraint(
            op.f("uq_kernel_name_launch_hash_check_hash_space_hash"), type_="unique"
        )
        batch.drop_column("check_hash")
        batch.create_unique_constraint(
            op.f("uq_kernel_name_launch_hash_space_hash"), ["name", "launch_hash", "space_hash"]
        )
