"""A local Ray serves its run only: listeners, token, folder, and no process left behind."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from processes import alive, below, named, title, wait_until

from search_spaces.errors import TunerError
from workers.job_records import PoolSpec
from workers.pools import create
from workers.pools.ray_local import LocalRay

pytestmark = [pytest.mark.ray]

_DRIVER = """
import json, os, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
from pathlib import Path
from pool_contract import Farm, spec
from workers.pools import create
pool = create(spec("ray"))
farm = Farm.start(pool, Path(sys.argv[2]))
import ray
facts = {"address": ray.get_runtime_context().gcs_address,
         "session": ray._private.worker._global_node.get_session_dir_path(),
         "token": os.environ.get("RAY_AUTH_TOKEN")}
pool.submit_measure("simulated-0", farm.measure_job("m", farm.config("hang"), slow=True))
pool.submit_build(farm.build_job("b", farm.config(""), slow=True))
print(json.dumps(facts), flush=True)
while True:
    pool.poll(1.0)
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


def test_no_other_process_reaches_a_local_ray_which_ends_with_its_driver(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", f"{tmp_path / 'home'}")
    for name in [name for name in os.environ if name.startswith("RAY_AUTH")]:
        monkeypatch.delenv(name)
    command = [sys.executable, "-c", _DRIVER, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        facts = json.loads(driver.stdout.readline())
        family = [driver.pid, *below(driver.pid)]
        reached = listeners(family)
        assert facts["address"].rpartition(":")[2] in {f"{port}" for _, port in reached}
        assert {address for address, _ in reached} == {"127.0.0.1"}
        assert not {44217, 44227} & {port for _, port in reached}, "metrics are served"

        gcs = next(pid for pid in family if "gcs_server" in title(pid))
        token = environment(gcs)["RAY_AUTH_TOKEN"]
        assert len(token) >= 32
        assert facts["token"] is None, "kept in the driver's own environment"
        assert not [pid for pid in family if token in title(pid)]
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
        assert subprocess.run(admitted, check=False).returncode == 0

        # Killed outright, the driver leaves neither Ray nor children. Ray's agents look for their
        # raylet every few seconds and may take a minute to end.
        wait_until(lambda: len(named(driver.pid, "simulated-0")) == 2)
        family = [pid for pid in below(driver.pid) if "agent" not in title(pid).lower()]
        driver.kill()
    wait_until(lambda: not any(map(alive, family)))
    shutil.rmtree(private, ignore_errors=True)


@pytest.mark.full
def test_a_local_ray_that_cannot_start_is_an_error_and_leaves_no_files(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        with pytest.raises(TunerError, match="a local Ray did not start") as caught:
            LocalRay.start(-1, "")
        assert os.listdir(folder) == []
    assert "pool.kind" in caught.value.hint


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_refused_in_one_line(scheme):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        pool = create(PoolSpec(kind="ray", address=address, connect_timeout_s=1.0))
        # Without a listener the connection is refused; a listener other than Ray never answers.
        for _ in range(2):
            with pytest.raises(TunerError) as caught:
                pool.start()
            assert address in caught.value.message
            assert "\n" not in caught.value.message
            assert "pool.address" in caught.value.hint
            listener.listen()
    pool.close()
