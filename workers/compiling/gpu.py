"""Triton variants: compiled by `warmup` on tensors without storage, for an absent device."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces import source_positions
from search_spaces.declaration.launch_arguments import jitted_below
from search_spaces.errors import KernelError, TunerError
from search_spaces.records import Device, Status, canonical_json
from search_spaces.tensors import empty_tensors
from workers import backend_kinds
from workers.compiling.absent_target import TargetDriver, use_target
from workers.compiling.binary import code_hash, code_object_resources, cubin_resources
from workers.compiling.cache import pack_group
from workers.compiling.carried_registers import least_spill
from workers.compiling.host_code import build_host_modules, keep_host_modules
from workers.compiling.launch_key import LaunchKey, count_compilations
from workers.compiling.machine_check import TRITON_BYTES, check_file_size
from workers.environment import TRITON, set_variables
from workers.job_records import Artifact, BuildJob, Failure, StaticFacts

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Kernel, Launch

_BINARIES = (".cubin", ".hsaco")
_KEEP = frozenset({".json", *_BINARIES})
_TEXTS = frozenset({".ptx", ".amdgcn"})
_MAX_THREADS = 1024
#: Registers are allocated to threads in multiples of this number.
_REGISTER_STEP = 8


def build_gpu(kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
    """Compile all launches of a Triton variant; read, check and pack their binaries.

    A process without torch builds without it. If that fails, it imports torch and builds again, so
    that no config fails because a version of Triton needs torch.
    """
    check_file_size(TRITON_BYTES)
    try:
        return _build(kernel, job, cache_dir)
    except TunerError:
        raise
    except Exception:
        if not _import_torch():
            raise
        return _build(kernel, job, cache_dir)


def _import_torch() -> bool:
    """Whether this process had no torch before and has it now."""
    if "torch" in sys.modules:
        return False
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def _build(kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
    device, keep = job.device, _KEEP | _TEXTS if job.assembly else _KEEP
    files: dict[str, bytes] = {}
    keys: list[LaunchKey] = []
    facts = StaticFacts()
    exceeded: str | None = None
    identity = hashlib.sha256()
    with (
        set_variables(TRITON_CACHE_DIR=str(cache_dir / TRITON)),
        use_target(device.target, device) as driver,
    ):
        tensors = meta_tensors(kernel, job)
        for launch in kernel.launches(job.workload, job.config, tensors):
            requested = StaticFacts(num_warps=int(launch.kwargs.get("num_warps") or 0))
            if too_wide := refusal(requested, device):
                return Failure(Status.CONSTRAINTS, too_wide, facts=requested)
            try:
                with (
                    count_compilations(import_inductor=False) as compilations,
                    _refused_before_linking(device, driver, job.refuse_spills),
                ):
                    binaries = compile_launch(launch, driver)
            except _RefusedError as refused:
                message, own = refused.args
                return Failure(Status.CONSTRAINTS, message, facts=own)
            keys += compilations.keys
            for compiled in binaries:
                own = _facts(compiled)
                # Each launch must fit, not the most registers of one with the threads of another.
                exceeded = exceeded or refusal(own, device)
                facts = _worst(facts, own)
                identity.update(_identity(launch, compiled, tensors).encode())
                files.update(pack_group(compiled.metadata_group, keep))
            if job.host_modules and device.kind == "cuda":
                files.update(build_host_modules(binaries, cache_dir / TRITON))
            elif device.kind == "cuda" and device.uuid:
                keep_host_modules(binaries)  # while the device opens, or measures others
    if not files:
        raise KernelError(f"{kernel.name} has no launch for {job.workload.key}")
    if exceeded is not None:
        return Failure(Status.CONSTRAINTS, exceeded, facts=facts, binary_hash=identity.hexdigest())
    return Artifact(
        config=dict(job.config),
        target=device.target,
        toolchain=backend_kinds.spec_of_target(device.target).toolchain(),
        binary_hash=identity.hexdigest(),
        facts=facts,
        files=files,
        keys=tuple(keys),
    )


class _RefusedError(Exception):
    """A launch exceeds a limit: the message of `refusal`, and the launch's facts so far."""


@contextmanager
def _refused_before_linking(
    device: Device, driver: TargetDriver, refuse_spills: bool
) -> Iterator[None]:
    """Have Triton stop before ptxas once it knows that shared memory or registers do not suffice.

    Triton's own hook for stages would change the keys of its cache. Raises `_RefusedError` inside
    the block.
    """
    from triton.compiler.compiler import make_backend

    backend = type(make_backend(driver.get_current_target()))
    before = backend.add_stages

    def add_stages(self: Any, stages: dict[str, Any], *given: Any) -> None:
        before(self, stages, *given)
        lower = stages["llir"]

        def llir(source: Any, metadata: Any) -> Any:
            spill = least_spill(f"{source}", device) if refuse_spills else 0
            if spill:
                facts = StaticFacts(spill_bytes=spill, num_warps=int(metadata["num_warps"]))
                too_much = f"a loop carries {spill:,} B more than the registers of a thread hold"
                raise _RefusedError(f"{too_much} on {device.target}", facts)
            lowered = lower(source, metadata)
            facts = StaticFacts(
                shared_bytes=int(metadata["shared"]), num_warps=int(metadata["num_warps"])
            )
            if message := refusal(facts, device):
                raise _RefusedError(message, facts)
            return lowered

        stages["llir"] = llir

    backend.add_stages = add_stages
    try:
        yield
    finally:
        backend.add_stages = before


def meta_tensors(kernel: Kernel, job: BuildJob) -> dict[str, torch.Tensor]:
    """Inputs, outputs and scratch by name, on the `meta` device: shapes and dtypes, no memory."""
    specs = {**kernel.outputs(job.workload), **kernel.scratch(job.workload, job.config)}
    return {**kernel.make_inputs(job.workload, 0, "meta"), **empty_tensors(specs, "meta")}


def compile_launch(launch: Launch, driver: TargetDriver) -> list[Any]:
    """The compiled kernels of a launch: one, unless an autotuner wraps it."""
    positional, named = _without_dtypes(launch)
    try:
        with _torch_left_out():
            done = launch.fn.warmup(*positional, grid=launch.grid, **named)
    except Exception as error:
        source_positions.note(error, _place_of(_jit_function(launch.fn), error))
        raise
    finally:
        caches = getattr(_jit_function(launch.fn), "device_caches", {})
        caches.pop(driver.scope, None)
    compiled = list(done) if isinstance(done, list) else [done]
    if any(getattr(kernel, "metadata_group", None) is None for kernel in compiled):
        raise KernelError(
            f"{getattr(launch.fn, '__name__', launch.fn)} was not compiled by Triton's compiler",
            "unset TRITON_INTERPRET for builders, and launch functions under @triton.jit",
        )
    return compiled


@contextmanager
def _torch_left_out() -> Iterator[None]:
    """Keep Triton from importing torch, if this process has not, to recognise torch's tensors."""
    if "torch" in sys.modules:
        yield
        return
    # Not `sys.modules["torch"] = None`: from 3.8 on, Triton takes what it finds there for torch.
    sys.meta_path.insert(0, _ABSENT_TORCH)
    try:
        yield
    finally:
        sys.meta_path.remove(_ABSENT_TORCH)


class _AbsentTorch:
    """An import finder that reports torch as not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("torch is left out of this build", name=name)


_ABSENT_TORCH: Any = _AbsentTorch()


def _place_of(jitted: Any, error: Exception) -> str:
    """The Triton function and the line that a compiler error names, as `scale (rope.py:12)`."""
    fn = getattr(jitted, "fn", None)
    try:
        lines, first = inspect.getsourcelines(fn)  # type: ignore[arg-type]
    except (OSError, TypeError):  # the file has changed
        return f"{jitted!r:.80}"
    line = first + next((n for n, text in enumerate(lines) if text.lstrip().startswith("def ")), 0)
    if getattr(error, "src", None) == getattr(jitted, "src", ""):
        line += getattr(getattr(error, "node", None), "lineno", 1) - 1
    return f"{jitted.fn.__name__} ({Path(jitted.fn.__code__.co_filename).name}:{line})"


def _without_dtypes(launch: Launch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for `warmup`, with dtypes by name.

    `warmup` interprets a positional dtype as a tensor of that dtype, a launch as a constant. Both
    interpret a dtype by name as a constant.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return launch.args, dict(launch.kwargs)
    first = next(
        (at for at, value in enumerate(launch.args) if isinstance(value, torch.dtype)),
        len(launch.args),
    )
    names = _jit_function(launch.fn).arg_names
    rest = dict(zip(names[first:], launch.args[first:], strict=False))
    return launch.args[:first], {**rest, **launch.kwargs}


def _jit_function(fn: Any) -> Any:
    """The jitted function inside its wrappers (heuristics, autotuners)."""
    while not hasattr(fn, "device_caches") and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _facts(compiled: Any) -> StaticFacts:
    if "cubin" in compiled.asm:
        resources = cubin_resources(compiled.asm["cubin"])
    else:
        resources = code_object_resources(compiled.asm["amdgcn"])
    return StaticFacts(
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        shared_bytes=int(compiled.metadata.shared),
        num_warps=int(compiled.metadata.num_warps),
        binary_bytes=len(compiled.kernel),
    )


def _worst(one: StaticFacts, other: StaticFacts) -> StaticFacts:
    """The maximum of each fact; the sum of the binaries' sizes."""
    both = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    worst = StaticFacts(*(max(pair) for pair in both))
    return dataclasses.replace(worst, binary_bytes=one.binary_bytes + other.binary_bytes)


def _identity(launch: Launch, compiled: Any, tensors: Mapping[str, torch.Tensor]) -> str:
    """Everything that determines one launch: machine code, grid, options, run-time arguments."""
    metadata = compiled.metadata
    options = ("num_warps", "num_ctas", "shared", "launch_cooperative_grid", "launch_pdl")
    return canonical_json(
        {
            "code": code_hash(compiled.kernel),
            "grid": list(launch.grid),
            "options": {name: repr(getattr(metadata, name, None)) for name in options},
            "arguments": _runtime_arguments(launch, tensors),
        }
    )


def _runtime_arguments(launch: Launch, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The arguments that reach the device at launch; constexprs are part of the machine code."""
    arguments = {**dict(zip(launch.fn.arg_names, launch.args, strict=False)), **launch.kwargs}
    jitted = jitted_below(launch.fn, arguments)
    defaults = {param.name: param.default for param in jitted.params if param.has_default}
    arguments = {**defaults, **arguments}
    runtime = [param.name for param in jitted.params if not param.is_constexpr]
    names = {id(tensor): name for name, tensor in tensors.items()}
    return {name: _describe(arguments[name], names) for name in runtime if name in arguments}


def _view(tensor: Any, names: Mapping[int, str]) -> str:
    """The tensor that a view belongs to, and its offset."""
    base = getattr(tensor, "_base", None)
    return "" if base is None else f"{names.get(id(base), '')}+{tensor.storage_offset()}"


def _describe(value: Any, names: Mapping[int, str]) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_describe(item, names) for item in value)}]"
    if hasattr(value, "data_ptr"):
        strides = value.stride() if hasattr(value, "stride") else ()
        name = names.get(id(value)) or _view(value, names)
        return f"{name} {value.dtype} {tuple(value.shape)} {tuple(strides)}"
    if dataclasses.is_dataclass(value):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
        return f"{type(value).__name__}{_describe(list(parts), names)}"
    return type(value).__name__


def refusal(facts: StaticFacts, device: Device) -> str | None:
    """The limit that a launch with these facts exceeds, as a one-line message; None when it fits.

    Limits that the device's record does not state (0) are not checked.
    """
    threads = facts.num_warps * device.warp_size
    if 0 < device.shared_bytes < facts.shared_bytes:
        return (
            f"shared memory {facts.shared_bytes:,} B over the {device.shared_bytes:,} B "
            f"a block may use on {device.target}"
        )
    if threads > _MAX_THREADS:
        return f"{threads:,} threads over the {_MAX_THREADS:,} of a block on {device.target}"
    allocated = -(-facts.registers // _REGISTER_STEP) * _REGISTER_STEP
    if 0 < device.registers < allocated * threads:
        return (
            f"{allocated} registers x {threads:,} threads over the {device.registers:,} registers "
            f"of {device.target}"
        )
    return None
