"""`BackendSpec`: all that is particular to one kind of device, in one object.

Every other module asks the spec of a kind and compares no names of kinds. A spec's module is
imported by the command line, by drivers and by workers, so it imports neither torch nor a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from search_spaces.errors import TunerError
from search_spaces.records import Device, Toolchain, Value
from workers.environment import INDUCTOR, TRITON
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.preload import Preload, WorkerRole

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from workers.roles import Backend


#: Describes the device of that number for a runner with these options; None where that is unknown.
Describe = Callable[[int, Mapping[str, Value]], Device | None]


class NodeCapacity(Protocol):
    """What a machine of a cluster gives to workers."""

    @property
    def cpus(self) -> int: ...

    @property
    def gpus(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Peak:
    """The ceilings of a device by its vendor's data sheet: dense rates, without sparsity."""

    #: device memory, GB/s
    memory_gb_s: float
    #: matrix units with 16-bit operands, TFLOP/s
    half: float
    #: matrix units with 8-bit operands, TFLOP/s
    eight_bit: float
    #: matrix units in TF32 mode, TFLOP/s; 0.0 where there is no such mode
    tf32: float
    #: arithmetic units in float32, TFLOP/s
    fp32: float


class BackendSpec:
    """How devices of one kind are found, built for, placed, run and described.

    A plug-in derives a class, sets `kind`, implements `found` and `create`, and overrides what
    else differs. It registers the class, or an instance, as an entry point of the group
    `tuner.backends`; the entry point's name is the kind.
    """

    # -- facts -------------------------------------------------------------------------------------
    #: The name of the kind. `Kernel.kinds`, `Device.kind` and the targets of campaigns use it; a
    #: target is the kind alone or `kind:code`.
    kind: str = ""
    #: Whether variants are timed. A kind that only verifies is never a target.
    timed: bool = True
    #: Whether times come from a recorded space instead of a real device. Its tasks are placed on
    #: the device that was recorded.
    replayed: bool = False
    #: Whether a processor launches the work and another device does it. One processor is then
    #: reserved for each device, and a hanging candidate is noticed after seconds.
    accelerator: bool = False
    #: Whether a winner is also checked at the kernel's check size before it is confirmed; jobs that
    #: verify then cover the check size, too.
    checks_size: bool = False
    #: Whether a second, initialised process stands by to replace the first.
    standby: bool = True
    #: How many runners a pool has where its configuration does not say; None: one per device.
    default_runners: int | None = None
    #: The processors that one runner keeps busy. Builders leave them free. Where variants are timed
    #: on them, builders use them and stand still meanwhile.
    processors: int = 1
    #: The GPUs that Ray reserves for one runner. Ray shows the runner these devices alone, so its
    #: device has index 0.
    ray_gpus: int = 0
    #: The environment variable that lists the visible devices; empty when there is none.
    visible_devices: str = ""
    #: The target to assume when none of this kind is here; empty when nothing can be built for an
    #: absent device.
    usual_target: str = ""
    #: The kind of the runner that verifies variants for an absent device; empty for none.
    stand_in: str = ""
    #: Seconds of one trial, roughly, for plans.
    seconds_per_trial: float = 1.0
    #: Estimated seconds of race and confirmation of one task.
    seconds_of_finals: float = 8.0

    @property
    def times_processors(self) -> bool:
        """Whether variants are timed on the machine's processors."""
        return self.timed and not self.accelerator and not self.replayed

    # -- devices -----------------------------------------------------------------------------------
    def find_devices(self) -> list[Device]:
        """The devices that are visible to this process, in order; initialises none of them."""
        raise NotImplementedError(f"{type(self).__name__}.found")

    def likely_here(self) -> bool:
        """Whether there may be such a device, found out at once."""
        return bool(self.find_devices())

    def detect(self, index: int) -> Device:
        """The device of that number, for the process that owns it; may initialise it.

        Raises `TunerError` when there is no such device.
        """
        devices = self.find_devices()
        if index >= len(devices):
            raise TunerError(
                f"no {self.kind} device {index}: {len(devices)} visible to this process",
                "run `tuner workers list`",
            )
        return devices[index]

    def make_describe(self) -> Describe:
        """Begin to describe the devices without opening one in this process; returns at once.

        The result waits for the description of a device, which must equal that of the process which
        opens it. By default it knows none.
        """
        return lambda index, options: None

    def offline(self, target: str) -> Device:
        """The limits of a target of this kind that is absent; what is no limit is 0.

        Raises `TunerError` that names the known targets.
        """
        raise TunerError(
            f"unknown target {target!r}",
            f"nothing can be built for an absent {self.kind} device; the target is {self.kind!r}",
        )

    def check_target(self, target: str) -> None:
        """Raise `TunerError` for a target `kind:code` whose code does not exist."""

    def toolchain(self) -> Toolchain:
        """The versions that stand between a kernel's source and its binary on this machine."""
        from workers.toolchain import triton_toolchain

        return triton_toolchain()

    def peak(self, device: Device) -> Peak | None:
        """The ceilings of a device, None when they are not known."""
        return None

    # -- builds ------------------------------------------------------------------------------------
    def build(
        self, job: BuildJob, cache_dir: Path, options: Mapping[str, Value]
    ) -> Artifact | Failure | None:
        """The result of a build that needs no compiler; None: `workers.compiling.build` makes it.

        It is called in a builder's process, which sees no device. options: those of this kind in
        the pool's configuration.
        """
        return None

    def compile(self, kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
        """Compile a variant for a target of this kind; `build` has loaded the kernel.

        An exception other than `TunerError` and `ImportError` is the config's failure.
        """
        raise TunerError(
            f"no builder for target {job.device.target!r}",
            f"a kernel cannot be compiled for {self.kind}",
        )

    def build_sample(self, device: Device, cache_dir: Path) -> None:
        """Build a small known variant anew in an empty folder; raise if this machine cannot.

        It is called after the failure of a build, which is the machine's if the sample fails, too.
        """

    # -- runs --------------------------------------------------------------------------------------
    def find_option_problem(self, options: Mapping[str, Value]) -> str:
        """What is wrong with options of this kind in a configuration; empty for nothing."""
        return ""

    def runner_options(
        self, options: Mapping[str, Value], make_folder: Callable[[], str]
    ) -> Mapping[str, Value]:
        """The options of one runner, from those of this kind in the pool's configuration.

        make_folder: makes a folder that all runners of the pool share and that goes with it.
        """
        return options

    def environment(self, cache_dir: Path) -> dict[str, str]:
        """The environment that a runner's process needs before Python starts.

        The caches of the compilers lie below `cache_dir`, where `workers.compiling.install` puts
        artifacts.
        """
        return {
            "TRITON_CACHE_DIR": str(cache_dir / TRITON),
            "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / INDUCTOR),
            # Baselines are compiled here; a pool of compiler processes would disturb the timing.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        """What the server loads from which workers of a role fork, in this order.

        What several preloads begin with is loaded once for all of them. Leave out libraries that
        start threads when imported, and whatever opens a device. In the pool `ray` each builder
        loads its preload itself. torch_free: for builders where no kernel needs torch for its
        builds (`PoolSpec.torch_free`).
        """
        return Preload()

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        """The backend of device number `index`, in the process that owns the device.

        options: those of `runner_options`. Raise `TypeError` for an unknown option.
        """
        raise NotImplementedError(f"{type(self).__name__}.create")

    # -- Ray ---------------------------------------------------------------------------------------
    def ray_resources(self) -> dict[str, float]:
        """What must be free in a Ray cluster for one runner, as options of an actor."""
        needed: dict[str, float] = {"num_cpus": self.processors}
        return {**needed, "num_gpus": self.ray_gpus} if self.ray_gpus else needed

    def ray_count(self, nodes: Sequence[NodeCapacity]) -> int:
        """How many devices of this kind the nodes have: Ray's GPUs, else one a node with CPUs."""
        if self.ray_gpus:
            return sum(node.gpus // self.ray_gpus for node in nodes)
        return sum(node.cpus > 0 for node in nodes)
