"""Reaching a Ray cluster, or starting a local one, without ever hanging."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from search_spaces.errors import TunerError

# Ray prints these to the driver's stdout, where data belongs, and reads the setting when imported.
# That a worker or its node died is an event here, and many small runners on a machine are meant.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "A worker died or was killed|worker processes have been started"
    "|Raylet is terminated|has been marked dead",
)

import ray as ray

_PROBE = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
ray.shutdown()
"""
_REFUSED = "InvalidAuthToken"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
#: Artifacts are small and leave the store when they are no longer wanted.
_LOCAL_STORE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection to Ray. owned: started by us, ended by us. runtime_env: for every actor."""

    owned: bool
    connected_here: bool
    runtime_env: dict[str, Any]

    def leave(self) -> None:
        """End a local Ray of ours, close a connection of ours, leave anybody else's alone."""
        if self.connected_here and ray.is_initialized():
            ray.shutdown()


def connect(address: str | None, timeout_s: float, local_cpus: int) -> Cluster:
    """Use the Ray that is connected, is at `address` or at `RAY_ADDRESS`; else start a local one.

    local_cpus: logical processors of a local Ray. Raises TunerError when the address does not
    answer within `timeout_s` seconds.
    """
    if ray.is_initialized():
        return Cluster(owned=False, connected_here=False, runtime_env=_runtime_env())
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        _start_local(local_cpus)
        return Cluster(owned=True, connected_here=True, runtime_env={})
    # Inside `ray job submit` the address is right, and a probe would claim the job's own name.
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        _probe(address, timeout_s)
    try:
        with _quiet(), _sigterm_kept():
            ray.init(
                address=address,
                namespace=_namespace(),
                logging_level="ERROR",
                log_to_driver=False,
                job_config=_isolated(),
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _refused(address, f"{error.__context__}\n{error}") from None
    return Cluster(owned=False, connected_here=True, runtime_env=_runtime_env())


class _NoFolders(list[str]):
    """A list that stays empty."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave out what is to be added."""

    def __reduce__(self) -> tuple[type[list[str]], tuple[()]]:
        # Sent to a cluster's server, which need not have this class.
        return list, ()


def _isolated() -> ray.job_config.JobConfig:
    """A job whose actors do not import from the driver's working folder and script folder.

    Ray puts both in front of the standard library in every worker of the job. A user's `random.py`
    or `workers` would be imported instead of the library's or ours.
    """
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoFolders()
    return config


def _namespace() -> str:
    return f"tuner-{uuid.uuid4().hex[:12]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray announces its own changes of mind as FutureWarnings; its users can do nothing there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, to die of it; whoever had a handler for it keeps that one."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _start_local(cpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's workers are of low priority unless told otherwise, and times taken there the worse.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with _quiet(), _importable(), _sigterm_kept():
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            namespace=_namespace(),
            object_store_memory=_LOCAL_STORE_BYTES,
            job_config=_isolated(),
        )


@contextmanager
def _importable() -> Iterator[None]:
    """Processes started inside find these packages, installed or not: they inherit PYTHONPATH."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = _python_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(_PACKAGE_ROOT), *filter(None, inherited)]))


def _runtime_env() -> dict[str, Any]:
    """Where the packages are, for a cluster of others, unless they are installed.

    A job's own `working_dir` holds them as well as an installation does.
    """
    installed = "site-packages" in _PACKAGE_ROOT.parts
    if installed or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return {}
    return {"env_vars": {"PYTHONPATH": _python_path()}}


def _probe(address: str, timeout_s: float) -> None:
    """Connect once in a process that can be killed: `ray.init` may wait for ever."""
    deadline = time.monotonic() + max(1.0, timeout_s)
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            with closing(socket.create_connection((host.strip("[]"), int(port)), timeout_s)):
                pass
        except OSError as error:
            reason = error.strerror or f"{error}"
            raise _unreachable(address, f"does not answer ({reason})") from None
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            [sys.executable, "-c", _PROBE, address], stdout=subprocess.DEVNULL, stderr=log
        ) as probe:
            said = ""
            # Ray asks again and again, for 20 s, where its token was refused at once.
            while probe.poll() is None and _REFUSED not in said and time.monotonic() < deadline:
                time.sleep(0.05)
                said = _text(log)
            ended = probe.poll()
            probe.kill()
        said = _text(log)
    if ended is None and _REFUSED not in said:
        raise _unreachable(address, f"did not answer within {timeout_s:g} s")
    if ended != 0:
        raise _refused(address, said or f"exit code {ended}")


def _text(log: IO[bytes]) -> str:
    return os.pread(log.fileno(), 2**20, 0).decode(errors="replace")


def _refused(address: str, output: str) -> TunerError:
    if _REFUSED in output or "AuthenticationError" in output:
        wrong = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        return TunerError(
            f"Ray at {address} {'refuses the' if wrong else 'asks for an'} authentication token",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what `ray get-auth-token` prints there",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return _unreachable(address, f"cannot be used: {lines[-1][:300]}")


def _unreachable(address: str, problem: str) -> TunerError:
    return TunerError(
        f"Ray at {address} {problem}",
        "check pool.address and `ray status`, or leave it empty for a local Ray",
    )
