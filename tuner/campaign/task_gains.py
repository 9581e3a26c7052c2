"""What tuning each task of a campaign will probably save, which decides the order of its tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from results_db.stored_records import ConfirmedTask
from tuner.campaign.tasks import ScheduledTask, estimate_s

#: The share of a call's time that tuning saves, where nothing tuned tells.
_USUAL = 0.1


def expect_gains(
    tasks: Sequence[ScheduledTask], list_history: Callable[[], Sequence[ConfirmedTask]]
) -> list[float]:
    """The seconds a day that tuning each task will probably save; 0 for one without a load.

    list_history: confirmed tasks, the newest first. A call takes what it took last, and tuning
    saves the share of it that it has usually saved over the default config: of this kernel on the
    device, else of any kernel there. It saves nothing more where this very code was tuned under
    these libraries.
    """
    saved: dict[tuple[str, str], list[float]] = defaultdict(list)
    last: dict[tuple[str, str, str], ConfirmedTask] = {}
    loaded = any(item.requested.load for item in tasks)
    for one in list_history() if loaded else ():
        last.setdefault((one.kernel, one.workload, one.fingerprint), one)
        for kernel in ("", one.kernel) if one.default_us else ():
            ratio = one.median_us / (one.default_us or one.median_us)
            saved[kernel, one.fingerprint].append(max(0.0, 1 - ratio))

    def expect(item: ScheduledTask) -> float:
        kernel, workload, load = item.requested.kernel, item.requested.workload, item.requested.load
        if load is None:
            return 0.0
        device, tools = item.device.fingerprint, item.toolchain
        known = last.get((kernel.name, workload.key, device))
        if known and (known.launch_hash, known.torch, known.triton) == (
            kernel.launch_hash(), tools.torch, tools.triton,
        ):  # fmt: skip
            return 0.0
        present_s = load.recorded_s
        if present_s is None:
            each_s = known.median_us / 1e6 if known else estimate_s(kernel, workload)
            present_s = load.calls * each_s
        shares = saved.get((kernel.name, device)) or saved.get(("", device)) or [_USUAL]
        return present_s * median(shares)

    return [expect(item) for item in tasks]
