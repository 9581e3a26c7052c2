"""Objects that the tests of supervised children create in a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from search_spaces.errors import KernelError
from workers.processes.heartbeat import heartbeat
from workers.processes.process_folders import shared_folder

#: The processes that have loaded this module.
LOADED: list[int] = []


class Target:
    def __init__(self, cache_dir: Path, greeting: str = "") -> None:
        self.cache_dir, self.greeting = cache_dir, greeting

    def echo(self, value: object) -> object:
        return value

    def facts(self) -> dict[str, object]:
        return {
            "greeting": self.greeting,
            "cache_dir": str(self.cache_dir),
            "exists": self.cache_dir.is_dir(),
            "pid": os.getpid(),
            "nice": os.nice(0),
            "variable": os.environ.get("TUNER_TEST"),
            "home": os.environ.get("HOME"),
            "cwd": os.getcwd(),
            "cores": os.sched_getaffinity(0),
        }

    def leave_files(self) -> list[str]:
        """Make temporary files as compilers do, in this process and in one that it starts."""
        handle, own = tempfile.mkstemp()
        os.close(handle)
        folder = tempfile.mkdtemp()
        started = subprocess.run(["mktemp"], capture_output=True, text=True, check=True)
        return [own, folder, started.stdout.strip()]

    def share(self) -> str:
        """Leave a file in the folder of all children of this one's server; returns the folder."""
        folder = shared_folder()
        assert folder is not None
        (folder / f"{os.getpid()}").touch()
        return f"{folder}"

    def start_a_pool(self) -> None:
        from workers import pools
        from workers.job_records import PoolSpec

        pools.create(PoolSpec(kind="local", runners={"cpu": 1})).start()

    def loaded_in(self) -> list[int]:
        return LOADED

    def signal(self, number: int, printed: str = "") -> None:
        print(printed, file=sys.stderr)
        os.kill(os.getpid(), number)
        time.sleep(60)

    def leave(self, code: int) -> None:
        os._exit(code)

    def hang(self) -> None:
        time.sleep(600)

    def work(self, activities: list[str], pause_s: float, then: str = "") -> int:
        """Send a heartbeat per activity, with a pause after each; then hang or die."""
        for text in activities:
            heartbeat(text)
            time.sleep(pause_s)
        if then == "hang":
            self.hang()
        if then == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        return len(activities)

    def heartbeat_elsewhere(self) -> None:
        """Heartbeats of a forked process, and of a thread that continues after the reply."""
        if (pid := os.fork()) == 0:
            heartbeat("forked")
            os._exit(0)
        os.waitpid(pid, 0)

        def keep_beating() -> None:
            for index in range(100_000):
                heartbeat(f"thread {index}")

        threading.Thread(target=keep_beating, daemon=True).start()

    def spawn(self) -> int:
        """Start a descendant that detaches itself and would run for ten minutes."""
        script = (
            "import os, time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "print(os.getpid(), flush=True)\n"
            "time.sleep(600)"
        )
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def spawn_near(self) -> int:
        """Start a descendant in the same process group that would run for ten minutes."""
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    def shout(self, size: int) -> int:
        sys.stderr.buffer.write(bytes(range(256)) * (size // 256))
        sys.stdout.buffer.write(b"\0" * size)
        sys.stdout.flush()
        return size

    def fail(self) -> None:
        raise KernelError("no such kernel", "name another")

    def fail_unpicklably(self) -> None:
        class Local(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text either")

        raise Local(lambda: None)

    def answer_unpicklably(self) -> object:
        return lambda: None

    def ignore_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


class Broken:
    def __init__(self, cache_dir: Path) -> None:
        raise KernelError("cannot be made", "correct it")


class DeadOnArrival:
    def __init__(self, cache_dir: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def load() -> None:
    """A preload of a fork server."""
    LOADED.append(os.getpid())


def load_for_ever() -> None:
    time.sleep(600)


def wait_for_file(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def touch(path: str) -> None:
    Path(path).touch()


def add_after(path: str) -> None:
    """Add a 2 once the file exists."""
    wait_for_file(path)
    add_loaded("2")


def load_and_die() -> None:
    print("no such library", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def load_variable() -> None:
    """A preload that keeps what the environment says at its time."""
    LOADED.append(int(os.environ.get("TUNER_TEST_LOADED", "0")))


def add_loaded(number: str) -> None:
    LOADED.append(int(number))


def fail_to_load() -> None:
    raise ImportError("not here")
