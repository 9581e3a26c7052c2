"""Schema revisions: tables, migrations and frozen databases agree, and an upgrade loses nothing."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sample_data import (
    BASELINES,
    CALIBRATION,
    DEVICE,
    FINALS,
    KEY,
    NOON,
    PROMOTIONS,
    SELECTION,
    STEP,
    TIMELINE,
    TRIALS,
    fill,
    trial,
)

from results_db import Store, StoreError
from results_db.connections import Database
from results_db.migrate import (
    SCRIPTS,
    UPGRADES_OLDER,
    alembic_config,
    current,
    head,
    upgrade,
)

ASSETS = Path(__file__).parent / "assets"
FROZEN = sorted(ASSETS.glob("*.db"))
_NEXT = f"{int(head()) + 1:04}"
_EXTRA = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "auto"
    with op.batch_alter_table("trial", recreate=recreate) as batch:
        batch.add_column(sa.Column("extra", sa.Integer()))
    {then}
"""


@pytest.fixture
def next_scripts(tmp_path: Path) -> Callable[[str], Path]:
    """The migrations as they might be one revision later."""

    def make(then: str) -> Path:
        folder = tmp_path / "migrations"
        shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = _EXTRA.format(revision=_NEXT, before=head(), then=then)
        (folder / "versions" / f"{_NEXT}_extra.py").write_text(text)
        return folder

    return make


def test_revisions_are_one_line_of_numbers() -> None:
    scripts = ScriptDirectory(f"{SCRIPTS}")
    revisions = [script.revision for script in scripts.walk_revisions()][::-1]
    first = int(revisions[0])
    assert revisions == [f"{number:04}" for number in range(first, first + len(revisions))]
    assert scripts.get_heads() == [head()]
    assert [path.stem for path in FROZEN] == revisions


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_is_upgraded_and_read(frozen: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    shutil.copy(frozen, path)
    url = f"sqlite:///{path}"
    assert current(url) == frozen.stem
    assert upgrade(url) == (frozen.stem, head())
    with Store.open(url, create=False) as store:
        assert store.check() == []
        (run,) = store.runs()
        (task,) = store.tasks(run.run_id)
        assert (run.campaign, run.status, run.summary) == ("nightly", "finished", {"trials": 3})
        assert task.key == KEY
        assert task.stage == "done"
        assert store.trials(task.task_id) == list(TRIALS)
        assert task.finals == FINALS
        calibrations = store.calibrations(DEVICE.fingerprint)
        assert [each.calibration for each in calibrations] == [CALIBRATION]
        assert (task.selection, task.baselines) == (SELECTION, BASELINES)
        (summary,) = store.overview(run.run_id)
        assert (summary.trials, summary.correct) == (3, 2)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT best_us FROM task").fetchone() == (70.1,)
        assert store.timeline(run.run_id) == TIMELINE
        assert store.tags() == {"baseline": run.run_id}
        assert [fire.instant for fire in store.fires()] == [NOON]
        assert [export.task_ids for export in store.exports()] == [(task.task_id,)]
        promotions = [replace(each, decided_at=None) for each in store.promotions(run.run_id)]
        steps = [(each.task_id, each.log_ratio) for each in store.regressions()]
        assert steps == [(task.task_id, STEP)]
        assert promotions == list(PROMOTIONS[::-1])


def test_tables_and_migrations_agree(sqlite_url: str) -> None:
    _compare(sqlite_url)


@pytest.mark.postgres
def test_tables_and_migrations_agree_on_postgres(new_postgres: Callable[[], str]) -> None:
    _compare(new_postgres())


def _compare(url: str) -> None:
    upgrade(url)
    database = Database(url, create=False)
    with database.read() as connection:
        command.check(alembic_config(connection))
    database.close()


def test_a_new_database_equals_a_migrated_one(tmp_path: Path) -> None:
    """A new one is made without migrations. `alembic check` compares no CHECK and no names."""
    upgrade(f"sqlite:///{tmp_path}/migrated.db")
    with Store.open(f"sqlite:///{tmp_path}/new.db"):
        pass
    new, migrated = tmp_path / "new.db", tmp_path / "migrated.db"
    assert _schema(new) == _schema(migrated)
    assert _rows(new) == _rows(migrated) == [f"INSERT INTO \"alembic_version\" VALUES('{head()}');"]


def _rows(path: Path) -> list[str]:
    """The rows of a database, as SQL."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [line for line in connection.iterdump() if line.startswith("INSERT")]


def _schema(path: Path) -> dict[str, list[str]]:
    query = (
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'"
    )
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # A table that was rebuilt has its name in quotes, an added column has no line of its own.
        return {
            name: sorted(
                re.sub(r"\s+", " ", part).strip().replace('TABLE "', "TABLE ").replace('" (', " (")
                for part in re.split(r",(?![^()]*\))|(?<=\()\n|\n(?=\))", sql)
            )
            for name, sql in connection.execute(query)
        }


def test_an_upgrade_keeps_rows_and_makes_a_backup(
    sqlite_url: str, next_scripts: Callable[[str], Path]
) -> None:
    with Store.open(sqlite_url) as store:
        fill(store)
        before = store.trials_frame()
    scripts = next_scripts("pass")
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    older = path.with_name(f"tuner.db.{head()}.bak")
    older.write_text("an earlier backup")
    assert upgrade(sqlite_url, scripts=scripts) == (head(), _NEXT)
    assert older.read_text() == "an earlier backup"
    with pytest.raises(StoreError, match="newer"):
        Store.open(sqlite_url)
    with pytest.raises(StoreError, match="newer"):
        upgrade(sqlite_url)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(extra), count(*) FROM trial").fetchone() == (0, 3)
        assert connection.execute("SELECT count(*) FROM measurement").fetchone() == (2,)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    copied = path.with_name(f"tuner.db.{head()}.1.bak")
    with Store.open(f"sqlite:///{copied}", create=False) as backup:
        assert backup.check() == []
        assert backup.trials_frame().equals(before)
    assert upgrade(sqlite_url, scripts=scripts) == (_NEXT, _NEXT)
    assert len(list(path.parent.glob("*.bak"))) == 2


@pytest.mark.parametrize(
    "then", ['op.execute("SELECT * FROM nowhere")', 'op.execute("DELETE FROM trial")']
)
def test_an_upgrade_that_fails_changes_nothing(
    sqlite_url: str, next_scripts: Callable[[str], Path], then: str
) -> None:
    with Store.open(sqlite_url) as store:
        fill(store)
    with pytest.raises(StoreError):
        upgrade(sqlite_url, scripts=next_scripts(then))
    with Store.open(sqlite_url, create=False) as store:
        assert store.stats()["rows"]["trial"] == len(TRIALS)
        assert store.check() == []


def test_a_backup_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, next_scripts: Callable[[str], Path]
) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with Store.open(url) as store:
        fill(store)
        task = store.tasks(1)[0]
        for number in range(100, 200):
            samples = tuple(sample + 0.1 for sample in range(500))
            store.record_trial(task.task_id, trial(number, samples_us=samples))
    # The copy is larger than any file may become, as on a disk that is full.
    code = (
        "import resource, signal, sys, pathlib\n"
        "from results_db.migrate import upgrade\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "upgrade(sys.argv[1], scripts=pathlib.Path(sys.argv[2]))\n"
    )
    scripts = next_scripts("pass")
    done = subprocess.run(
        [sys.executable, "-c", code, url, f"{scripts}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "StoreError" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["migrations", "tuner.db"]
    with Store.open(url, create=False) as store:
        assert store.check() == []


@pytest.mark.postgres
def test_an_upgrade_on_postgres(
    new_postgres: Callable[[], str], next_scripts: Callable[[str], Path]
) -> None:
    url = new_postgres()
    assert upgrade(url) == ("", head())
    with Store.open(url) as store:
        fill(store)
    assert upgrade(url, scripts=next_scripts("pass")) == (head(), _NEXT)
    assert current(url) == _NEXT
    with pytest.raises(StoreError, match="newer"):
        Store.open(url)


def test_upgrade_makes_a_new_database(sqlite_url: str) -> None:
    with pytest.raises(StoreError, match="no database"):
        current(sqlite_url)
    assert upgrade(sqlite_url) == ("", head())
    assert current(sqlite_url) == head()


def test_a_revision_from_before_the_first_is_refused_with_its_remedy(sqlite_url: str) -> None:
    Store.open(sqlite_url).close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0012'")
    for use in (Store.open, upgrade):
        with pytest.raises(StoreError, match=f"{path}: the schema 0012 is older") as caught:
            use(sqlite_url)
        assert UPGRADES_OLDER in caught.value.hint
    assert list(path.parent.glob("*.bak")) == []


@pytest.mark.parametrize("rows", [[], ["0001", "0002"]])
def test_a_revision_that_is_not_one_is_named(sqlite_url: str, rows: list[str]) -> None:
    Store.open(sqlite_url).close()
    path = sqlite_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM alembic_version")
        connection.executemany("INSERT INTO alembic_version VALUES (?)", [(row,) for row in rows])
    for use in (Store.open, upgrade, current):
        with pytest.raises(StoreError, match="revisions instead of one"):
            use(sqlite_url)
