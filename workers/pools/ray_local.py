"""A private Ray for one run: on the loopback address, with a random token and a private folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.errors import FindingError, TunerError
from workers.environment import set_variables
from workers.processes.child_process import exit_name

# Ray would print these lines to the driver's stdout, which is for data. It reads the setting when
# it is imported. The pool itself reports dead workers and nodes, and many runners on one machine
# are intended.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "A worker died or was killed|worker processes have been started"
    "|Raylet is terminated|has been marked dead",
)

import ray as ray
from ray import _raylet
from ray._private import ray_constants

LOOPBACK = "127.0.0.1"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
#: Enough for artifacts, which are small and leave the store after use.
_STORE_BYTES = 256 * 2**20
_LEAVING_S = 5.0
#: Processes without which a Ray of one node cannot work.
_REQUIRED = ("raylet", "gcs_server")
#: Bytes of the folder's path. With what Ray appends, a socket's path must fit into 107 bytes.
_MAX_FOLDER_BYTES = 40
#: Turns Ray's metrics off: nothing is collected, and port -1 cannot be opened.
_NO_METRICS = {
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
_NICENESS = "RAY_worker_niceness"
#: Waits for the driver's end and removes its Ray's folder, unless the driver reports that it did.
#: Ray's agents may take a minute to end, and write there until then.
_SWEEP = """
import os, shutil, sys, time
gone = 30 if sys.stdin.buffer.read() else 0
for _ in range(1200):
    if gone >= 30:
        break
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    gone = 0 if os.path.exists(sys.argv[1]) else gone + 1
    time.sleep(0.1)
"""
#: The value "0" keeps Ray on the loopback address, as on Windows.
_NETWORK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running local Ray that only this run can use."""

    #: A folder of mode 0700 with all files of this Ray.
    folder: Path
    #: The process that removes the folder if the driver is killed.
    sweeper: subprocess.Popen[bytes]

    @classmethod
    def start(cls, cpus: int) -> LocalRay:
        """Start a Ray with `cpus` logical processors.

        The token is in the environment of its processes only, which only their user can read.
        Raises `TunerError` if Ray does not start or is not private.
        """
        folder = _private_folder()
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's default is a low priority, which would disturb the times.
            _NICENESS: os.environ.get(_NICENESS, "0"),
            # Its processes find these packages, installed or not.
            "PYTHONPATH": python_path(),
            _NETWORK_SWITCH: "0",
            **_NO_METRICS,
        }
        started = cls(folder, _sweeper(folder))
        try:
            with quiet(), sigterm_kept(), set_variables(**variables), _on_loopback():
                _read_credentials()
                _init(cpus, folder)
            _check_loopback()
        except BaseException as error:
            # After a failed start Ray leaves the processes that it had started.
            _kill_all_with(variables["RAY_AUTH_TOKEN"])
            started.stop()
            if isinstance(error, TunerError) or not isinstance(error, Exception):
                raise
            # Ray raises a plain Exception if it does not start within 30 s on a busy machine.
            raise TunerError(
                f"a local Ray did not start: {error}",
                "try again when the machine is less busy, or set `pool.kind: local`",
            ) from error
        return started

    def check(self) -> None:
        """Raise `FindingError` if a required process has died."""
        node = ray._private.worker._global_node
        for name, process in node.dead_processes() if node is not None else ():
            if name in _REQUIRED:
                raise FindingError(
                    f"the {name} of the local Ray has died ({exit_name(process.returncode)})",
                    "rerun the same command to resume; if it happens again, check whether memory "
                    "is short, or set `pool.kind: local`",
                )

    def stop(self) -> None:
        """End the processes and remove the folder."""
        ray.shutdown()
        _read_credentials()
        # Ray's agents may still write there after the end of their node.
        deadline = time.monotonic() + _LEAVING_S
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)
            time.sleep(0.05)
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self.sweeper.communicate(b"" if self.folder.exists() else b"gone", _LEAVING_S)


def _sweeper(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that removes the folder after the end of this one."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SWEEP, f"{folder}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_all_with(token: str) -> None:
    """Kill the processes with this token in their environment."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if token.encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def _init(cpus: int, folder: Path) -> None:
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        namespace=namespace(),
        object_store_memory=_STORE_BYTES,
        job_config=make_isolated_job(),
        _node_ip_address=LOOPBACK,
        # Ray makes its folder readable for all users.
        _temp_dir=f"{folder / 'ray'}",
    )


def _check_loopback() -> None:
    address = ray.util.get_node_ip_address()
    if address != LOOPBACK:
        raise TunerError(
            f"Ray {ray.__version__} listens on {address}, where others could reach this run",
            "install the version of Ray in constraints.txt, or set `pool.kind: local`",
        )


def _private_folder() -> Path:
    """A new folder of mode 0700 with a short path."""
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="tuner-ray-", dir=base))
    if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="tuner-ray-", dir="/tmp"))


def _read_credentials() -> None:
    """Have Ray's native part read mode and token again, in the order that its threads need."""
    native: Any = _raylet
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Keep Ray on the loopback address inside the block.

    The environment is not enough in this process: Ray read it when it was imported.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


class _NoFolders(list[str]):
    """A list that remains empty."""

    def extend(self, folders: Iterable[str]) -> None:
        """Add nothing."""

    def __reduce__(self) -> tuple[type[list[str]], tuple[()]]:
        # It is sent to the cluster's server, which may not have this class.
        return list, ()


def make_isolated_job() -> ray.job_config.JobConfig:
    """A job whose actors do not import from the driver's working folder and script folder.

    By default Ray puts both before the standard library in every worker of the job, so that a
    user's `random.py` or `workers` would replace the library's or ours.
    """
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoFolders()
    return config


def namespace() -> str:
    """A new namespace for the actors of this run."""
    return f"tuner-{uuid.uuid4().hex[:12]}"


def python_path() -> str:
    """PYTHONPATH with the folder of these packages first."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(_PACKAGE_ROOT), *filter(None, inherited)]))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Ray's warnings about its own future changes, which users cannot act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM after the block; Ray's own handler would end the driver."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
