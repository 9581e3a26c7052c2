"""What a process loads before workers fork from it: a `Preload`, whose steps have types.

    Preload.of(TORCH, Variable("TRITON_INTERPRET", "1"), "triton", Call("package.module", "fill"))

A server sends no code: modules and functions go by their names. Import neither torch nor a driver
here, because specs of devices are imported by the command line.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from tuner.base import tracing


class WorkerRole(StrEnum):
    """What the workers do that fork from a server."""

    BUILDER = "builder"
    RUNNER = "runner"
    #: A runner's second process, which compiles baselines while the first one measures.
    STANDBY = "standby"


@dataclass(frozen=True, slots=True)
class Import:
    """A module."""

    module: str

    def __str__(self) -> str:
        return self.module

    def run(self) -> None:
        importlib.import_module(self.module)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module's function."""

    module: str
    function: str
    arguments: tuple[str, ...] = ()
    #: Whether it has a thread of its own, while the steps behind it load.
    beside: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    def run(self) -> None:
        getattr(importlib.import_module(self.module), self.function)(*self.arguments)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment that libraries read once, when they are imported."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def run(self) -> None:
        os.environ[self.name] = self.value


Step = Import | Call | Variable


@dataclass(frozen=True, slots=True)
class Preload:
    """Steps in their order, each once."""

    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, *parts: Preload | Step | str) -> Preload:
        """The steps of all parts; text is a module."""
        steps: list[Step] = []
        for part in parts:
            if isinstance(part, Preload):
                steps += part.steps
            else:
                steps.append(Import(part) if isinstance(part, str) else part)
        return cls(tuple(dict.fromkeys(steps)))

    def run(self) -> None:
        """Carry out the steps. One that fails is left to the worker that needs it.

        No thread is alive afterwards: it might hold a lock at a fork.
        """
        threads = []
        for step in self.steps:
            if isinstance(step, Call) and step.beside:
                threads.append(threading.Thread(target=_run, args=(step,)))
                threads[-1].start()
            else:
                _run(step)
        for thread in threads:
            thread.join()


def _run(step: Step) -> None:
    with tracing.span(f"load {step}", "start", least_s=0.005), suppress(Exception):
        step.run()


def load_torch_libraries() -> None:
    """Load torch's shared libraries; `import torch` finds them loaded. Raises OSError.

    The system's linker takes about a second where torch is built for CUDA. `import torch` keeps the
    interpreter's lock meanwhile; `ctypes` does not, so another thread can import modules. The
    library of torch's Python interface is left to `import torch`: its set-up needs the lock.
    """
    import ctypes

    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None:
        folder = os.path.join(os.path.dirname(found.origin), "lib")
        # As torch does: what the others need is visible to all, torch itself is not.
        ctypes.CDLL(os.path.join(folder, "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(os.path.join(folder, "libtorch.so"))


#: What all workers load.
WORKERS = Preload.of("workers.compiling.process_builder", "workers.measure.device_runner")
#: How preloads begin where tensors are torch's. Waiting threads of OpenMP must not burn the cores
#: that a variant is timed on, and Inductor must not start compiler processes.
ENVIRONMENT = Preload.of(
    Variable("OMP_WAIT_POLICY", "passive"),
    Variable("OMP_DYNAMIC", "false"),
    Variable("TORCHINDUCTOR_COMPILE_THREADS", "1"),
)
#: What may load while the system links torch's libraries follows this.
BEFORE_TORCH = Preload.of(
    ENVIRONMENT, Call(__name__, load_torch_libraries.__name__, beside=True), WORKERS
)
TORCH = Preload.of(BEFORE_TORCH, "torch")
#: What the first comparison of two variants loads.
STATISTICS = Import("scipy.special")
