"""A private Ray for one run: on the loopback address, with a random token and a private folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from search_spaces.errors import FindingError, TunerError
from workers.environment import set_variables
from workers.processes.child import reaper
from workers.processes.child_process import exit_name

# Ray reads this when it is imported: lines that it would print to the driver's stdout, which is for
# data. The pool itself reports dead workers and nodes, and many runners on a machine are intended.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "A worker died or was killed|worker processes have been started"
    "|Raylet is terminated|has been marked dead",
)

import ray as ray
from ray import _raylet
from ray._private import ray_constants
from ray._private.node import Node

_LOOPBACK = "127.0.0.1"
_NICENESS = "RAY_worker_niceness"
#: Bytes of the folder's parent. With what Ray appends, a socket's path must fit into 107 bytes.
_MAX_PARENT_BYTES = 21


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running local Ray that only this run can use."""

    #: A folder of mode 0700 with all files of this Ray.
    folder: Path

    @classmethod
    def start(cls, cpus: int, python_path: str) -> LocalRay:
        """Start a Ray with `cpus` logical processors, whose processes get this PYTHONPATH.

        The token is in the environment of its processes only, which only their user can read.
        Raises `TunerError` if Ray does not start or is not private.
        """
        parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _MAX_PARENT_BYTES else "/tmp"
        started = cls(Path(tempfile.mkdtemp(prefix="tuner-ray-", dir=parent)))
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's default is a low priority, which would disturb the times.
            _NICENESS: os.environ.get(_NICENESS, "0"),
            "PYTHONPATH": python_path,
            # "0" keeps Ray on the loopback address. In this process Ray read it when imported.
            ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
            # No metrics: nothing is collected, and port -1 cannot be opened.
            "RAY_enable_metrics_collection": "0",
            "AUTOSCALER_METRIC_PORT": "-1",
            "DASHBOARD_METRIC_PORT": "-1",
            # By default Ray starts a worker for each processor, before any is asked for.
            "RAY_prestart_worker_first_driver": "0",
        }
        has_clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
        try:
            with set_variables(**variables), _only_what_runs_actors():
                _read_credentials()
                init(
                    "local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    # Enough for artifacts, which are small and leave the store after use.
                    object_store_memory=256 * 2**20,
                    _node_ip_address=_LOOPBACK,
                    # Ray makes its folder readable for all users.
                    _temp_dir=f"{started.folder / 'ray'}",
                )
            if (address := ray.util.get_node_ip_address()) != _LOOPBACK:
                raise RuntimeError(f"{ray.__version__} listens on {address}, not {_LOOPBACK}")
        except BaseException as error:
            started.stop()
            if not isinstance(error, Exception):
                raise
            # Ray raises a plain Exception if it does not start within 30 s on a busy machine.
            raise TunerError(
                f"a local Ray did not start: {error}",
                "try again when the machine is less busy, or set `pool.kind: local`",
            ) from error
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = has_clusters
        return started

    def check(self) -> None:
        """Raise `FindingError` if a process has died without which a Ray cannot work."""
        node = ray._private.worker._global_node
        for name, process in node.dead_processes() if node is not None else ():
            if name in ("raylet", "gcs_server"):
                raise FindingError(
                    f"the {name} of the local Ray has died ({exit_name(process.returncode)})",
                    "rerun the same command to resume; if it happens again, check whether memory "
                    "is short, or set `pool.kind: local`",
                )

    def stop(self) -> None:
        """End the processes and remove the folder."""
        if (node := ray._private.worker._global_node) is not None:
            # Nothing of theirs is kept. Asked to end, each would take up to a second.
            node.kill_all_processes = partial(_kill_all, node)
        ray.shutdown()
        _read_credentials()
        # Ray's agents may still write there after the end of their node.
        deadline = time.monotonic() + 5.0
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)
            time.sleep(0.05)


@contextmanager
def _only_what_runs_actors() -> Iterator[None]:
    """Have Ray start no server of a dashboard, monitor of logs or autoscaler, and import none."""
    owners = {
        "start_api_server": Node,
        "start_log_monitor": Node,
        "start_monitor": Node,
        "get_dashboard_dependency_error": ray._private.utils,
    }
    before = {name: getattr(owner, name) for name, owner in owners.items() if hasattr(owner, name)}
    missing = ImportError("left out")
    try:
        for name in before:
            result = missing if owners[name] is ray._private.utils else None
            setattr(owners[name], name, lambda *_, result=result, **__: result)
        yield
    finally:
        for name, function in before.items():
            setattr(owners[name], name, function)


def _kill_all(node: Any, **_: object) -> None:
    """Kill the processes of a node, and the workers and agents of its raylet, which wait for it."""
    own = {info.process.pid for infos in node.all_processes.values() for info in infos}
    started = reaper.children(own)
    type(node).kill_all_processes(node, check_alive=False, allow_graceful=False)
    for pid in started:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _read_credentials() -> None:
    """Have Ray's native part read mode and token again, in the order that its threads need."""
    native: Any = _raylet
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()


def init(address: str, **options: Any) -> None:
    """`ray.init` without Ray's warnings, which users cannot act on, and its handler of SIGTERM.

    The handler would end the driver. The actors get a new namespace, and do not import from the
    driver's working folder and script folder. By default Ray puts both before the standard library,
    so that a user's `random.py` or `workers` would replace the library's or ours.
    """
    isolated = ray.job_config.JobConfig()
    # Ray adds neither where the job ships a working folder. A server of `ray://` unpickles this.
    isolated._runtime_env_has_working_dir = partial(bool, True)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            ray.init(
                address=address,
                namespace=f"tuner-{uuid.uuid4().hex[:12]}",
                logging_level="ERROR",
                log_to_driver=False,
                job_config=isolated,
                **options,
            )
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
