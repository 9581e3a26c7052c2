"""A farm of simulated devices in a separate process: the real `tuner run` and its database."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from made_up_spaces import synthesize
from processes import LIMIT_S, parents, wait_until

from results_db import Store
from results_db.shipped import select_shipped
from results_db.stored_records import RunInfo, TaskInfo, TrialRecord
from search_spaces.recorded.recorded_kernel import RecordedSpace
from search_spaces.records import Config, Status, config_key
from workers.backends.simulated.backend import SimulatedBackend

ROOT = Path(__file__).parents[2]
#: Trials of a run over the space below, which takes some seconds.
TRIALS = 120
FAULTS = {"crash": 0.02, "wrong": 0.03, "lost": 0.02}
#: A time scale with which a run is under way for long enough to disturb it, on any machine.
SLOW = 3.0
_STATUSES = {
    "crash": Status.RUNTIME,
    "hang": Status.TIMEOUT,
    "wrong": Status.CORRECTNESS,
    "lost": None,
    "": None,
}


def small_space(build_s: float = 0.1) -> RecordedSpace:
    """A space in which every third config fails or has the binary of another one."""
    return synthesize(240, seed=5, failures=0.2, twins=0.15, build_s=build_s)


@dataclass
class Farm:
    """A folder with a recorded space and a config.yaml of one campaign, `c`."""

    folder: Path
    strategy: str = "random"
    pool: str = "local"
    trials: int = TRIALS
    builders: int = 2
    runners: int = 3
    time_scale: float = 0.3
    measure_timeout: float = 30.0
    faults: Mapping[str, float] = field(default_factory=lambda: dict(FAULTS))
    space: RecordedSpace = field(default_factory=small_space)
    #: A value in the environment of every process of this farm, also of indirect descendants.
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: Further environment variables.
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scratch.mkdir(parents=True)
        self.space.save(self.folder / "space.json")
        self.configure()

    @property
    def scratch(self) -> Path:
        """The folder for the private folders of its children."""
        return self.folder / "scratch"

    @property
    def database(self) -> Path:
        return self.folder / "db" / "tuner.db"

    def configure(self, **changes: object) -> None:
        """Change fields of this object and write config.yaml."""
        for name, value in changes.items():
            setattr(self, name, value)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self._config()))

    def _config(self) -> dict[str, object]:
        options = {"seed": 3, "time_scale": self.time_scale, **self.faults}
        return {
            "version": 1,
            "database": {"url": f"sqlite:///{self.database}"},
            "pool": {
                "kind": self.pool,
                "builders": self.builders,
                "measure_timeout": self.measure_timeout,
                "devices": {"simulated": {"runners": self.runners, "options": options}},
            },
            "campaigns": {
                "c": {
                    "targets": ["simulated:space.json"],
                    "budget": {"trials": self.trials},
                    "strategy": {"name": self.strategy, "seed": 11},
                    "tasks": [{"kernel": "recorded:space.json"}],
                }
            },
        }

    # -- running it ----------------------------------------------------------------------------
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tuner", "run", "c", "--no-report"]

    @property
    def environment(self) -> dict[str, str]:
        # Ray's sockets need a short path.
        return {
            **os.environ,
            "TMPDIR": str(self.scratch),
            "RAY_TMPDIR": "/tmp",
            "FARM_MARK": self.mark,
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            **self.variables,
        }

    @contextmanager
    def driver(
        self, stderr: Path | None = None, arguments: Sequence[str] = (), shell: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """A running `tuner run` that leads a new session, as a shell's job does.

        stderr: a file for its messages, to be read while it runs. arguments: another command of
        `tuner`. shell: how a shell executes it as `"$@"`; both streams are a pipe without a reader.
        """
        command = [*self.command[:3], *arguments] if arguments else self.command
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with ExitStack() as stack:
            if stderr is not None:
                streams["stderr"] = stack.enter_context(stderr.open("w"))
            if shell:
                read, write = os.pipe()
                os.close(read)
                pipe = stack.enter_context(os.fdopen(write, "wb"))
                command = ["sh", "-c", shell, "sh", *command]
                # Under nohup, children would ignore hang-ups, too.
                heed = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
                streams = {"stdout": pipe, "stderr": pipe, "preexec_fn": heed}
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    text=True,
                    start_new_session=True,
                    **streams,
                )
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def finish(self) -> str:
        """Run to the end and return the output."""
        with self.driver() as process:
            return self.ended(process)

    def finish_quickly(self) -> None:
        """Run to the end, however slow the trials were before."""
        self.configure(time_scale=0.1)
        self.finish()

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """The output of a driver, after waiting until it ends with this exit code."""
        out, err = process.communicate(timeout=LIMIT_S)
        printed = (out or "") + (err or "")
        assert process.returncode == code, printed
        assert "Traceback" not in printed
        return printed

    # -- its state -----------------------------------------------------------------------------
    def processes(self) -> list[int]:
        """All living processes of this farm."""
        found = []
        for pid in parents():
            with suppress(OSError):
                if self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def assert_gone(self) -> None:
        """Check that no process and no private folder is left."""
        wait_until(lambda: not self.processes())
        assert not [path for path in self.scratch.iterdir() if "lost" not in path.name]

    def count(self, where: str = "1") -> int:
        """The number of stored trials; 0 before there is a database."""
        with suppress(sqlite3.OperationalError), closing(self._connect()) as connection:
            found = connection.execute(f"SELECT count(*) FROM trial WHERE {where}").fetchone()
            return int(found[0])
        return 0

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30)

    def runs(self) -> list[RunInfo]:
        with Store.open(f"sqlite:///{self.database}") as store:
            return store.runs()

    def task(self) -> TaskInfo:
        """The only task of the only run."""
        with Store.open(f"sqlite:///{self.database}") as store:
            (run,) = store.runs()
            (task,) = store.tasks(run.run_id)
            return task

    def records(self) -> list[TrialRecord]:
        with Store.open(f"sqlite:///{self.database}") as store:
            return [
                record
                for run in store.runs()
                for task in store.tasks(run.run_id)
                for record in store.trials(task.task_id)
            ]


def outcomes(records: list[TrialRecord]) -> dict[int, tuple[str, ...]]:
    """The parts of the records that do not depend on time, by the trial's number."""
    found = {
        record.number: (
            config_key(record.config),
            record.status,
            # The second exit of a process that crashed twice may be a kill of the test.
            re.sub(r"\(SIG.*", "", record.message),
            record.binary_hash,
            record.strategy,
        )
        for record in records
    }
    assert len(found) == len(records)
    return found


def expected(farm: Farm, config: Config) -> Status:
    """The status of a config by the recording and the injected faults."""
    recorded = farm.space[config].status
    if recorded in (Status.CONSTRAINTS, Status.COMPILE):
        return recorded
    fault = SimulatedBackend(**farm.faults, seed=3).fault(farm.space.original(config))
    return _STATUSES[fault] or recorded


def assert_announced(farm: Farm, printed: str) -> None:
    """Check that the last line of progress tells the confirmed time."""
    selection = farm.task().selection
    assert selection is not None
    ships = select_shipped(selection)
    (done,) = [line for line in printed.splitlines() if line.startswith("done: ")]
    assert f"confirmed {ships.median_us:.2f} us" in done
    assert " ".join(done.split()).endswith(f"{ships.log_ratio.ratio:.2f}x the default")


def assert_sound(farm: Farm) -> None:
    """Check a finished farm: one run, each trial once with its status, each binary measured once,
    copies agree."""
    task, records = farm.task(), farm.records()
    (run,) = farm.runs()
    assert (run.status, run.holder, task.stage) == ("finished", "", "done")
    assert sorted(record.number for record in records) == list(range(farm.trials))
    assert len({config_key(record.config) for record in records}) == farm.trials
    measured = [r.binary_hash for r in records if r.source == "measured" and r.binary_hash]
    assert len(measured) == len(set(measured))
    by_attempt = {record.attempt_id: record for record in records}
    for record in records:
        assert record.status is expected(farm, record.config)
        assert record.source in ("measured", "binary")
        assert record.binary_hash == "" or record.binary_hash == farm.space[record.config].binary
        if record.source == "binary":
            original = by_attempt[record.copied_from]
            assert original.source == "measured"
            assert (original.status, original.median_us, original.binary_hash) == (
                record.status,
                record.median_us,
                record.binary_hash,
            )
    assert task.selection is not None
    winner = next(r for r in records if config_key(r.config) == config_key(task.selection.winner))
    assert winner.status is Status.CORRECT
    with Store.open(f"sqlite:///{farm.database}") as store:
        assert store.check() == []


# -- its processes ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class WorkerProcesses:
    """One builder or runner at this moment, by process ids."""

    name: str
    #: The process that holds the builder or runner: the driver or an actor.
    supervisor: int
    #: The worker of its child.
    child: int

    @property
    def at_work(self) -> bool:
        """Whether the child does anything but wait for a request."""
        try:
            return "pipe_read" not in Path(f"/proc/{self.child}/wchan").read_text()
        except OSError:
            return False


def worker_processes(root: int) -> list[WorkerProcesses]:
    """The builders and runners below a driver whose child is complete at this moment."""
    tree = parents()
    names: dict[int, str] = {}
    for pid in tree:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"workers.processes.server_process" in words and descends(pid, root, tree):
                names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
    found = []
    for pid, name in names.items():
        reaper = tree[pid]
        # Fork servers, shared or not, stand above reaper and worker, which have the same name.
        if names.get(reaper) == name and tree[reaper] in names and re.search(r"-\d+$", name):
            owner = reaper
            while owner in names:
                owner = tree[owner]
            found.append(WorkerProcesses(name, owner, pid))
    return sorted(found, key=lambda worker: worker.name)


def descends(pid: int, root: int, tree: Mapping[int, int]) -> bool:
    while pid in tree and pid != root:
        pid = tree[pid]
    return pid == root


def kill(pid: int) -> bool:
    """`kill -9`; False if the process had ended before."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
