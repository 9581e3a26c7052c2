"""A local Ray serves its run only: listeners, token, folder, and nothing left behind."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from processes import alive, below, wait_until

from search_spaces.errors import TunerError
from workers.job_records import PoolSpec
from workers.pools import create

pytestmark = [pytest.mark.ray]

_DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pool_contract import Farm, spec
from workers.pools import create
pool = create(spec("ray"))
farm = Farm.start(pool, Path(sys.argv[2]))
import os, ray
facts = {"address": ray.get_runtime_context().gcs_address,
         "session": ray._private.worker._global_node.get_session_dir_path(),
         "token": os.environ.get("RAY_AUTH_TOKEN")}
print(json.dumps(facts), flush=True)
sys.stdin.readline()
pool.close()
"""

_CLIENT = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
"""


def listeners(pids: list[int]) -> set[tuple[str, int]]:
    """Addresses and ports at which these processes accept TCP connections."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(entry))
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                found.add((_ip(address), int(port, 16)))
    return found


def _ip(text: str) -> str:
    """An address as /proc shows it, in words of the machine's byte order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return f"{getattr(found, 'ipv4_mapped', None) or found}"


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def files_with(text: str, folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path)
    return found


def test_no_other_process_reaches_a_local_ray(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", f"{tmp_path / 'home'}")
    for name in [name for name in os.environ if name.startswith("RAY_AUTH")]:
        monkeypatch.delenv(name)
    command = [sys.executable, "-c", _DRIVER, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        facts = json.loads(driver.stdout.readline())
        family = [driver.pid, *below(driver.pid)]
        reached = listeners(family)
        assert facts["address"].rpartition(":")[2] in {f"{port}" for _, port in reached}
        assert {address for address, _ in reached} == {"127.0.0.1"}
        assert not {44217, 44227} & {port for _, port in reached}, "metrics are served"

        gcs = next(pid for pid in family if "gcs_server" in _title(pid))
        token = environment(gcs)["RAY_AUTH_TOKEN"]
        assert len(token) >= 32
        assert facts["token"] is None, "kept in the driver's own environment"
        assert not [pid for pid in family if token in _title(pid)]
        session = Path(facts["session"])
        private = session.parents[1]
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert files_with(token, private) == files_with(token, tmp_path) == []
        assert not (tmp_path / "home" / ".ray").exists()

        # By default a client takes 127.0.0.1 for the machine's own address.
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        pool = create(PoolSpec(kind="ray", address=facts["address"], connect_timeout_s=30.0))
        for mode, printed in (("disabled", "asks for an"), ("token", "refuses the")):
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
            monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * len(token))
            with pytest.raises(TunerError, match=f"{printed} authentication token"):
                pool.start()
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        admitted = [sys.executable, "-c", _CLIENT, facts["address"]]
        assert subprocess.run(admitted, timeout=60, check=False).returncode == 0
        driver.communicate("\n")
    assert driver.returncode == 0
    assert not private.exists()
    wait_until(lambda: not any(map(alive, family)))


_FAILS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from processes import below
from search_spaces.errors import TunerError
from workers.pools.ray_local import LocalRay
try:
    LocalRay.start(-1)
except TunerError as error:
    print(error.message, error.hint)
print(below(os.getpid()), os.listdir(os.environ["RAY_TMPDIR"]))
"""


def test_a_local_ray_that_does_not_start_leaves_nothing(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        command = [sys.executable, "-c", _FAILS, str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed, left = done.stdout.splitlines()
    assert printed.startswith("a local Ray did not start")
    assert "pool.kind" in printed
    assert left == "[] []"


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
