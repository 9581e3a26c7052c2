"""Run by alembic: migrate over the connection, and in the transaction, that the caller opened."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy.types import TypeDecorator

from results_db.tables import METADATA


def plain_type(kind: str, item: Any, _autogen: object) -> str | Literal[False]:
    """A column type as the database knows it: a migration must not change with our classes."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl_instance!r}"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    compare_type=True,
    render_item=plain_type,
)
context.run_migrations()
