"""What is to be looked at: a kernel, its workloads, and the device of this machine it runs on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from search_spaces import registry
from search_spaces.bound import BoundSpace
from search_spaces.declaration import calls
from search_spaces.errors import TunerError, WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.recorded.kernel import RecordedKernel
from search_spaces.records import Device, Value, Workload
from tuner.campaign.tasks import kernel_named
from tuner.settings.models import Settings
from workers import device as devices
from workers.records import KernelRef

#: Of several kinds a kernel runs on, the first that is here; and what stands in for none.
_PREFERRED = ("cuda", "hip", "cpu")
_OFFLINE = {"cuda": "cuda:90", "hip": "hip:gfx942"}
_TARGETS = (*_PREFERRED, "simulated")


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A kernel, some of its workloads and a device.

    runner: the kind of the runner that takes its jobs; `interpreter` where no such device is here,
    so that variants are compiled for it and verified, never timed.
    """

    kernel: Kernel
    workloads: tuple[Workload, ...]
    device: Device
    runner: str
    ref: KernelRef

    def space(self, workload: Workload) -> BoundSpace:
        return calls.bind(self.kernel, workload, self.device)

    def odd(self, workload: Workload) -> Workload | None:
        """The odd size a variant must be right on as well, if that is another one."""
        with calls.asking(self.kernel, "small_workload", workload):
            small = self.kernel.small_workload(workload)
        return None if small == workload else small


def subject(
    settings: Settings,
    base: Path,
    kernel: str,
    *,
    workloads: Sequence[str] = (),
    target: str | None = None,
    timed: bool = True,
) -> BenchTarget:
    """The subject that people's words name; touches no device.

    kernel: a name, `module:object`, `file.py:object` or `recorded:FILE`. workloads: each either
    words that choose some of the kernel's own, as `M=32 dtype=float16`, or all dims of another;
    by default the kernel's first. target: `cuda`, `hip`, `cpu`, `cuda:90`...; by default the best
    device here. timed: whether a device is needed that can time. Raises `TunerError`.
    """
    paths = (str(base.resolve()),)
    likely = devices.assumed([target] if target else ["cuda"])
    found = kernel_named(kernel, settings.kernels, paths, likely)
    device, runner = _place(found, target, timed)
    found = registry.for_device(found, device)
    chosen = _workloads(found, workloads)
    return BenchTarget(found, chosen, device, runner, KernelRef(found.spec, paths))


def _place(kernel: Kernel, target: str | None, timed: bool) -> tuple[Device, str]:
    kinds = _kinds(kernel, target)
    if isinstance(kernel, RecordedKernel):
        return kernel.device, "simulated"
    for kind in kinds:
        here = devices.found(kind)
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
    wanted = target or " or ".join(kinds)
    for kind in kinds:
        if kind in _OFFLINE and not timed:
            code = target if target and ":" in target else _OFFLINE[kind]
            return devices.offline(code), "interpreter"
        if target and target != kind and kind in _OFFLINE:
            devices.offline(target)
    raise TunerError(
        f"kernel {kernel.name!r}: there is no {wanted} device here to time it on",
        "`tuner workers list` shows those that are; `tuner verify` compiles for one that is not",
    )


def _kinds(kernel: Kernel, target: str | None) -> Sequence[str]:
    """The kinds of device to look for, the best first."""
    if target is None:
        known = [kind for kind in _PREFERRED if kind in kernel.kinds]
        return [*known, *(kind for kind in kernel.kinds if kind not in known)]
    kind = target.partition(":")[0]
    if kind not in (*_TARGETS, *kernel.kinds):
        near = get_close_matches(kind, _TARGETS, n=1)
        raise TunerError(
            f"--target: unknown target {target!r}"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            f"targets are {', '.join(_TARGETS)}, or a code target such as cuda:90",
        )
    if kind not in kernel.kinds:
        raise TunerError(
            f"--target: kernel {kernel.name!r} runs on {', '.join(kernel.kinds)}, not on {target}",
            f"name one of {', '.join(kernel.kinds)}",
        )
    return [kind]


def _workloads(kernel: Kernel, texts: Sequence[str]) -> tuple[Workload, ...]:
    own = calls.workloads(kernel)
    chosen: dict[Workload, None] = {}
    for text in texts:
        words = text.replace(",", " ").split()
        kept = [item for item in own if words and all(word in item.key.split() for word in words)]
        chosen.update(dict.fromkeys(kept or [_written(kernel, own, text, words)]))
    found = tuple(chosen) or (own[0],)
    for workload in found:
        calls.check(kernel, workload)
    return found


def _written(kernel: Kernel, own: Sequence[Workload], text: str, words: Sequence[str]) -> Workload:
    """The workload whose dims the words give, all of those that the kernel's own have."""
    dims = dict(word.split("=", 1) for word in words if "=" in word)
    if len(dims) < max(1, len(words)):
        raise WorkloadError(
            f"--workload {text!r} is not made of dims, each once",
            f"write them as {own[0].key!r}",
        )
    missing = [name for name in own[0] if name not in dims and name != "tolerance"]
    if missing:
        raise WorkloadError(
            f"--workload {text!r}: {kernel.name} lists none with these dims, and for one of your "
            f"own {', '.join(missing)} is missing",
            f"its first is {own[0].key!r}; `tuner spaces show {kernel.spec}` lists all",
        )
    return Workload.of(**{name: _value(dim) for name, dim in dims.items()})


def _value(text: str) -> Value:
    """A number, truth or null where the text is one, also as `Workload.key` has it; else text."""
    named: dict[str, Value] = {"True": True, "False": False, "None": None}
    if text in named:
        return named[text]
    try:
        value = json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | None) else text
