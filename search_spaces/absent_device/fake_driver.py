"""Answers of torch and Triton about a device that this process does not have.

Builders and the driver import kernels for devices of other machines. Libraries query torch and
Triton for the device at import, to list configs or to choose an implementation. Inside
`answering(device)` torch and Triton describe that device, from their import on if they are imported
there. Queries are counted (`query_count`), because a module that made one is valid for one device
only.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import Device


# -- actions that wait for the import of a library, so that a process without it does not load it
@contextmanager
def once_imported(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` now if the module is imported, else as soon as code in the block imports it."""
    if name in sys.modules:
        action()
        yield
        return
    finder = _LateFinder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _LateFinder:
    """Finds one module as all other finders do; its import then ends with a call of `action`."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action

    def remove(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        # A second finder of this kind would find by this one, and this one by it.
        self.remove()
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:  # the block is still open
                self._action()

        loader.exec_module = exec_module


# -- answers of torch and Triton about a device that this process does not have --------------------
#: A machine without GPUs, on which modules are tried before their device is known.
NO_GPU = Device(kind="", name="no device", target="")
#: For modules that cannot be imported without any device, until theirs is known.
STAND_IN = Device("cuda", "cuda:90 (not present)", "cuda:90", shared_bytes=227 * 1024)

#: Multiprocessors and GiB of memory of the data-centre card of each target, and its L2 in MiB, for
#: devices that state none. NVIDIA's and AMD's data sheets.
_USUAL = {
    "cuda:70": (80, 32, 6), "cuda:75": (40, 16, 4), "cuda:80": (108, 80, 40),
    "cuda:86": (84, 48, 6), "cuda:87": (16, 32, 4), "cuda:89": (142, 48, 96),
    "cuda:90": (132, 80, 50), "cuda:100": (148, 180, 126), "cuda:103": (148, 270, 126),
    "cuda:110": (20, 128, 32), "cuda:120": (170, 32, 96), "cuda:121": (48, 128, 24),
    "hip:gfx90a": (104, 64, 8), "hip:gfx942": (304, 192, 4), "hip:gfx950": (256, 288, 4),
}  # fmt: skip
_THREADS_PER_SM = {"75": 1024, "86": 1536, "87": 1536, "89": 1536, "120": 1536, "121": 1536}
_NOTHING = "no GPU is visible where kernels are imported and built"

_scopes = itertools.count()
_device: ContextVar[Device | None] = ContextVar(
    "device that torch and Triton describe", default=None
)
_queries = 0
#: Whether this process has been inside `answering`.
_used = False


@dataclass(frozen=True)
class Properties:
    """`torch.cuda.get_device_properties` of a device that is not here; sizes in bytes."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block_optin: int
    regs_per_multiprocessor: int
    warp_size: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    gcnArchName: str
    shared_memory_per_block: int = 48 * 1024
    max_threads_per_block: int = 1024
    is_integrated: int = 0
    is_multi_gpu_board: int = 0

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """A multiprocessor's is 1 KiB more than one block may use."""
        return self.shared_memory_per_block_optin + 1024


def properties_of(device: Device) -> Properties:
    """A device's own facts and, where it states none, those that are usual for its target."""
    backend, _, arch = device.target.partition(":")
    usual_sms, memory_gib, l2_mib = _USUAL.get(device.target, (64, 16, 4))
    version = (int(arch[:-1]), int(arch[-1])) if backend == "cuda" else _gfx_version(arch)
    return Properties(
        name=device.name,
        major=version[0],
        minor=version[1],
        multi_processor_count=device.sm_count or usual_sms,
        total_memory=device.memory_bytes or memory_gib << 30,
        shared_memory_per_block_optin=device.shared_bytes or 48 * 1024,
        regs_per_multiprocessor=device.registers or 65_536,
        warp_size=device.warp_size,
        L2_cache_size=device.l2_bytes or l2_mib << 20,
        max_threads_per_multi_processor=_THREADS_PER_SM.get(arch, 2048),
        gcnArchName=arch if backend == "hip" else "",
    )


def _gfx_version(arch: str) -> tuple[int, int]:
    """gfx942 is 9.4, gfx1100 is 11.0, as torch has it."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2], 16)


class TargetDriver:
    """A Triton driver with a target but no device, for `triton.runtime.driver.set_active`.

    Triton keeps compiled kernels in memory by `get_current_device()`. Every driver object answers
    with a unique name, so no binary of another target, or of the real device, is taken for one of
    this target, and all builds go through the cache on disk.
    """

    def __init__(self, device: Device) -> None:
        self._target = gpu_target(device.target)
        self._properties = properties_of(device)
        self.scope = f"{device.target}#{next(_scopes)}"
        self.utils = self

    def get_current_target(self) -> Any:
        if not _is_of_libraries(sys._getframe(1)):
            _count()
        return self._target

    def get_current_device(self) -> str:
        return self.scope

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return importlib.import_module("torch").device("cuda", 0)

    def get_device_interface(self) -> Any:
        return importlib.import_module("torch").cuda

    def get_device_capability(self, device: object = None) -> tuple[int, int]:
        return self._properties.major, self._properties.minor

    def get_device_properties(self, device: object = None) -> dict[str, int]:
        """Of `utils`, by the names that Triton's own drivers give them."""
        if not _is_of_libraries(sys._getframe(1)):
            _count()
        found = self._properties
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
            "sm_clock_rate": 0,
        }


class NoDriver:
    """Triton's driver on a machine without GPUs: every query raises."""

    def __getattr__(self, name: str) -> Any:
        _count()
        raise RuntimeError(_NOTHING)


def gpu_target(target: str) -> Any:
    """Triton's `GPUTarget` of `cuda:90` or `hip:gfx942`; `TunerError` for anything else."""
    from triton.backends.compiler import GPUTarget

    backend, _, arch = target.partition(":")
    if backend == "cuda" and arch.isdecimal():
        return GPUTarget("cuda", int(arch), 32)
    if backend == "hip" and arch.startswith("gfx") and len(arch) >= 6:
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise TunerError(
        f"{target!r} is not a target that Triton can build for",
        "write cuda:90 or hip:gfx942",
    )


def is_gpu(device: Device) -> bool:
    """Whether a device is one that torch calls `cuda`."""
    return device.target.partition(":")[0] in ("cuda", "hip")


def query_count() -> int:
    """How many queries for the device kernels have made so far."""
    return _queries


def get_described() -> Device | None:
    """What torch and Triton describe in this thread; None: the machine as it is."""
    return _device.get()


@contextmanager
def fake_device(device: Device | None) -> Iterator[None]:
    """Let torch and Triton describe `device` in this thread; None changes nothing.

    A device that is not a GPU is described as a machine without GPUs. Imports neither library.
    """
    global _used
    if device is None:
        yield
        return
    _used = True
    gpu = is_gpu(device)
    token = _device.set(device if gpu else NO_GPU)
    try:
        with once_imported("torch", _install), _described_by_triton(device if gpu else None):
            yield
    finally:
        _device.reset(token)


@contextmanager
def answering_if_used(device: Device) -> Iterator[None]:
    """`answering`, if this process has imported kernels inside it; else no change."""
    if not _used:
        yield
        return
    with fake_device(device):
        yield


@contextmanager
def _described_by_triton(gpu: Device | None) -> Iterator[None]:
    """Let Triton use a driver that describes the GPU; None: one for no GPU.

    A Triton that is imported inside the block for no GPU keeps its own driver.
    """
    with ExitStack() as stack:
        if gpu is not None:
            waiting = once_imported(
                "triton", lambda: stack.enter_context(active(TargetDriver(gpu)))
            )
            stack.enter_context(waiting)
        elif "triton" in sys.modules:
            stack.enter_context(active(NoDriver()))
        yield


@contextmanager
def without_device() -> Iterator[None]:
    """Let every launch of a Triton kernel raise inside the block."""
    if "triton" not in sys.modules:
        yield
        return
    with active(NoDriver()):
        yield


@contextmanager
def active(target: TargetDriver | NoDriver) -> Iterator[None]:
    """Let Triton use that driver inside the block."""
    from triton.runtime import driver

    slot = "_active" if "_active" in vars(driver) else "active"
    before = vars(driver).get(slot)
    driver.set_active(target)
    try:
        yield
    finally:
        setattr(driver, slot, before)


# -- torch -----------------------------------------------------------------------------------------
def _capability(device: Device) -> tuple[int, int]:
    found = properties_of(device)
    return found.major, found.minor


#: What torch's functions answer for a GPU; those of a machine without any are below.
_ANSWERS: dict[tuple[str, str], Callable[[Device], Any]] = {
    ("torch.cuda", "is_available"): lambda device: True,
    ("torch.cuda", "device_count"): lambda device: 1,
    ("torch.cuda", "current_device"): lambda device: 0,
    ("torch.cuda", "get_device_properties"): properties_of,
    ("torch.cuda", "get_device_capability"): _capability,
    ("torch.cuda", "get_device_name"): lambda device: device.name,
    ("torch.cuda", "is_bf16_supported"): lambda device: _capability(device) >= (8, 0),
    ("torch.utils._triton", "has_triton"): lambda device: _capability(device) >= (7, 0),
}
_NO_GPU_ANSWERS = {
    "is_available": False,
    "device_count": 0,
    "is_bf16_supported": False,
    "has_triton": False,
}


@functools.cache
def _install() -> None:
    """Replace each function that queries the device by one that may answer; once."""
    for (place, name), answer in _ANSWERS.items():
        module = importlib.import_module(place)
        setattr(module, name, _answering(getattr(module, name), name, answer))


def _answering(
    own: Callable[..., Any], name: str, answer: Callable[[Device], Any]
) -> Callable[..., Any]:
    @functools.wraps(own)
    def function(*arguments: Any, **named: Any) -> Any:
        device = _device.get()
        if device is None or _is_import_of_torch(sys._getframe(1)):
            return own(*arguments, **named)
        _count()
        if device is not NO_GPU:
            return answer(device)
        if name in _NO_GPU_ANSWERS:
            return _NO_GPU_ANSWERS[name]
        raise RuntimeError(_NOTHING)

    return function


def _count() -> None:
    global _queries
    _queries += 1


def _is_import_of_torch(frame: FrameType | None) -> bool:
    """Whether a module of torch or Triton, which all kernels share, asks while it is imported."""
    while frame is not None and _is_of_libraries(frame):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _is_of_libraries(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("torch", "triton", "functools", "importlib", "contextlib")
