"""A Ray of this run alone: on the loopback address, its own token, in a private folder."""

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
from workers.build.cache import environment
from workers.supervision.fork_server import exit_name

# Ray prints these to the driver's stdout, where data belongs, and reads the setting when imported.
# That a worker or its node died is an event here, and many small runners on a machine are meant.
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
#: Artifacts are small and leave the store when they are no longer wanted.
_STORE_BYTES = 256 * 2**20
_LEAVING_S = 5.0
#: Processes without which a Ray of one node does nothing.
_NEEDED = ("raylet", "gcs_server")
#: What Ray appends to its folder for a socket must fit into the 107 bytes of a socket's path.
_LONGEST_FOLDER = 40
#: No process of this Ray measures, or serves measurements of, itself; -1 is a port nobody can open.
_CLOSED = {
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
_NICENESS = "RAY_worker_niceness"
#: Waits for the driver's end, and removes its Ray's folder unless the driver says that it has done
#: so. Ray's agents may take a minute to leave, and write there until then.
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
#: Where it is "0", Ray stays on the loopback address, as it does on Windows.
_ON_THE_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running local Ray that nobody else can use."""

    #: Of mode 0700, with all that this Ray writes.
    folder: Path
    #: Removes the folder of a driver that was killed.
    sweeper: subprocess.Popen[bytes]

    @classmethod
    def start(cls, cpus: int) -> LocalRay:
        """Start a Ray with `cpus` logical processors.

        Raises `TunerError` if it does not start or is not private.

        The token is in the environment of its processes alone, which only their user can read.
        """
        folder = _private_folder()
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Of low priority unless told otherwise, and times taken there the worse.
            _NICENESS: os.environ.get(_NICENESS, "0"),
            # Processes started inside find these packages, installed or not.
            "PYTHONPATH": python_path(),
            _ON_THE_NETWORK: "0",
            **_CLOSED,
        }
        started = cls(folder, _sweeper(folder))
        try:
            with quiet(), sigterm_kept(), environment(**variables), _on_loopback():
                _read_credentials()
                _init(cpus, folder)
            _check_loopback()
        except BaseException as error:
            # Of a start that failed, Ray leaves the processes that it had come to.
            _kill_all_with(variables["RAY_AUTH_TOKEN"])
            started.stop()
            if isinstance(error, TunerError) or not isinstance(error, Exception):
                raise
            # Ray raises a plain Exception when the machine was too busy to start it in 30 s.
            raise TunerError(
                f"a local Ray did not start: {error}",
                "try again when the machine is less busy, or set `pool.kind: local`",
            ) from error
        return started

    def check(self) -> None:
        """Raise `FindingError` where a process has died that all others need."""
        node = ray._private.worker._global_node
        for name, process in node.dead_processes() if node is not None else ():
            if name in _NEEDED:
                raise FindingError(
                    f"the {name} of the local Ray has died ({exit_name(process.returncode)})",
                    "the same command goes on with the run; if that happens again, see whether "
                    "memory is short, or set `pool.kind: local`",
                )

    def stop(self) -> None:
        """End its processes and remove its folder."""
        ray.shutdown()
        _read_credentials()
        # Ray's agents may still write there when their node has ended.
        deadline = time.monotonic() + _LEAVING_S
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)
            time.sleep(0.05)
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self.sweeper.communicate(b"" if self.folder.exists() else b"gone", _LEAVING_S)


def _sweeper(folder: Path) -> subprocess.Popen[bytes]:
    """The process that removes the folder when this one ends, however it does."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SWEEP, f"{folder}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_all_with(token: str) -> None:
    """Kill the processes that have this token in their environment."""
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
        job_config=isolated(),
        _node_ip_address=LOOPBACK,
        # Ray opens its own folder to everybody.
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
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="tuner-ray-", dir="/tmp"))


def _read_credentials() -> None:
    """Let Ray's native part read mode and token again; the mode first, for its threads' sake."""
    native: Any = _raylet
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """In this process, Ray has read its environment when it was imported."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


class _NoFolders(list[str]):
    """A list that stays empty."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave out what is to be added."""

    def __reduce__(self) -> tuple[type[list[str]], tuple[()]]:
        # Sent to a cluster's server, which need not have this class.
        return list, ()


def isolated() -> ray.job_config.JobConfig:
    """A job whose actors do not import from the driver's working folder and script folder.

    Ray puts both in front of the standard library in every worker of the job. A user's `random.py`
    or `workers` would be imported instead of the library's or ours.
    """
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoFolders()
    return config


def namespace() -> str:
    """A name of this run's own for its actors."""
    return f"tuner-{uuid.uuid4().hex[:12]}"


def python_path() -> str:
    """PYTHONPATH with the folder of these packages."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(_PACKAGE_ROOT), *filter(None, inherited)]))


@contextmanager
def quiet() -> Iterator[None]:
    """Ray announces its own changes of mind as FutureWarnings; its users can do nothing there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, to die of it; whoever had a handler for it keeps that one."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
