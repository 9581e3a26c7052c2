"""The fork servers that the workers of a local pool share, and their start in advance."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import alive, below, forked, kill, process_name, wait_until

from workers import backend_kinds
from workers.job_records import PoolSpec, WorkerInfo, WorkerReady
from workers.pools import create, prestart
from workers.pools.local import LocalPool


@pytest.fixture
def paths(plugin) -> Iterator[tuple[str, ...]]:
    """Import paths of plug-ins; in the end no server is left."""
    yield plugin
    assert not forked(os.getpid())


def pool_of(*kinds: str, paths: tuple[str, ...] = (), builders: int = 1) -> LocalPool:
    pool = create(PoolSpec(runners=dict.fromkeys(kinds, 1), builders=builders, paths=paths))
    assert isinstance(pool, LocalPool)
    return pool


def ready(pool: LocalPool) -> list[WorkerInfo]:
    """The runners, when all have started."""
    found: list[WorkerInfo] = []

    def all_ready() -> bool:
        found.extend(e.worker for e in pool.poll(0.1) if isinstance(e, WorkerReady))
        return len(found) == pool.runners

    wait_until(all_ready)
    return sorted(found, key=lambda info: info.worker_id)


def servers() -> dict[int, str]:
    """The names of the fork servers of this process, by process id."""
    found = {pid: process_name(pid) for pid in forked(os.getpid())}
    return {pid: name for pid, name in found.items() if "-" not in name}


def test_libraries_are_loaded_once_for_all_workers_by_servers_without_threads(paths):
    kinds = ("cpu", "interpreter")
    pool = pool_of(*kinds, builders=2)
    pool.start()
    described = pool.describe_workers()
    assert described is not None
    found = ready(pool)
    wait_until(lambda: pool.warm)
    for before, after in zip(described, found, strict=True):
        assert (before.worker_id, before.host) == (after.worker_id, after.host)
        assert (before.device, before.toolchain) == (after.device, after.toolchain)
        assert before.calibration is None
    running = servers()
    assert sorted(running.values()) == ["builders", "builders+cpu", "cpu", "interpreter", "workers"]
    # A thread alive at a fork may hold a lock that the child then waits for for ever.
    assert {len(os.listdir(f"/proc/{pid}/task")) for pid in running} == {1}
    libraries = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in running}
    assert all("libtorch" in maps for maps in libraries.values())
    pool.close()


def test_a_device_is_described_only_if_its_kind_says_so_for_these_options(paths):
    plugin = pool_of("probe", "simulated", paths=paths)
    plugin.start()
    assert plugin.describe_workers() is None
    plugin.close()
    few = create(PoolSpec(runners={"cpu": 1}, builders=0, options={"cpu": {"cores": "0"}}))
    few.start()
    assert few.describe_workers() is None
    few.close()


def test_a_pool_uses_the_servers_that_were_started_in_advance(paths):
    prestart(["loading"], paths)
    wait_until(lambda: len(servers()) == 2 and "loading" in servers().values())
    started = servers()
    prestart(["loading"], paths)
    pool = pool_of("loading", paths=paths)
    pool.start()
    assert ready(pool)[0].device.name == "loaded in a server"
    assert started.items() <= servers().items()
    pool.close()
    assert not servers()


def test_servers_that_do_not_fit_a_pool_are_ended(paths):
    prestart(["loading"], paths)
    wait_until(lambda: bool(servers()))
    first, *_ = servers()
    pool = pool_of("loading", "simulated", paths=paths)
    pool.start()
    ready(pool)
    assert not alive(first)
    pool.close()


def test_kinds_that_load_nothing_and_unknown_kinds_start_nothing_in_advance(paths):
    before = set(below(os.getpid()))
    prestart(["simulated"])
    prestart(["probe"], paths)
    prestart(["no such kind"])
    assert not set(below(os.getpid())) - before


def test_closing_does_not_wait_for_libraries_that_are_still_loading(paths):
    pool = pool_of("waiting", paths=paths)
    pool.start()
    wait_until(lambda: "workers" in servers().values())
    pool.close()
    assert not forked(os.getpid())


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_servers_that_no_pool_takes_end_with_their_process(paths, end):
    script = """
        import sys, time
        from workers.pools import prestart
        prestart(["cpu"])
        heavy = ("torch", "numpy", "sqlalchemy")
        print([name for name in heavy if name in sys.modules], flush=True)
        if sys.argv[1] == "kill":
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "[]\n"
        family = below(driver.pid)
        assert family or end == "exit"
        if end == "kill":
            kill(driver.pid)
    wait_until(lambda: not any(map(alive, family)))


@pytest.mark.gpu
@pytest.mark.skipif(not backend_kinds.spec("cuda").find_devices(), reason="needs a CUDA device")
def test_the_description_of_a_gpu_equals_the_device_that_is_opened():
    describe = backend_kinds.spec("cuda").make_describe()
    device = describe(0, {})
    assert device is not None
    script = "from workers.device import detect; print(detect('cuda', 0))"
    opened = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert opened.stdout.strip() == f"{device}"
