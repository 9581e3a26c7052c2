"""The target of `tuner bench` and `tuner verify`: a kernel, workloads and a device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces import registry
from search_spaces.bound import BoundSpace
from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError, WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.near_names import did_you_mean
from search_spaces.recorded.recorded_kernel import RecordedKernel
from search_spaces.records import Device, Value, Workload
from tuner.campaign.tasks import kernel_named
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers import device as devices
from workers.job_records import KernelRef


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A kernel, some of its workloads and a device."""

    kernel: Kernel
    workloads: tuple[Workload, ...]
    device: Device
    #: The kind of runner that takes the jobs. `interpreter` where this machine has no such device:
    #: variants are then compiled for it and verified, and never timed.
    runner: str
    ref: KernelRef

    def space(self, workload: Workload) -> BoundSpace:
        """The kernel's search space for a workload on this device."""
        return guarded_calls.bind(self.kernel, workload, self.device)

    def check_size(self, workload: Workload) -> Workload | None:
        """The check size of a workload; None where it is the workload itself."""
        with guarded_calls.guard_call(self.kernel, "small_workload", workload):
            small = self.kernel.small_workload(workload)
        return None if small == workload else small


def bench_target(
    settings: Settings,
    base: Path,
    kernel: str,
    *,
    workloads: Sequence[str] | None = (),
    target: str | None = None,
    timed: bool = True,
) -> BenchTarget:
    """Resolve the command line's words for kernel, workloads and device; touches no device.

    kernel: a name, `module:object`, `file.py:object` or `recorded:FILE`. workloads: each either
    selects some of the kernel's own by dims, as `M=32 dtype=float16`, or gives all dims of another
    one; by default the kernel's first, with None all its own. target: `cuda`, `hip`, `cpu`,
    `cuda:90`...; by default the best device of this machine. timed: whether the device must be able
    to time. Raises `TunerError`.
    """
    found, kinds = pick_kernel(settings, base, kernel, target)
    device, runner = _place(found, kinds, target, timed)
    found = registry.for_device(found, device)
    chosen = pick_workloads(found, workloads)
    paths = (str(base.resolve()),)
    return BenchTarget(found, chosen, device, runner, KernelRef(found.spec, paths))


def pick_kernel(
    settings: Settings, base: Path, name: str, target: str | None
) -> tuple[Kernel, Sequence[str]]:
    """A kernel of the command line, and the kinds of device to look for, the preferred first."""
    check_target(target)
    likely = devices.assume_device([target] if target else [])
    found = kernel_named(name, settings.kernels, (str(base.resolve()),), likely)
    return found, _kinds(found, target)


def find_spec(
    name: str, kind: str, kernels: Mapping[str, Sequence[Kernel]], launch_hash: str = ""
) -> str:
    """The spec of a stored kernel: of declarations with its name, the last for the kind of device.

    kernels: declarations by name, which precede registered names. launch_hash: the stored identity;
    of several declarations, one that still has it comes first. Raises `TunerError`.
    """
    own = [kernel for kernel in kernels.get(name, ()) if kind in kernel.kinds]
    if len(own) > 1 and launch_hash:
        own = [each for each in own if each.launch_hash() == launch_hash] or own
    return own[-1].spec if own else registry.load(name).spec


def _place(
    kernel: Kernel, kinds: Sequence[str], target: str | None, timed: bool
) -> tuple[Device, str]:
    if isinstance(kernel, RecordedKernel):
        return kernel.device, kernel.device.kind
    for kind in kinds:
        here = devices.find_devices(kind)
        if target is None or target == kind:
            if here:
                return here[0], kind
        elif any(one.target == target for one in here):
            if here[0].target != target:
                raise TunerError(
                    f"the first {kind} device here is {here[0].name} ({here[0].target}), not "
                    f"{target}",
                    "hide the others, as with CUDA_VISIBLE_DEVICES",
                )
            return here[0], kind
    sought = target or " or ".join(kinds)
    for kind in kinds:
        backend = backend_kinds.spec(kind)
        if backend.stand_in and not timed:
            code = target if target and ":" in target else backend.usual_target
            return devices.offline(code), backend.stand_in
        if target and target != kind:
            backend.check_target(target)
    raise TunerError(
        f"kernel {kernel.name!r}: there is no {sought} device here to time it on",
        "`tuner workers list` shows the devices here; `tuner verify` needs none of that kind",
    )


def check_target(target: str | None) -> None:
    """Raise `TunerError` for a target of an unknown kind, before a kernel is imported."""
    known = backend_kinds.target_kinds()
    kind = (target or known[0]).partition(":")[0]
    if kind not in (*known, *backend_kinds.names()):
        raise TunerError(
            f"--target: unknown target {target!r}{did_you_mean(kind, known)}",
            f"targets are {', '.join(known)}, or a code target such as cuda:90",
        )


def _kinds(kernel: Kernel, target: str | None) -> Sequence[str]:
    """The kinds of device to look for, in order of preference."""
    if target is None:
        best = [kind for kind in backend_kinds.timed_kinds() if kind in kernel.kinds]
        return [*best, *(kind for kind in kernel.kinds if kind not in best)]
    kind = target.partition(":")[0]
    if kind not in kernel.kinds:
        raise TunerError(
            f"--target: kernel {kernel.name!r} runs on {', '.join(kernel.kinds)}, not on {target}",
            f"name one of {', '.join(kernel.kinds)}",
        )
    return [kind]


def pick_workloads(kernel: Kernel, texts: Sequence[str] | None) -> tuple[Workload, ...]:
    """The workloads that texts of the command line choose, as `bench_target` has them."""
    own = guarded_calls.workloads(kernel)
    if texts is None:
        return tuple(own)
    chosen: dict[Workload, None] = {}
    for text in texts:
        words = text.replace(",", " ").split()
        kept = [item for item in own if words and all(word in item.key.split() for word in words)]
        parsed = kept or [_parse_workload(kernel, own, text, words).in_order(own[0])]
        chosen.update(dict.fromkeys(parsed))
    found = tuple(chosen) or (own[0],)
    for workload in found:
        guarded_calls.check(kernel, workload)
    return found


def _parse_workload(
    kernel: Kernel, own: Sequence[Workload], text: str, words: Sequence[str]
) -> Workload:
    """A workload of the user's own; `words` must give every dim of the kernel's own workloads."""
    dims = dict(word.split("=", 1) for word in words if "=" in word)
    if len(dims) < max(1, len(words)):
        raise WorkloadError(
            f"--workload {text!r} is not a list of distinct dims",
            f"write them as {own[0].key!r}",
        )
    missing = [name for name in own[0] if name not in dims and name != "tolerance"]
    if missing:
        raise WorkloadError(
            f"--workload {text!r}: {kernel.name} lists none with these dims, and a workload of "
            f"your own also needs {', '.join(missing)}",
            f"its first is {own[0].key!r}; `tuner spaces show {kernel.spec}` lists all",
        )
    return Workload.of(**{name: parsed_value(dim) for name, dim in dims.items()})


def parsed_value(text: str) -> Value:
    """The text as a number, boolean or None where it is one (JSON or Python); else the text."""
    named: dict[str, Value] = {"True": True, "False": False, "None": None}
    if text in named:
        return named[text]
    try:
        value = json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | None) else text
