"""The lease of a run: one living driver holds it, and another one only after its death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import wait_until

from results_db import RunInfo, Store
from results_db.connections import Database
from results_db.errors import LeaseLostError
from search_spaces.errors import TunerError
from tuner.campaign import lease

_PRINT_IDENTITY = (
    "from tuner.campaign import lease; print(lease.process_identity(), flush=True); input()"
)


#: For what the database computes; the rest does not depend on it.
ON_BOTH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture(scope="module")
def postgres_url(new_postgres: Callable[[], str]) -> str:
    """A database of all tests of this file, each of which has a run of its own."""
    return new_postgres()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'tuner.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


@pytest.fixture
def other_process() -> Iterator[str]:
    """Another living process of this machine."""
    command = [sys.executable, "-c", _PRINT_IDENTITY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.communicate("\n")


def new_run(store: Store, **holder: str) -> RunInfo:
    """A run that this holder has just taken."""
    run = store.begin_run("nightly", "h", 1, {}, {})
    assert store.take_run(run, "theirs", **holder)
    return store.run(run.run_id)


def silent(store: Store, run: RunInfo, age_s: float, process: str | None = None) -> RunInfo:
    """The same run with a last heartbeat that is `age_s` old by the database's clock.

    process: the identity of its driver's process in place of the present one.
    """
    database = Database(store.url, create=False)
    older = {
        True: f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '{-age_s} seconds')",
        False: f"clock_timestamp() - interval '{age_s} seconds'",
    }[database.is_sqlite]
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE run SET heartbeat_at = {older} WHERE id = {run.run_id}")
        if process is not None:
            statement = f"UPDATE run SET process = '{process}' WHERE id = {run.run_id}"
            connection.exec_driver_sql(statement)
    database.close()
    found = store.run(run.run_id)
    assert found.silent_s is not None
    return found


def test_a_living_holder_keeps_the_run(store: Store, other_process: str) -> None:
    for named in (other_process, "", "another-boot 1 2 3"):
        run = silent(store, new_run(store, holder="h:17", process=named), lease.DEAD_AFTER_S / 2)
        with pytest.raises(TunerError, match="is under way at h:17"):
            lease.take(store, run)
        assert store.run(run.run_id).lease == "theirs"
        assert not lease.abandoned(run)


def test_a_process_that_has_ended_holds_nothing(store: Store) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PRINT_IDENTITY], input="\n", capture_output=True, text=True
    )
    run = new_run(store, holder="h:17", process=ended.stdout.strip())
    for seen in (run, silent(store, run, -300)):  # by a clock that is behind as well
        assert lease.abandoned(seen)
    lease.take(store, seen)
    assert store.run(run.run_id).process == lease.process_identity()


def test_another_process_may_get_the_number_of_an_ended_one(
    store: Store, other_process: str
) -> None:
    *same, started = other_process.split()
    run = new_run(store, holder="h:17", process=" ".join([*same, f"{int(started) - 1}"]))
    lease.take(store, run)


def test_a_container_with_the_same_name_and_number_is_another_process(store: Store) -> None:
    boot, space, *mine = lease.process_identity().split()
    container = " ".join([boot, f"{int(space) + 1}", *mine])
    run = new_run(store, holder=lease.holder(), process=container)
    with pytest.raises(TunerError, match="is under way"):
        lease.take(store, run)


def test_a_living_process_of_this_machine_holds_its_run_whatever_clocks_say(
    store: Store, other_process: str
) -> None:
    run = silent(store, new_run(store, holder="h:17", process=other_process), 3 * 24 * 3600)
    assert not lease.abandoned(run)
    with pytest.raises(TunerError, match="is under way at h:17") as raised:
        lease.take(store, run)
    assert "as soon as the process has ended" in raised.value.hint
    os.kill(int(other_process.split()[2]), signal.SIGKILL)
    wait_until(lambda: lease.abandoned(run))
    lease.take(store, run)


@ON_BOTH
def test_silence_frees_a_run_of_another_machine(store: Store) -> None:
    for named in ("", "another-boot 1 2 3"):
        run = silent(store, new_run(store, holder="h:17", process=named), 2 * lease.DEAD_AFTER_S)
        assert lease.abandoned(run)
        lease.take(store, run)
        assert store.run(run.run_id).holder == lease.holder()


@ON_BOTH
def test_one_of_two_drivers_that_found_the_run_free_gets_it(store: Store) -> None:
    run = store.begin_run("nightly", "h", 1, {}, {})
    assert store.take_run(run, "theirs", "elsewhere:17")
    with pytest.raises(TunerError, match="under way at elsewhere:17"):
        lease.take(store, run)


def test_a_driver_of_this_process_that_has_ended_holds_nothing(store: Store) -> None:
    run = store.begin_run("nightly", "h", 1, {}, {})
    held = lease.take(store, run)
    seen = store.run(run.run_id)
    with pytest.raises(TunerError, match="is under way"):
        lease.take(store, seen)
    lease.leave(held)
    lease.take(store, seen)
    with pytest.raises(LeaseLostError):
        held.beat(run.run_id)


@ON_BOTH
def test_a_host_with_a_clock_ahead_takes_no_run(store: Store) -> None:
    """The age is measured by the database's clock, not by the host's."""
    run = new_run(store, holder="elsewhere:17")
    code = """
import sys, time, datetime
ahead = 180.0
true_time = time.time
time.time = lambda: true_time() + ahead
class Ahead(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=ahead)
datetime.datetime = Ahead
from results_db import Store
from search_spaces.errors import TunerError
from tuner.campaign import lease
with Store.open(sys.argv[1]) as store:
    try:
        lease.take(store, store.run(int(sys.argv[2])))
    except TunerError as error:
        print(error.message)
"""
    command = [sys.executable, "-c", code, store.url, f"{run.run_id}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is under way at elsewhere:17" in done.stdout
    assert store.run(run.run_id).lease == "theirs"


_DRIVER = """
import sys
from results_db import Store
from search_spaces.errors import TunerError
from tuner.campaign import lease
with Store.open(sys.argv[1]) as store:
    held = lease.take(store, store.run(int(sys.argv[2])))
    print("holds", flush=True)
    input()
    for write in (
        lambda: held.beat(int(sys.argv[2])),
        lambda: held.finish_run(int(sys.argv[2]), "failed", {}),
    ):
        try:
            write()
        except TunerError as error:
            print(type(error).__name__, error.message, flush=True)
"""


@ON_BOTH
def test_a_frozen_driver_that_wakes_up_changes_nothing(store: Store) -> None:
    run = store.begin_run("nightly", "h", 1, {}, {})
    command = [sys.executable, "-c", _DRIVER, store.url, f"{run.run_id}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "holds\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        seen = store.run(run.run_id)
        with pytest.raises(TunerError, match=f"is under way at .*:{frozen.pid}"):
            lease.take(store, seen)
        # As another machine sees it, which cannot see the process.
        mine = lease.take(store, silent(store, seen, 124, process="another-boot 1 2 3"))
        mine.finish_run(run.run_id, "finished", {"trials": 3})
        before = store.run(run.run_id)
        os.kill(frozen.pid, signal.SIGCONT)
        printed, _ = frozen.communicate("\n")
    assert printed.count("LeaseLostError") == 2
    assert "is finished" in printed
    assert store.run(run.run_id) == replace(before)
