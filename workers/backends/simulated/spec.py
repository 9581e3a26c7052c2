"""The spec of the kind `simulated`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.records import Device, Toolchain, Value
from workers.backend_spec import BackendSpec, Describe, NodeCapacity
from workers.job_records import Artifact, BuildJob, Failure

if TYPE_CHECKING:
    from workers.roles import Backend


#: The largest value of each option; the first four are shares of configs with a fault.
_OPTIONS = {
    **dict.fromkeys(("crash", "hang", "wrong", "lost"), 1.0),
    "seed": 2.0**63,
    "time_scale": 1e9,
}


class SimulatedSpec(BackendSpec):
    """Devices that replay recorded spaces with their noise, and inject faults."""

    kind = "simulated"
    replayed = True
    standby = False
    default_runners = 1
    processors = 0
    seconds_per_trial = 0.01
    seconds_of_finals = 0.1

    def find_devices(self) -> list[Device]:
        """A stand-in: the device of a result is the one that was recorded."""
        return [self.detect(0)]

    def detect(self, index: int) -> Device:
        return Device(self.kind, "Simulated Device", self.kind, uuid=f"SIM-{index}")

    def make_describe(self) -> Describe:
        return lambda index, options: self.detect(index)

    def toolchain(self) -> Toolchain:
        return Toolchain(python=platform.python_version())

    def build(
        self, job: BuildJob, cache_dir: Path, options: Mapping[str, Value]
    ) -> Artifact | Failure:
        from workers.backends.simulated.build import simulate_build

        return simulate_build(job, float(options.get("time_scale") or 0.0))

    def find_option_problem(self, options: Mapping[str, Value]) -> str:
        for name, value in options.items():
            if name not in _OPTIONS:
                return f"unknown option {name!r}; known: {', '.join(_OPTIONS)}"
            if isinstance(value, bool | str | None) or not 0 <= value <= _OPTIONS[name]:
                return f"{name}: expected a number from 0 to {_OPTIONS[name]:g}, found {value!r}"
        return ""

    def runner_options(
        self, options: Mapping[str, Value], make_folder: Callable[[], str]
    ) -> Mapping[str, Value]:
        if not options.get("lost"):
            return options
        # All runners share the marks of the configs that have lost a worker already.
        return {**options, "lost_dir": make_folder()}

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        from workers.backends.simulated.backend import SimulatedBackend

        return SimulatedBackend(index=index, cache_dir=cache_dir, **options)  # type: ignore[arg-type]

    def ray_count(self, nodes: Sequence[NodeCapacity]) -> int:
        return 1
