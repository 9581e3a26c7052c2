"""A run continues without its output: after the end of the reader, the disk or the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import yaml
from farms import Farm
from processes import LIMIT_S, wait_until

from results_db import Store

_TRIALS = 40


def assert_finished(farm: Farm) -> None:
    (run,) = farm.runs()
    assert (run.status, len(farm.records())) == ("finished", _TRIALS)
    farm.assert_gone()


@pytest.mark.slow
@pytest.mark.parametrize(
    "outlet",
    [
        pytest.param('exec "$@" >&- 2>&-', id="closed"),
        pytest.param('exec "$@"', id="a pipe without a reader", marks=pytest.mark.full),
        pytest.param('exec "$@" >/dev/full 2>&1', id="a full disk", marks=pytest.mark.full),
    ],
)
def test_a_run_whose_output_fails_finishes(tmp_path, outlet):
    farm = Farm(tmp_path / "farm", trials=_TRIALS, faults={})
    with farm.driver(shell=outlet) as driver:
        farm.ended(driver)
    assert_finished(farm)


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

    def fired() -> bool:
        assert service.poll() is None
        if not farm.database.exists():
            return False
        with Store.open(f"sqlite:///{farm.database}") as store:
            fire = store.last_fire("c")
        return fire is not None and fire.state == "failed"

    with farm.driver(shell='exec "$@"', arguments=("schedule", "serve")) as service:
        wait_until(fired)
        service.send_signal(signal.SIGTERM)
        farm.ended(service)


@pytest.mark.full
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
    assert driver.wait(timeout=LIMIT_S) == 0
    assert_finished(farm)
