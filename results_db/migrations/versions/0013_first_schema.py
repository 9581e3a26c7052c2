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
_TEXT, _COUNT = sa.Text(), sa.BigInteger()
_FLOAT: sa.types.TypeEngine[float] = sa.Double()
_TIME, _ARRAY = sa.DateTime(timezone=True), sa.LargeBinary()
_RATIO = "log_ratio log_ratio_low log_ratio_high"


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
        *_columns(_TEXT, "identity fingerprint kind name target"),
        *_columns(_COUNT, "sm_count memory_bytes shared_bytes registers warp_size l2_bytes"),
        *_columns(_FLOAT, "power_limit_w"),
        *_columns(_TEXT, "uuid"),
        unique=["identity"],
        index=["fingerprint"],
    )
    _create(
        "toolchain",
        *_columns(_TEXT, "key build_key python torch triton cuda ptxas driver compiler"),
        *_columns(_TEXT, "variables", default="''"),
        unique=["key"],
    )
    _create(
        "kernel",
        *_columns(_TEXT, "name launch_hash"),
        *_columns(_TEXT, "kernel_hashes", default="'[]'"),
        *_columns(_TEXT, "space_hash"),
        unique=["name launch_hash space_hash"],
    )
    _create("workload", *_columns(_TEXT, "identity key dims"), unique=["identity"])


def _runs() -> None:
    _create("campaign", *_columns(_TEXT, "name"), unique=["name"])
    _create(
        "run",
        _reference("run", "campaign"),
        *_columns(_TEXT, "status"),
        *_columns(_TIME, "started_at"),
        *_columns(_TIME, "finished_at", nullable=True),
        *_columns(_TEXT, "spec_hash"),
        *_columns(_COUNT, "seed"),
        *_columns(_TEXT, "environment spec summary holder"),
        *_columns(_TIME, "heartbeat_at", nullable=True),
        *_columns(_TEXT, "lease process", default="''"),
        *_columns(_TEXT, "tag", nullable=True),
        unique=["tag"],
        index=["campaign_id"],
        words={"status": "'running', 'finished', 'interrupted', 'failed'"},
    )
    _create(
        "timeline",
        _reference("timeline", "run"),
        *_columns(_TEXT, "spans"),
        *_columns(_TIME, "recorded_at"),
    )


def _tasks() -> None:
    others = ("run", "kernel", "workload", "device", "toolchain")
    _create(
        "task",
        *(_reference("task", other) for other in others),
        *_columns(_TEXT, "protocol reuse_key stage"),
        *_columns(_FLOAT, "flops bytes"),
        *_columns(_FLOAT, "tolerance", nullable=True),
        *_columns(_TEXT, "note"),
        *_columns(_FLOAT, "best_us", nullable=True),
        *_columns(_TEXT, "place", default="'{}'"),
        unique=["run_id kernel_id reuse_key"],
        index=["kernel_id", "reuse_key"],
    )


def _trials() -> None:
    _create(
        "trial",
        _reference("trial", "task"),
        *_columns(_TEXT, "attempt_id"),
        *_columns(_COUNT, "number"),
        *_columns(_TEXT, "config_hash config status source message detail strategy"),
        *_columns(_TEXT, "copied_from binary_hash"),
        *_columns(_COUNT, "registers spill_bytes shared_bytes binary_bytes", nullable=True),
        *_columns(_FLOAT, "build_s device_s"),
        *_columns(_TEXT, "worker"),
        *_columns(_TIME, "finished_at", nullable=True),
        *_columns(_TIME, "recorded_at"),
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
        *_columns(_TEXT, "method cache incumbent"),
        *_columns(_FLOAT, "error", nullable=True),
        *_columns(_COUNT, "compiled"),
        *_columns(_TEXT, "verified_by"),
        *_columns(_FLOAT, "timing_s", default="0"),
        sa.Column("deterministic", sa.Boolean()),
        *_columns(_ARRAY, "incumbent_samples_us", nullable=True),
        *_columns(_TEXT, "clocks"),
        *_figures(),
    )


def _outcomes() -> None:
    _create(
        "baseline",
        _reference("baseline", "task"),
        *_columns(_COUNT, "position"),
        *_columns(_TEXT, "name status"),
        *_columns(_FLOAT, "error", nullable=True),
        *_columns(_TEXT, "message"),
        *_figures(),
        unique=["task_id name"],
        words={"status": _STATUS},
    )
    _create(
        "finalist",
        _reference("finalist", "task"),
        *_columns(_COUNT, "position"),
        *_columns(_TEXT, "stage config status"),
        sa.Column("dropped", sa.Boolean(), nullable=False),
        *_columns(_TEXT, "message method cache"),
        *_figures(),
        unique=["task_id position"],
        words={"stage": "'race', 'confirm'", "status": _STATUS},
    )
    _create(
        "selection",
        _reference("selection", "task"),
        *_columns(_TEXT, "winner tie_set"),
        *_columns(_TEXT, "runner_up default_config", nullable=True),
        *_columns(_TEXT, "verdict reason"),
        *_columns(_FLOAT, "default_us", nullable=True),
        *_columns(_COUNT, "compiled"),
        *_columns(_TEXT, "clocks"),
        *_columns(_TIME, "confirmed_at", nullable=True),
        *_columns(_TIME, "recorded_at"),
        *_figures(),
        unique=["task_id"],
    )


def _events() -> None:
    _create(
        "calibration",
        *_columns(_TEXT, "identity"),
        _reference("calibration", "device"),
        _reference("calibration", "toolchain"),
        *_columns(_TEXT, "host"),
        *_columns(_TIME, "measured_at"),
        *_columns(_FLOAT, "quantum_us"),
        *_columns(_TEXT, "overhead_us"),
        *_columns(_FLOAT, "flush_us copy_bytes_per_us"),
        *_columns(_TEXT, "flops_per_us"),
        unique=["identity"],
        index=["device_id"],
    )
    _create(
        "schedule_fire",
        *_columns(_TEXT, "schedule"),
        *_columns(_TIME, "instant"),
        *_columns(_TEXT, "state host"),
        _reference("schedule_fire", "run", nullable=True),
        *_columns(_TIME, "fired_at", nullable=True),
        *_columns(_TEXT, "message"),
        *_columns(_TEXT, "process", default="''"),
        *_columns(_COUNT, "attempts", default="1"),
        unique=["schedule instant"],
        words={"state": "'started', 'finished', 'failed', 'missed', 'interrupted'"},
    )
    _create(
        "export",
        *_columns(_TEXT, "path format"),
        _reference("export", "run", nullable=True),
        *_columns(_TEXT, "sha256 task_ids"),
        *_columns(_TIME, "exported_at"),
        index=["path"],
    )


def _decisions() -> None:
    _create(
        "promotion",
        _reference("promotion", "run"),
        *_columns(_TEXT, "path kernel workload outcome reason config"),
        *_columns(_TEXT, "former", nullable=True),
        *_columns(_FLOAT, _RATIO, nullable=True),
        *_columns(_TIME, "decided_at"),
        index=["run_id"],
        words={"outcome": "'promoted', 'same', 'refused'"},
    )
    _create(
        "regression",
        _reference("regression", "task"),
        _reference("regression", "task", "former_task_id"),
        _reference("regression", "run", "found_run_id"),
        *_columns(_TEXT, "state reason"),
        *_columns(_FLOAT, _RATIO, nullable=True),
        *_columns(_TIME, "found_at"),
        *_columns(_TIME, "decided_at notified_at acknowledged_at", nullable=True),
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


def _figures() -> list[_Column]:
    ratio = _columns(_FLOAT, f"median_us {_RATIO}", nullable=True)
    return [*ratio, *_columns(_ARRAY, "samples_us", nullable=True)]


def _columns(
    kind: sa.types.TypeEngine[Any],
    names: str,
    *,
    nullable: bool = False,
    default: str | None = None,
) -> list[_Column]:
    value = None if default is None else sa.text(default)
    return [
        sa.Column(name, kind, nullable=nullable, server_default=value) for name in names.split()
    ]
