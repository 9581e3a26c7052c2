"""All baselines of a kernel: its own, and those that installed packages add.

A package adds a baseline by an entry point of the group `tuner.baselines`, whose name is that of
the baseline: a function of the kernel's name and a workload that returns what
`Kernel.baselines` has, a function from the inputs to the outputs by name, or None for a kernel or a
workload that it does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from search_spaces.errors import KernelError
from search_spaces.kernel import Kernel
from search_spaces.plugins import PluginGroup
from search_spaces.records import Workload
from search_spaces.tensors import Tensors

Baseline: TypeAlias = Callable[[Tensors], Tensors]

BASELINES = PluginGroup("tuner.baselines", "baseline", {}, KernelError)


def list_baselines(kernel: Kernel, workload: Workload) -> Mapping[str, Baseline]:
    """The baselines of a kernel for a workload, by name; a kernel's own come before plug-ins.

    Recorded kernels have those of their recording alone. Raises `KernelError` for a plug-in that
    cannot be imported, fails, or returns something else than a function or None.
    """
    found = dict(kernel.baselines(workload))
    for name in _plugin_names(kernel):
        if name not in found and (baseline := _ask(name, kernel, workload)) is not None:
            found[name] = baseline
    return found


def find_baseline(kernel: Kernel, workload: Workload, name: str) -> Baseline:
    """The baseline of that name, as `list_baselines` has it; no other plug-in is loaded.

    Raises `KernelError` as well where there is none.
    """
    own = kernel.baselines(workload)
    if name in own:
        return own[name]
    found = _ask(name, kernel, workload) if name in _plugin_names(kernel) else None
    if found is None:
        raise KernelError(
            f"kernel {kernel.name} has no baseline {name!r} for {workload.key}",
            f"install the package that registers it under the entry point group {BASELINES.group}",
        )
    return found


def is_compiled(name: str) -> bool:
    """Whether `torch.compile` makes a baseline, which its name begins with then."""
    return name.startswith("compile")


def _plugin_names(kernel: Kernel) -> tuple[str, ...]:
    return () if "simulated" in kernel.kinds else BASELINES.names()


def _ask(name: str, kernel: Kernel, workload: Workload) -> Baseline | None:
    offer = BASELINES.load(name)
    if not callable(offer):
        raise BASELINES.unusable(name, f"is a {type(offer).__name__}, not a function")
    try:
        found: object = offer(kernel.name, workload)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BASELINES.unusable(name, f"fails for {kernel.name} ({reason})") from error
    if found is None:
        return None
    if callable(found):
        baseline: Baseline = found
        return baseline
    raise BASELINES.unusable(
        name, f"returns a {type(found).__name__} for {kernel.name}, not a function or None"
    )
