"""Early ends of a run: by signals, by another driver, by a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from farms import SLOW, Farm, assert_sound, outcomes, worker_processes
from processes import asleep, wait_until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "pool"),
    [
        (signal.SIGHUP, "local"),
        pytest.param(signal.SIGTERM, "local", marks=pytest.mark.full),
        pytest.param(signal.SIGINT, "ray", marks=[pytest.mark.full, pytest.mark.ray]),
    ],
)
def test_a_signal_drains_and_the_same_command_resumes(tmp_path, undisturbed, number, pool):
    """As from a terminal: the signal goes to every process of the foreground group.

    A terminal that closes sends two hang-ups, and nothing reads the output any more.
    """
    farm = Farm(tmp_path / "farm", "random", pool=pool, time_scale=SLOW)
    reader = {"shell": 'exec "$@"'} if number == signal.SIGHUP else {"stderr": farm.folder / "log"}
    with farm.driver(**reader) as driver:
        wait_until(lambda: farm.count() >= 5)
        os.killpg(driver.pid, number)
        if number == signal.SIGHUP:
            os.killpg(driver.pid, number)
        farm.ended(driver, 130)
    if number != signal.SIGHUP:
        printed = (farm.folder / "log").read_text()
        assert "once more to stop at once" in printed
        assert "rerun the same command to resume" in printed
    (run,) = farm.runs()
    assert (run.status, run.holder) == ("interrupted", "")
    assert "stopped at once" not in f"{run.environment}"
    drained = farm.records()
    assert len(drained) < farm.trials
    farm.assert_gone()
    farm.configure(pool="local")  # the kind of pool is no part of a run
    farm.finish_quickly()
    assert_sound(farm)
    final = farm.records()
    assert outcomes(final) == undisturbed("random")
    assert all(record in final for record in drained)


@pytest.mark.full
@pytest.mark.slow
def test_a_second_ctrl_c_kills_what_is_in_flight(tmp_path):
    farm = Farm(tmp_path / "farm", "random", faults={"hang": 1.0}, measure_timeout=600.0)

    def hangs() -> bool:
        """Whether failed builds are recorded and a measurement hangs."""
        workers = worker_processes(driver.pid) if farm.count() else []
        return any(asleep(each.child) for each in workers if each.name.startswith("simulated"))

    log = farm.folder / "log"
    with farm.driver(stderr=log) as driver:
        wait_until(hangs)
        os.killpg(driver.pid, signal.SIGINT)
        wait_until(lambda: "finishing the jobs in flight" in log.read_text())
        assert driver.poll() is None
        os.killpg(driver.pid, signal.SIGINT)
        farm.ended(driver, 130)
    assert "stopping" in log.read_text()
    (run,) = farm.runs()
    assert (run.status, run.holder) == ("interrupted", "")
    farm.assert_gone()


@pytest.mark.full
@pytest.mark.slow
def test_of_two_drivers_at_once_one_runs_and_the_other_names_it(tmp_path, undisturbed):
    farm = Farm(tmp_path / "farm", "random", time_scale=1.0)
    with farm.driver() as one, farm.driver() as other:
        wait_until(lambda: other.poll() is not None or one.poll() is not None)
        first, last = (one, other) if one.poll() is not None else (other, one)
        refused = farm.ended(first, 2)
        (run,) = farm.runs()
        assert run.holder.endswith(f":{last.pid}")
        error, hint = refused.splitlines()[-2:]
        assert error == f"error: run {run.run_id} of 'c' is under way at {run.holder}"
        assert hint.startswith("hint: wait for it, or end that process")
        with farm.driver() as late:
            assert error in farm.ended(late, 2)
        farm.ended(last)
    assert_sound(farm)
    assert outcomes(farm.records()) == undisturbed("random")
    farm.assert_gone()


#: Runs the farm twice on a small private disk, which is full at first.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=16m tmpfs db || exit 99
head -c 15800k /dev/zero > db/ballast
"$@"
echo "ended with $?"
cp db/tuner.db* seen/
rm db/ballast
"$@" || exit 1
cp db/tuner.db* kept/
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_line_and_loses_nothing(tmp_path, undisturbed):
    alone = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    # So many trials that the disk is full before the last one.
    farm = Farm(tmp_path / "farm", "random", trials=180)
    for name in ("db", "seen", "kept"):
        (farm.folder / name).mkdir()
    done = subprocess.run(
        [*alone, "sh", "-c", ON_A_SMALL_DISK, "sh", *farm.command],
        cwd=farm.folder,
        env=farm.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ended with 2" in done.stdout
    assert done.stderr.count("error: ") == 1
    at = done.stderr.index("error: ")
    error, hint = done.stderr[at:].splitlines()[:2]
    assert error == f"error: {farm.database}: database or disk is full"
    assert hint.startswith("hint: free some space, then rerun to resume")
    assert "Traceback" not in done.stderr
    farm.assert_gone()
    stored = []
    for name in ("seen", "kept"):
        shutil.rmtree(farm.folder / "db")
        shutil.copytree(farm.folder / name, farm.folder / "db")
        stored.append(farm.records())
    seen, kept = stored
    assert 0 < len(seen) < farm.trials
    assert all(record in kept for record in seen)
    assert_sound(farm)
    assert outcomes(kept) == undisturbed("random", farm.trials)
