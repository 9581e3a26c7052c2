"""Killed writers, full disks, locks, and files that are no results database."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_data import KEY, fill, new_task, trial
from sqlalchemy import event
from sqlalchemy.engine import Engine

from results_db import Store, StoreError
from results_db.connections import Database

HERE = Path(__file__).parent
_WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from sample_data import KEY, new_task, trial
from results_db import Store
print("opening", flush=True)
with Store.open(sys.argv[1]) as store:
    run = store.unfinished_run("nightly", "spec1")
    task = new_task(store) if run is None else store.ensure_task(
        run.run_id, KEY, flops=1, bytes=1, tolerance=None)
    start = len(store.trials(task.task_id))
    for number in range(start, start + 10_000):
        samples = tuple(float(index) for index in range(number % 50 + 1))
        assert store.record_trial(task.task_id, trial(number, samples_us=samples))
        print(number, flush=True)
"""


def open_error(url: str, *, create: bool = True) -> StoreError:
    with pytest.raises(StoreError) as caught:
        Store.open(url, create=create)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


# -- killed at any moment ------------------------------------------------------------------------
def test_a_killed_writer_loses_nothing_it_acknowledged(sqlite_url: str) -> None:
    moments = random.Random(5)
    acknowledged: list[int] = []
    for expected in (0, 0, *(moments.randrange(1, 120) for _ in range(4))):
        acknowledged += _write_and_kill(sqlite_url, expected, moments.random() * 0.15)
        with Store.open(sqlite_url) as store:
            assert store.check() == []
            run = store.last_run()
            tasks = [] if run is None else store.tasks(run.run_id)
            stored = [record for task in tasks for record in store.trials(task.task_id)]
            numbers = [record.number for record in stored]
            assert numbers == list(range(len(numbers)))
            assert set(acknowledged) <= set(numbers)
            assert all(len(record.samples_us) == record.number % 50 + 1 for record in stored)
            assert len(store.runs()) <= 1
    assert len(acknowledged) > 4


def _write_and_kill(url: str, expected: int, pause_s: float) -> list[int]:
    """Kill a writer some time after it began (expected 0) or after that many trials."""
    command = [sys.executable, "-c", _WRITER, url, f"{HERE}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(expected + 1)]
        if expected == 0:
            time.sleep(pause_s)
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
    assert writer.returncode == -signal.SIGKILL
    return [int(line) for line in lines if line.strip().isdigit() and line.endswith("\n")]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_processes_may_create_a_database_at_the_same_time(
    request: pytest.FixtureRequest, sqlite_url: str, kind: str
) -> None:
    url = sqlite_url if kind == "sqlite" else request.getfixturevalue("new_postgres")()
    code = "import sys; from results_db import Store; Store.open(sys.argv[1]).close()"
    openers = [subprocess.Popen([sys.executable, "-c", code, url]) for _ in range(3)]
    assert [opener.wait() for opener in openers] == [0, 0, 0]
    with Store.open(url, create=False) as store:
        assert store.check() == []


# -- the disk ------------------------------------------------------------------------------------
def test_a_full_database_keeps_its_content(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        task = new_task(store)
        assert store.record_trial(task.task_id, trial(0))
        with store._database.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        kept = _fill_up(store, task.task_id)
        with store._database.read() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        _check_resumes(store, task.task_id, kept)


def test_a_full_disk_keeps_its_content(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with _small_disk(disk), Store.open(f"sqlite:///{disk / 'tuner.db'}") as store:
        task = new_task(store)
        ballast = disk / "ballast"
        free = shutil.disk_usage(disk).free
        ballast.write_bytes(bytes(max(0, free - 40_000)))
        kept = _fill_up(store, task.task_id)
        ballast.unlink()
        _check_resumes(store, task.task_id, kept)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", f"{folder}"]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", f"{folder}"], check=True)


def _fill_up(store: Store, task_id: int) -> int:
    """Record until the disk is full; returns how many trials were acknowledged."""
    kept = len(store.trials(task_id))
    with pytest.raises(StoreError, match="disk is full") as caught:  # noqa: PT012
        while kept < 1000:
            samples = tuple(number + 0.1 for number in range(500))
            store.record_trial(task_id, trial(kept, samples_us=samples))
            kept += 1
    assert "free some space" in caught.value.hint
    return kept


def _check_resumes(store: Store, task_id: int, kept: int) -> None:
    assert [record.number for record in store.trials(task_id)] == list(range(kept))
    assert store.check() == []
    assert store.record_trial(task_id, trial(kept))
    assert len(store.trials(task_id)) == kept + 1


# -- how SQLite is set up ------------------------------------------------------------------------
def test_sqlite_is_set_up_on_every_connection(sqlite_url: str) -> None:
    Store.open(sqlite_url).close()
    database = Database(sqlite_url, create=False)
    expected = {
        "foreign_keys": 1,
        "journal_mode": "wal",
        "synchronous": 1,
        "busy_timeout": 30_000,
    }
    with database.read() as first, database.read() as second, database.read() as third:
        for connection in (first, second, third):
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in expected
            }
            assert found == expected
    database.close()


def test_what_was_measured_is_found_without_reading_copies(sqlite_url: str) -> None:
    """Nights that take results over leave millions of copies of each."""
    asked: list[tuple[str, Any]] = []

    @event.listens_for(Engine, "before_cursor_execute")
    def see(connection, cursor, statement, parameters, context, many):  # type: ignore[no-untyped-def]
        asked.append((statement, parameters))

    try:
        with Store.open(sqlite_url) as store:
            asked.clear()
            store.known_trials(KEY)
            store.timed_trials(KEY)
    finally:
        event.remove(Engine, "before_cursor_execute", see)
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        plans = [
            [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", given)]
            for statement, given in asked
            if statement.startswith("SELECT")
        ]
    assert len(plans) == 2
    for plan in plans:
        of_trials = [line for line in plan if line.startswith(("SEARCH trial", "SCAN trial"))]
        assert {line.partition(" (")[0] for line in of_trials} == {
            "SEARCH trial USING INTEGER PRIMARY KEY", "SEARCH trial USING INDEX ix_trial_measured"
        }  # fmt: skip


def test_a_write_waits_for_another_process_and_reads_do_not(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        task = new_task(store)
        other = sqlite3.connect(
            sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE task SET note = 'theirs'")
        writes: list[bool] = []
        writer = threading.Thread(
            target=lambda: writes.append(store.record_trial(task.task_id, trial(0)))
        )
        writer.start()
        assert store.tasks(task.run_id) == [task]
        assert writes == []
        other.execute("COMMIT")
        other.close()
        writer.join()
        assert writes == [True]
        assert store.tasks(task.run_id)[0].note == "theirs"


def test_a_store_in_memory_forgets(tmp_path: Path) -> None:
    for _ in range(2):
        with Store.open("sqlite://") as store:
            task = new_task(store)
            assert store.record_trial(task.task_id, trial(0))
            assert store.stats()["file_bytes"] > 0
            assert store.check() == []


# -- what cannot be opened -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "content",
    [b"version: 1\ncampaigns: {}\n", bytes(range(256)) * 64, b"SQLite format 3\0" + b"\xff" * 4096],
    ids=["text", "bytes", "bad header"],
)
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tuner.db"
    path.write_bytes(content)
    for create in (True, False):
        error = open_error(f"sqlite:///{path}", create=create)
        assert f"{path}" in error.message
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["tuner.db"]


def test_an_empty_file_becomes_a_database_only_with_create(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    path.touch()
    assert "empty" in open_error(f"sqlite:///{path}", create=False).message
    with Store.open(f"sqlite:///{path}") as store:
        new_task(store)


def test_a_missing_database_is_not_made_by_looking(tmp_path: Path) -> None:
    error = open_error(f"sqlite:///{tmp_path}/none/tuner.db", create=False)
    assert "no database" in error.message
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "music.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE album (id)")
    content = path.read_bytes()
    assert "album" in open_error(f"sqlite:///{path}").message
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == [path.name]


def test_a_damaged_database_is_found_out(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        task = new_task(store)
        for number in range(40):
            store.record_trial(task.task_id, trial(number))
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    for page in range(10, len(content) // 4096):
        content[page * 4096 : page * 4096 + 2000] = os.urandom(2000)
    path.write_bytes(content)
    assert _problems(sqlite_url)


def _problems(url: str) -> list[str]:
    try:
        with Store.open(url) as store:
            return store.check()
    except StoreError as error:
        return [error.message]


def test_damaged_samples_and_broken_references_are_named(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        task = new_task(store)
        for number in range(2):
            store.record_trial(task.task_id, trial(number))
        path = sqlite_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE measurement SET samples_us = x'6601' WHERE trial_id = 1")
            (problem,) = store.check()
            assert "measurement 1" in problem
            with pytest.raises(StoreError, match="damaged"):
                store.trials(task.task_id)
            connection.execute("DELETE FROM trial WHERE id = 2")
        (problem,) = store.check()
        assert "measurement row 2" in problem


#: Damages that no reader can read, each of one column: of JSON, instants, words, digests, samples,
#: configs, dims, toolchain and device.
DAMAGES = (
    "trial.config = '{'", "trial.config = '[1]'", "trial.config_hash = id",
    "trial.finished_at = 'noon'", "trial.registers = 'many'", "trial.status = 'fine'",
    "trial.source = 'found'", "trial.message = x'00ff'",
    "measurement.samples_us = x'6601'", "measurement.samples_us = 'text'",
    "measurement.incumbent_samples_us = x'00'", "measurement.clocks = 'fast'",
    "measurement.median_us = 'fast'", "baseline.samples_us = x'00'", "baseline.status = 'fine'",
    "finalist.stage = 'run'", "finalist.config = 'null'", "finalist.samples_us = x'6401'",
    "selection.winner = ''", "selection.tie_set = '{}'", "selection.verdict = 'good'",
    "selection.runner_up = '3'", "selection.default_config = 'x'", "selection.clocks = '[]'",
    "selection.confirmed_at = '2026'", "task.stage = 'lunch'", "task.place = '7'",
    "task.place = '{\"name\": 1}'", "task.reuse_key = x'66'", "task.flops = 'all'",
    "run.status = 'fine'", "run.started_at = '?'", "run.environment = '[]'", "run.spec = '{,}'",
    "run.summary = 'x'", "run.heartbeat_at = 'x'", "workload.dims = '{}'", "workload.dims = '[]'",
    "workload.identity = 'f'", "device.identity = 'f'", "device.name = 'other'",
    "device.sm_count = 'x'", "device.fingerprint = 'f'", "toolchain.key = 'f'",
    "toolchain.torch = '9'", "kernel.kernel_hashes = '{}'", "calibration.overhead_us = '[]'",
    "calibration.flops_per_us = 'x'", "calibration.measured_at = 'x'", "timeline.spans = '['",
    "schedule_fire.state = 'lit'", "schedule_fire.instant = 'x'", "export.task_ids = '{}'",
    "promotion.config = 'x'", "promotion.outcome = 'x'", "promotion.former = '[]'",
    "regression.state = 'x'", "regression.found_at = 'x'", "quarantine.since = 'x'",
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_no_reader_can_read_is_found_and_named(tmp_path: Path, damage: str) -> None:
    column, _, value = damage.partition(" = ")
    table, _, name = column.partition(".")
    path = tmp_path / "t.db"
    with Store.open(f"sqlite:///{path}") as store:
        fill(store)
        assert store.check() == []
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute(f"UPDATE {table} SET {name} = {value}")
        problems = store.check()
    assert any(table in problem for problem in problems)


@pytest.mark.parametrize("revision", ["9999", "0000"])
def test_another_schema_is_refused_with_the_way_out(sqlite_url: str, revision: str) -> None:
    Store.open(sqlite_url).close()
    path = sqlite_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    error = open_error(sqlite_url)
    newer = revision == "9999"
    assert ("newer" if newer else "older") in error.message
    assert ("install" if newer else "tuner db upgrade") in error.hint


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert "folder" in open_error(f"sqlite:///{tmp_path}").message


@pytest.mark.parametrize("path", ["/proc/tuner/tuner.db", "/dev/null/tuner.db"])
def test_an_unwritable_place_is_refused(path: str) -> None:
    assert path in open_error(f"sqlite:///{path}").message


def test_permissions(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        url = f"sqlite:///{folder / 'tuner.db'}"
        with Store.open(url) as store:
            task = new_task(store)
            store.record_trial(task.task_id, trial(0))
        (folder / "tuner.db").chmod(0o444)
        folder.chmod(0o555)
        with _unprivileged():
            _read_only(url, task.task_id)
            open_error(f"sqlite:///{folder / 'new.db'}")
            open_error(f"sqlite:///{folder / 'new' / 'tuner.db'}")
        (folder / "tuner.db").chmod(0)
        with _unprivileged():
            open_error(url)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def _read_only(url: str, task_id: int) -> None:
    """What is finished can be read where nothing can be written, and takes no record."""
    with Store.open(url, create=False) as store:
        assert len(store.trials(task_id)) == 1
        assert store.check() == []
    with pytest.raises(StoreError) as caught, Store.open(url) as store:
        store.record_trial(task_id, trial(1))
    assert "writable" in caught.value.hint


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """Drop root's privileges, since root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# -- what cannot be reached ----------------------------------------------------------------------
@pytest.mark.parametrize("url", ["mysql://h/d", "not a url", "", "sqlite", "duckdb:///x.db"])
def test_an_url_of_another_kind_is_refused(url: str) -> None:
    assert "sqlite:///" in open_error(url).hint


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_a_server_that_does_not_answer(scheme: str) -> None:
    error = open_error(f"{scheme}://farm:secret@127.0.0.1:1/tuner")
    assert "127.0.0.1" in error.message
    assert "secret" not in error.message + error.hint


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = open_error("postgresql://farm@127.0.0.1/tuner")
    assert "psycopg" in error.message
    assert "kernel-tuning-farm[postgres]" in error.hint


@pytest.mark.postgres
def test_a_database_or_user_the_server_does_not_know(postgres_server: str) -> None:
    assert "createdb" in open_error(f"{postgres_server}/missing").hint
    stranger = postgres_server.replace("tuner@", "stranger@")
    error = open_error(f"{stranger}/postgres")
    assert "stranger" in error.message
    assert "user" in error.hint


def test_a_password_is_never_shown(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        assert store.url == sqlite_url
    with pytest.raises(StoreError) as caught:
        Store.open("postgresql://farm:s3cret@127.0.0.1:1/tuner")
    assert "s3cret" not in f"{caught.value!r}"


def test_the_key_of_a_task_needs_values_json_can_hold(sqlite_url: str) -> None:
    from dataclasses import replace

    from search_spaces.records import Workload

    with Store.open(sqlite_url) as store:
        run = store.begin_run("nightly", "h", 1, {}, {})
        key = replace(KEY, workload=Workload.of(M=float("nan")))
        with pytest.raises(StoreError):
            store.ensure_task(run.run_id, key, flops=1, bytes=1, tolerance=None)
        with pytest.raises(StoreError):
            store.begin_run("nightly", "h", 1, {"when": object()}, {})
        assert store.stats()["rows"]["task"] == 0
