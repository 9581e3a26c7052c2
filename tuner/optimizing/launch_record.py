"""The Triton kernels of libraries that a step or a program launches, as calls that `tune` takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from search_spaces.errors import TunerError
from search_spaces.records import Workload
from search_spaces.shape_tensor import torch_dtype
from tuner import runtime
from tuner.capturing import Calls, CapturedKernel
from tuner.capturing.call_configs import run
from tuner.capturing.call_kernel import CallKernel
from tuner.capturing.call_records import Call
from tuner.capturing.declared import device_here, is_main
from tuner.optimizing.call_times import CallTime, device_seconds
from tuner.runtime._given_tables import place_in

#: Where the kernels of operators are: these are calls of operators.
_OURS = ("search_spaces.", "tuner.")


def find_placed(folder: Path) -> list[runtime.Table]:
    """The tables of a folder that name the place of their kernel in a library."""
    tables = map(runtime.load, sorted(folder.glob("*.json")))
    return [table for table in tables if table is not None and place_in(table)]


def time_launches(launched: Calls, tables: Path, runs: int) -> list[CallTime]:
    """The kinds of recorded launches with their time; one that cannot be tuned says why.

    tables: the folder whose entries need no tuning. runs: of the step, in which these launches were
    counted.
    """
    kinds: dict[tuple[str, Workload | str], tuple[CallKernel | None, list[Call]]] = {}
    for captured in launched:
        (call,) = captured.calls
        if not call.place.startswith(_OURS):
            kernel, what = _declare(captured)
            kinds.setdefault((call.place or call.kernel, what), (kernel, []))[1].append(call)
    placed = find_placed(tables)
    found = []
    for (place, what), (kernel, calls) in kinds.items():
        count = max(1, round(sum(call.count for call in calls) / runs))
        seconds = sum(call.gpu_us or 0.0 for call in calls) / 1e6 / runs
        unknown = CallTime("", {}, count, seconds, 1.0, True, f"{what}", place)
        found.append(_time_kind(unknown, kernel, placed) if kernel else unknown)
    return found


def _declare(captured: CapturedKernel) -> tuple[CallKernel | None, Workload | str]:
    """The kernel of one call with its workload; or why it cannot be tuned, in a clause."""
    file = captured.place.rpartition(":")[0]
    if file.endswith(".py") and not is_main(file):
        # An import would run the script.
        return None, "cannot be tuned: a script defines it; tables reach kernels of modules"
    try:
        kernel = captured.declare(widen=True)
    except TunerError as error:
        why = error.message.removeprefix(f"captured kernel {captured.name}: ")
        return None, f"cannot be tuned: {why}"
    return kernel, kernel.workloads()[0]


def _time_kind(recorded: CallTime, kernel: CallKernel, tables: Sequence[runtime.Table]) -> CallTime:
    """The same, of a call that can run again and be tuned."""
    (workload,) = kernel.workloads()
    entry, seconds = _find_entry(tables, kernel, workload), _time_launch(kernel, workload)
    return replace(
        recorded,
        kernel=kernel.spec,
        dims=workload.as_dict(),
        seconds=recorded.count * seconds or recorded.seconds,
        gain=entry.speedup_over_default or 1.0 if entry else 1.0,
        known=entry is not None,
        reason="an entry for this call" if entry else "no entry for this call",
    )


def _find_entry(
    tables: Sequence[runtime.Table], kernel: CallKernel, workload: Workload
) -> runtime.Entry | None:
    """The entry from which a call would be launched, if a table has it."""
    code, device = frozenset(kernel.kernel_hashes()), runtime.current_device()
    for table in tables:
        if place_in(table) != kernel.place or not runtime.is_for_device(table, device):
            continue
        hit = table.find(workload.as_dict())
        if hit and hit.how == "exact" and not runtime.staleness(table, code):
            return hit.entry
    return None


def _time_launch(kernel: CallKernel, workload: Workload) -> float:
    """Seconds of one launch with the library's config on values like those of the call; 0 where it
    fails."""
    with suppress(Exception):  # the time only ranks calls
        device, default = device_here(), kernel.call(workload).default
        assert default is not None
        inputs = kernel.make_inputs(workload, 0, device)
        outputs = {
            name: torch.empty(each.shape, dtype=torch_dtype(each.dtype), device=device)
            for name, each in kernel.outputs(workload).items()
        }
        launches = kernel.launches(workload, default, {**outputs, **inputs})
        return device_seconds(lambda: list(map(run, launches)))
    return 0.0
