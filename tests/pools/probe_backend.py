"""A backend that reports facts of its process, for tests of runners."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from search_spaces.records import Config, Device, Toolchain, Value, Workload, config_key
from workers.backend_kinds import BackendSpec
from workers.job_records import (
    Artifact,
    Calibration,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    PartResult,
    PreparationPart,
    Status,
    Timing,
)
from workers.measure.device_runner import DeviceRunner
from workers.processes.heartbeat import await_processors, heartbeat
from workers.processes.preload import Call, Preload, WorkerRole
from workers.roles import Backend


class ProbeSpec(BackendSpec):
    kind = "probe"

    def find_devices(self) -> list[Device]:
        return [Device("probe", "Probe", "probe")]

    def create(self, *, index: int, cache_dir: str, **options: Value) -> ProbeBackend:
        return ProbeBackend(index=index, cache_dir=cache_dir, **options)


class ProbeBackend(Backend):
    kind = "probe"

    def __init__(self, *, index: int = 0, cache_dir: str = "") -> None:
        self.poisoned = False
        self._calibrated = 0
        self._parts: list[str] = []
        self._compiled: set[str] = set()

    def info(self) -> tuple[Device, Toolchain]:
        return Device("probe", "Probe", "probe"), Toolchain()

    def calibration(self) -> Calibration:
        self._calibrated += 1
        if place := os.environ.get("PROBE_CALIBRATES"):
            Path(place).touch()
            time.sleep(600)
        return Calibration(quantum_us=0.5, overhead_us={"times": self._calibrated})

    def prepare_part(self, job: MeasureJob, part: PreparationPart) -> PartResult:
        """Prepare nothing, but do what the baseline's name says.

        `hang` never ends, `crash` ends the process, `raise` fails, `compile` must be compiled
        first, and any other name is the seconds that its launch takes. A file in the folder
        `PROBE_PARTS` gets the times of all parts on the device, and of `fault` as one begins that
        never returns.
        """
        name = part.baseline
        self._parts.append(f"{part.kind} {name}".strip())
        if not part.on_device:
            self._compiled.add(name)
            return PartResult(done=True)
        if name == "compile" and name not in self._compiled:
            return PartResult(done=False, compile_first=(name,))
        if name in ("hang", "crash"):
            with recorded("fault"):
                pass
        with recorded("part"):
            if name == "hang":
                time.sleep(60)
            elif name == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            elif name == "raise":
                raise RuntimeError("no such baseline")
            elif name not in ("", "compile"):
                time.sleep(float(name))
        return PartResult(done=True)

    def measure(self, job: MeasureJob) -> Measurement:
        """Measure nothing, but do what the candidates' configs say.

        `states_of` tells the states of these processes while this one has the processors alone.
        `poison` breaks the context for later candidates, `wrong` fails, `sleep_s` takes that many
        seconds, and `until` takes until a file exists, after making another one. A baseline's name
        is the seconds that it takes.
        """
        seen: set[int] = set()
        thread = threading.Thread(target=lambda: seen.update(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        outcomes: list[Timing | Failure] = []
        states = ""
        for index, candidate in enumerate(job.candidates):
            name = config_key(candidate.config)
            if self.poisoned:
                outcomes.append(Timing(name, 0.0))
                continue
            heartbeat(f"candidate {index}")
            time.sleep(float(candidate.config.get("sleep_s", 0)))
            if gate := str(candidate.config.get("until", "")):
                Path(f"{gate} is awaited").touch()
                while not Path(gate).exists():
                    time.sleep(0.01)
            if pids := str(candidate.config.get("states_of", "")):
                await_processors()
                ends_at = time.monotonic() + 100
                # A signal takes effect when its process is next scheduled.
                while set(states.split()) != {"T"} and time.monotonic() < ends_at:
                    states = " ".join(map(state_of, pids.split()))
            if "poison" in candidate.config:
                self.poisoned = True
                outcomes.append(Failure(Status.RUNTIME, "illegal memory access"))
            elif "wrong" in candidate.config:
                outcomes.append(Failure(Status.CORRECTNESS, "wrong result"))
            else:
                outcomes.append(Timing(name, 1.0, (1.0,)))
        for seconds in job.baselines:
            heartbeat(f"baseline {seconds}")
            time.sleep(float(seconds))
        if job.candidates:
            with recorded("job"):
                time.sleep(0.001)
        known = job.calibration.overhead_us["times"] if job.calibration else 0
        clocks = {
            "calibrated": known + self._calibrated,
            "pid": float(os.getpid()),
            "states": states,
            "parts": ", ".join(self._parts),
            "cores": f"{sorted(os.sched_getaffinity(0))}",
        }
        device, toolchain = self.info()
        return Measurement(device, toolchain, tuple(outcomes), clocks=clocks)

    def close(self) -> None:
        """Nothing is held."""


class LoadingSpec(ProbeSpec):
    """Devices whose name says where a library was loaded."""

    kind = "loading"

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        own = role is not WorkerRole.BUILDER
        return Preload.of(Call("child_targets", "load")) if own else Preload()

    def create(self, *, index: int, cache_dir: str, **options: Value) -> ProbeBackend:
        return LoadingBackend()


class LoadingBackend(ProbeBackend):
    kind = "loading"

    def info(self) -> tuple[Device, Toolchain]:
        import child_targets

        elsewhere = child_targets.LOADED and os.getpid() not in child_targets.LOADED
        name = "loaded in a server" if elsewhere else "not loaded"
        return Device("loading", name, "loading"), Toolchain()


class WaitingSpec(ProbeSpec):
    """Devices whose libraries load for ten minutes."""

    kind = "waiting"

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        own = role is not WorkerRole.BUILDER
        return Preload.of(Call("child_targets", "load_for_ever")) if own else Preload()


def state_of(pid: str) -> str:
    """The letter of a process's state: T while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def recorded(what: str) -> Iterator[None]:
    """Append the start and the end of something to a file of this process."""
    started = time.monotonic()
    yield
    if folder := os.environ.get("PROBE_PARTS"):
        with (Path(folder) / f"{os.getpid()}").open("a") as file:
            file.write(f"{what} {started} {time.monotonic()}\n")


def read_recorded(folder: Path) -> list[tuple[str, float, float]]:
    """What used the device, with start and end, in order of time."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted(((what, float(a), float(b)) for what, a, b in lines), key=lambda one: one[1])


def job_of(*configs: Config, n: int = 1, **changes: object) -> MeasureJob:
    candidates = tuple(Artifact(config, "probe", Toolchain(), f"{config}") for config in configs)
    job = MeasureJob("m", KernelRef("k"), Workload.of(n=n), candidates, timeout_s=200.0)
    return replace(job, **changes)  # type: ignore[arg-type]


def measured(runner: DeviceRunner, job: MeasureJob) -> Measurement:
    result = runner.measure(job)
    assert isinstance(result, Measurement), result
    return result
