"""The environment of tests: a home of their own, and what appears in the user's meanwhile.

Imported before torch, Triton and Ray, which read these variables once. Processes of tests share the
home of the process that starts them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_USERS = "TUNER_TESTS_USERS_HOME"
#: What tuner and the libraries it uses leave in a home or a working folder.
_WRITTEN = (
    *(".ray", ".triton", ".ipython", ".nv", ".plotly", ".local/share/fish"),
    *(f".cache/{name}" for name in ("tuner", "jedi", "torch", "ray", "triton", "matplotlib")),
    *(f".config/{name}" for name in ("tuner", "fish", "ray", "plotly", "matplotlib")),
)


def _list_written() -> set[Path]:
    home = Path(os.environ[_USERS])
    places = [*(home / name for name in _WRITTEN), Path.cwd() / "results"]
    return {place for place in places if place.exists()}


def _remove(home: Path, owner: int) -> None:
    if os.getpid() == owner:  # and no fork of it
        shutil.rmtree(home, ignore_errors=True)


def _move_home() -> Path | None:
    """Set the environment; the new home, or None in a process of tests that has one already."""
    # A thread of torch that has nothing to do must not spin, as it does by default, or short tests
    # take ten times as long where several processes share the processors.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if _USERS in os.environ:
        return None
    os.environ[_USERS] = f"{Path.home()}"
    home = Path(tempfile.mkdtemp(prefix="home"))
    # Registered first, so that it runs last: after what other libraries still write at the end.
    atexit.register(_remove, home, os.getpid())
    os.environ["HOME"] = f"{home}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{home / 'inductor'}"
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    return home


HOME = _move_home()
_BEFORE = _list_written()


class OwnHome:
    """The plug-in of a session: fails it where tests wrote to the user's home."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if HOME is None:
            return
        appeared = sorted(map(str, _list_written() - _BEFORE))
        if appeared:
            print(f"\nfailed: tests wrote outside their folders: {', '.join(appeared)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
