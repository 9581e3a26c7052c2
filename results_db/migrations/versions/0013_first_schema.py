"""The first schema. Earlier numbers were used before the first release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = None

_Column: TypeAlias = "sa.Column[Any]"

_NOTHING: Mapping[str, str] = MappingProxyType({})
_STATUS = "'correct', 'constraints', 'compile', 'runtime', 'timeout', 'correctness'"
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_RATIO = "log_ratio log_ratio_low log_ratio_high"
_FIGURES = f"median_us {_RATIO}"


def upgrade() -> None:
    _identities()
    _runs()
    _tasks()
    _trials()
    _outcomes()
    _events()
    _decisions()


def _identities() -> None:
    _create(
        "device",
        *_texts("identity fingerprint kind name target"),
        *_integers("sm_count memory_bytes shared_bytes registers warp_size l2_bytes"),
        *_floats("power_limit_w", nullable=False),
        *_texts("uuid"),
        unique=["identity"],
        index=["fingerprint"],
    )
    _create(
        "toolchain",
        *_texts("key build_key python torch triton cuda ptxas driver compiler"),
        *_texts("variables", default="''"),
        unique=["key"],
    )
    _create(
        "kernel",
        *_texts("name launch_hash"),
        *_texts("kernel_hashes", default="'[]'"),
        *_texts("space_hash"),
        unique=["name launch_hash space_hash"],
    )
    _create("workload", *_texts("identity key dims"), unique=["identity"])


def _runs() -> None:
    _create("campaign", *_texts("name"), unique=["name"])
    _create(
        "run",
        _reference("run", "campaign"),
        *_texts("status"),
        _instant("started_at"),
        _instant("finished_at", nullable=True),
        *_texts("spec_hash"),
        *_integers("seed"),
        *_texts("environment spec summary holder"),
        _instant("heartbeat_at", nullable=True),
        *_texts("lease process", default="''"),
        *_texts("tag", nullable=True),
        unique=["tag"],
        index=["campaign_id"],
        words={"status": "'running', 'finished', 'interrupted', 'failed'"},
    )
    _create("timeline", _reference("timeline", "run"), *_texts("spans"), _instant("recorded_at"))


def _tasks() -> None:
    others = ("run", "kernel", "workload", "device", "toolchain")
    _create(
        "task",
        *(_reference("task", other) for other in others),
        *_texts("protocol reuse_key stage"),
        *_floats("flops bytes", nullable=False),
        *_floats("tolerance"),
        *_texts("note"),
        *_floats("best_us"),
        *_texts("place", default="'{}'"),
        unique=["run_id kernel_id reuse_key"],
        index=["kernel_id", "reuse_key"],
    )


def _trials() -> None:
    _create(
        "trial",
        _reference("trial", "task"),
        *_texts("attempt_id"),
        *_integers("number"),
        *_texts("config_hash config status source message detail strategy"),
        *_texts("copied_from binary_hash"),
        *_integers("registers spill_bytes shared_bytes binary_bytes", nullable=True),
        *_floats("build_s device_s", nullable=False),
        *_texts("worker"),
        _instant("finished_at", nullable=True),
        _instant("recorded_at"),
        unique=["attempt_id", "task_id config_hash", "task_id number"],
        index=["task_id status"],
        words={
            "status": _STATUS,
            "source": "'measured', 'built', 'binary', 'reused', 'verified'",
        },
    )
    _create(
        "measurement",
        _reference("measurement", "trial"),
        *_texts("method cache incumbent"),
        *_floats("error"),
        *_integers("compiled"),
        *_texts("verified_by"),
        *_floats("timing_s", nullable=False, default="0"),
        sa.Column("deterministic", sa.Boolean()),
        *_arrays("incumbent_samples_us"),
        *_texts("clocks"),
        *_floats(_FIGURES),
        *_arrays("samples_us"),
    )


def _outcomes() -> None:
    _create(
        "baseline",
        _reference("baseline", "task"),
        *_integers("position"),
        *_texts("name status"),
        *_floats("error"),
        *_texts("message"),
        *_floats(_FIGURES),
        *_arrays("samples_us"),
        unique=["task_id name"],
        words={"status": _STATUS},
    )
    _create(
        "finalist",
        _reference("finalist", "task"),
        *_integers("position"),
        *_texts("stage config status"),
        sa.Column("dropped", sa.Boolean(), nullable=False),
        *_texts("message method cache"),
        *_floats(_FIGURES),
        *_arrays("samples_us"),
        unique=["task_id position"],
        words={"stage": "'race', 'confirm'", "status": _STATUS},
    )
    _create(
        "selection",
        _reference("selection", "task"),
        *_texts("winner tie_set"),
        *_texts("runner_up default_config", nullable=True),
        *_texts("verdict reason"),
        *_floats("default_us"),
        *_integers("compiled"),
        *_texts("clocks"),
        _instant("confirmed_at", nullable=True),
        _instant("recorded_at"),
        *_floats(_FIGURES),
        *_arrays("samples_us"),
        unique=["task_id"],
    )


def _events() -> None:
    _create(
        "calibration",
        *_texts("identity"),
        _reference("calibration", "device"),
        _reference("calibration", "toolchain"),
        *_texts("host"),
        _instant("measured_at"),
        *_floats("quantum_us", nullable=False),
        *_texts("overhead_us"),
        *_floats("flush_us copy_bytes_per_us", nullable=False),
        *_texts("flops_per_us"),
        unique=["identity"],
        index=["device_id"],
    )
    _create(
        "schedule_fire",
        *_texts("schedule"),
        _instant("instant"),
        *_texts("state host"),
        _reference("schedule_fire", "run", nullable=True),
        _instant("fired_at", nullable=True),
        *_texts("message"),
        *_texts("process", default="''"),
        *_integers("attempts", default="1"),
        unique=["schedule instant"],
        words={"state": "'started', 'finished', 'failed', 'missed', 'interrupted'"},
    )
    _create(
        "export",
        *_texts("path format"),
        _reference("export", "run", nullable=True),
        *_texts("sha256 task_ids"),
        _instant("exported_at"),
        index=["path"],
    )


def _decisions() -> None:
    _create(
        "promotion",
        _reference("promotion", "run"),
        *_texts("path kernel workload outcome reason config"),
        *_texts("former", nullable=True),
        *_floats(_RATIO),
        _instant("decided_at"),
        index=["run_id"],
        words={"outcome": "'promoted', 'same', 'refused'"},
    )
    _create(
        "regression",
        _reference("regression", "task"),
        _reference("regression", "task", "former_task_id"),
        _reference("regression", "run", "found_run_id"),
        *_texts("state reason"),
        *_floats(_RATIO),
        _instant("found_at"),
        *(_instant(f"{name}_at", nullable=True) for name in ("decided", "notified")),
        _instant("acknowledged_at", nullable=True),
        unique=["task_id"],
        words={"state": "'candidate', 'confirmed', 'refuted'"},
    )


def _create(
    table: str,
    *columns: _Column,
    unique: Sequence[str] = (),
    index: Sequence[str] = (),
    words: Mapping[str, str] = _NOTHING,
) -> None:
    """Create a table. Its key is `id`; that of an extension is the row it extends.

    unique, index: names of columns, separated by blanks. words: the values of a column.
    """
    extends = table in ("timeline", "measurement")
    key = columns[0].name if extends else "id"
    own = () if extends else (sa.Column("id", _KEY, nullable=False),)
    op.create_table(
        table,
        *own,
        *columns,
        sa.PrimaryKeyConstraint(key, name=op.f(f"pk_{table}")),
        *(
            sa.UniqueConstraint(*names.split(), name=op.f(f"uq_{table}_{names.replace(' ', '_')}"))
            for names in unique
        ),
        *(
            sa.CheckConstraint(f"{column} IN ({values})", name=op.f(f"ck_{table}_{column}"))
            for column, values in words.items()
        ),
    )
    for names in index:
        op.create_index(op.f(f"ix_{table}_{names.replace(' ', '_')}"), table, names.split())


def _reference(table: str, other: str, column: str = "", *, nullable: bool = False) -> _Column:
    column = column or f"{other}_id"
    key = sa.ForeignKey(f"{other}.id", name=op.f(f"fk_{table}_{column}_{other}"))
    return sa.Column(column, _KEY, key, nullable=nullable)


def _texts(names: str, *, nullable: bool = False, default: str | None = None) -> list[_Column]:
    return _columns(names, sa.Text(), nullable, default)


def _integers(names: str, *, nullable: bool = False, default: str | None = None) -> list[_Column]:
    return _columns(names, sa.BigInteger(), nullable, default)


def _floats(names: str, *, nullable: bool = True, default: str | None = None) -> list[_Column]:
    return _columns(names, sa.Double(), nullable, default)


def _arrays(names: str) -> list[_Column]:
    return _columns(names, sa.LargeBinary(), True, None)


def _columns(
    names: str, kind: sa.types.TypeEngine[Any], nullable: bool, default: str | None
) -> list[_Column]:
    value = None if default is None else sa.text(default)
    return [
        sa.Column(name, kind, nullable=nullable, server_default=value) for name in names.split()
    ]


def _instant(name: str, *, nullable: bool = False) -> _Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
