"""Connections to Ray, with a limit on time: to a running cluster or to a new local Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from search_spaces.errors import TunerError
from tuner.base import tracing
from tuner.base.import_names import PACKAGES, user_module
from workers.pools.ray_local import LocalRay, init
from workers.pools.ray_local import ray as ray

_PROBE = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
ray.shutdown()
"""
_REFUSED, _OTHER = "InvalidAuthToken", "Version mismatch:"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection to Ray."""

    #: Whether this run made the connection, and ends it.
    connected_here: bool
    #: The runtime environment of every actor.
    runtime_env: dict[str, Any]
    #: The Ray that this run started and ends; None for one of others.
    local: LocalRay | None = None

    @property
    def owned(self) -> bool:
        """Whether this run started the Ray."""
        return self.local is not None

    def check(self) -> None:
        """Raise `FindingError` if the local Ray has died."""
        if self.local is not None:
            self.local.check()

    def leave(self) -> None:
        """End the local Ray or the connection, if this run started it."""
        if self.local is not None:
            self.local.stop()
        elif self.connected_here and ray.is_initialized():
            ray.shutdown()


def connect(address: str | None, timeout_s: float, local_cpus: int) -> Cluster:
    """Connect to Ray: the present connection, `address`, `RAY_ADDRESS`, or a new local Ray.

    The first of these that exists is used. local_cpus: logical processors of a local Ray. Raises
    TunerError if the address does not answer within `timeout_s` seconds.
    """
    if ray.is_initialized():
        _check_import_names()
        return Cluster(connected_here=False, runtime_env=_runtime_env())
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        local = LocalRay.start(local_cpus, _python_path())
        return Cluster(connected_here=True, runtime_env={}, local=local)
    # Inside `ray job submit` the address is valid, and a probe would take the job's name.
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        _probe(address, timeout_s)
    try:
        init(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _make_refusal(address, f"{error.__context__}\n{error}") from None
    return Cluster(connected_here=True, runtime_env=_runtime_env())


def _check_import_names() -> None:
    """Raise TunerError if actors of the caller's connection would import other modules.

    Ray puts the script's folder and the working folder first on the import path of such actors.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    folders = [f"{Path(script).resolve().parent}", os.getcwd()] if script else [os.getcwd()]
    for package in PACKAGES:
        theirs = user_module(package, folders)
        if theirs is not None:
            raise TunerError(
                f"Ray was connected before tuner, so its actors import {package} from {theirs}, "
                f"not from {_PACKAGE_ROOT / package}",
                f"let tuner connect to Ray (no ray.init before), or rename {theirs}",
            )


def _runtime_env() -> dict[str, Any]:
    """For actors of a cluster: the place of the packages unless they are installed, and the trace.

    A job's `working_dir` counts as an installation. Actors on other machines find no folder of the
    trace and record nothing.
    """
    installed = "site-packages" in _PACKAGE_ROOT.parts
    variables = {}
    if not installed and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        variables["PYTHONPATH"] = _python_path()
    if tracing.VARIABLE in os.environ:
        variables[tracing.VARIABLE] = os.environ[tracing.VARIABLE]
    return {"env_vars": variables} if variables else {}


def _python_path() -> str:
    """PYTHONPATH with the folder of these packages first, installed or not."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([f"{_PACKAGE_ROOT}", *filter(None, inherited)]))


def _probe(address: str, timeout_s: float) -> None:
    """Connect once in a process that can be killed, because `ray.init` may never return."""
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
            printed = ""
            # Ray repeats for 20 s after its token was refused at once.
            while probe.poll() is None and _REFUSED not in printed and time.monotonic() < deadline:
                time.sleep(0.05)
                printed = _text(log)
            ended = probe.poll()
            probe.kill()
        printed = _text(log)
    if ended is None and _REFUSED not in printed:
        raise _unreachable(address, f"did not answer within {timeout_s:g} s")
    if ended != 0:
        raise _make_refusal(address, printed or f"exit code {ended}")


def _text(log: IO[bytes]) -> str:
    return os.pread(log.fileno(), 2**20, 0).decode(errors="replace")


def _make_refusal(address: str, output: str) -> TunerError:
    if _REFUSED in output or "AuthenticationError" in output:
        wrong = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        return TunerError(
            f"Ray at {address} {'refuses the' if wrong else 'asks for an'} authentication token",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what `ray get-auth-token` prints there",
        )
    if _OTHER in output:
        versions = " ".join(output.rpartition(_OTHER)[2].split())
        return TunerError(
            f"Ray at {address} has other versions: {versions}",
            "use the same Ray and the same Python on all hosts and here",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return _unreachable(address, f"cannot be used: {lines[-1][:300]}")


def _unreachable(address: str, problem: str) -> TunerError:
    return TunerError(
        f"Ray at {address} {problem}",
        "check pool.address and `ray status`, or leave it empty for a local Ray",
    )
