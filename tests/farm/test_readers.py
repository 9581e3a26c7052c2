"""A run continues without its output: after the end of the reader, the disk or the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import yaml
from farms import Farm
from processes import wait_until

from results_db import Store
from results_db.shipped import select_shipped

_TRIALS = 40
#: Shell redirections to streams that accept nothing.
_OUTLETS = {
    "a pipe without a reader": 'exec "$@" 2>&1',
    "a full disk": 'exec "$@" >/dev/full 2>&1',
    "closed": 'exec "$@" >&- 2>&-',
}


def without_reader(farm: Farm, *command: str, shell: str = 'exec "$@"') -> subprocess.Popen[str]:
    """The command with both streams in a pipe whose reading end is closed from the start."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        return subprocess.Popen(
            ["sh", "-c", shell, "sh", *command],
            cwd=farm.folder,
            env=farm.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            # Under nohup, children would ignore hang-ups, too.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )


@pytest.mark.slow
def test_a_run_whose_output_fails_finishes(tmp_path):
    farms = {name: Farm(tmp_path / name[:6], trials=_TRIALS, faults={}) for name in _OUTLETS}
    drivers = {
        name: without_reader(farm, *farm.command, shell=_OUTLETS[name])
        for name, farm in farms.items()
    }
    codes = {name: driver.wait(timeout=300) for name, driver in drivers.items()}
    assert codes == dict.fromkeys(_OUTLETS, 0)
    for farm in farms.values():
        (run,) = farm.runs()
        assert (run.status, len(farm.records())) == ("finished", _TRIALS)
        farm.assert_gone()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_hang_up_drains_as_ctrl_c_does(tmp_path, number):
    """As from a terminal that closes: two signals to every process, and no reader."""
    # The run must outlast the signal, also on a busy machine.
    farm = Farm(tmp_path / "farm", faults={}, time_scale=2.0)
    driver = without_reader(farm, *farm.command)
    wait_until(lambda: farm.count() >= 5)
    os.killpg(driver.pid, number)
    if number == signal.SIGHUP:
        os.killpg(driver.pid, number)
    assert driver.wait(timeout=120) == 130
    (run,) = farm.runs()
    assert (run.status, run.holder) == ("interrupted", "")
    assert "stopped at once" not in f"{run.environment}"
    assert len(farm.records()) < farm.trials
    farm.assert_gone()


def test_nohup_ignores_a_hang_up(tmp_path):
    code = (
        "import signal\nfrom tuner.cli.stop_signals import interruptible\n"
        "class Control:\n    def drain(self): raise SystemExit('drained')\n    kill = drain\n"
        "with interruptible(Control()):\n    signal.raise_signal(signal.SIGHUP)\nprint('lasted')\n"
    )
    done = subprocess.run(
        ["nohup", sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"lasted\n"), done.stderr


@pytest.mark.slow
def test_a_service_whose_output_fails_keeps_serving(tmp_path):
    farm = Farm(tmp_path / "farm")
    settings = yaml.safe_load((farm.folder / "config.yaml").read_text())
    settings["campaigns"]["c"]["schedule"] = {"cron": "* * * * *", "grace": "1h"}
    (farm.folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (farm.folder / "space.json").unlink()  # so that the campaign fails at once
    service = without_reader(farm, sys.executable, "-m", "tuner", "schedule", "serve")

    def fired() -> bool:
        assert service.poll() is None
        if not farm.database.exists():
            return False
        with Store.open(f"sqlite:///{farm.database}") as store:
            fire = store.last_fire("c")
        return fire is not None and fire.state == "failed"

    wait_until(fired)
    service.terminate()
    assert service.wait(timeout=60) == 0


@pytest.mark.slow
def test_progress_ends_with_the_confirmed_time(tmp_path):
    farm = Farm(tmp_path / "farm", trials=_TRIALS, faults={})
    printed = farm.finish()
    selection = farm.task().selection
    assert selection is not None
    assert selection.median_us is not None
    (done,) = [line for line in printed.splitlines() if line.startswith("done: ")]
    ships = select_shipped(selection)
    assert f"confirmed {ships.median_us:.2f} us" in done
    assert " ".join(done.split()).endswith(f"{ships.log_ratio.ratio:.2f}x the default")


@pytest.mark.slow
def test_a_run_outlives_the_terminal_that_shows_it(tmp_path):
    """As after `disown`: there is no signal, but every write to the terminal fails."""
    farm = Farm(tmp_path / "farm", trials=_TRIALS, faults={})
    ours, theirs = os.openpty()
    driver = subprocess.Popen(
        farm.command,
        cwd=farm.folder,
        env={**farm.environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"trials/s" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert driver.wait(timeout=120) == 0
    (run,) = farm.runs()
    assert (run.status, len(farm.records())) == ("finished", _TRIALS)
    farm.assert_gone()
