"""Tune the missing tables of a library and write the folder that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_db import Store
from results_db.stored_records import RunStatus
from search_spaces import registry
from search_spaces.errors import FindingError, TunerError
from search_spaces.kernel import Kernel
from search_spaces.recorded.recorded_kernel import RecordedKernel
from search_spaces.records import Workload
from tuner import tables
from tuner.campaign import Control, RunOptions, RunOutcome, run_campaign
from tuner.library_doctor.states import Examined
from tuner.progress import ProgressCallback
from tuner.settings.sections import CampaignConfig, Settings
from workers import backend_kinds

CAMPAIGN = "library-tables"


@dataclass(frozen=True, slots=True)
class Fixed:
    """What was tuned and written."""

    run: RunOutcome
    paths: tuple[Path, ...]


def fix(
    settings: Settings,
    base: Path,
    missing: Sequence[Examined],
    device: str,
    sizes: Sequence[int],
    folder: Path,
    *,
    kernels: Mapping[str, Sequence[Kernel]],
    trials: int | None = None,
    control: Control | None = None,
    on_progress: ProgressCallback | None = None,
) -> Fixed:
    """Tune every row of the missing tables on this machine's device, and write their files.

    sizes: the rows. kernels: declarations by name that precede registered names. Raises
    `TunerError` where the device is not here, or where no kernel of ours tunes the tables.
    """
    campaign = _campaign(missing, device, sizes, kernels, trials)
    run = run_campaign(
        settings.model_copy(update={"campaigns": {**settings.campaigns, CAMPAIGN: campaign}}),
        CAMPAIGN,
        options=RunOptions(report=False, export=False, base=base),
        on_progress=on_progress,
        control=control,
    )
    if run.status != RunStatus.FINISHED:
        raise FindingError(
            f"run {run.run_id} is {run.status}; no table was written",
            "rerun the same command to resume it",
        )
    library = missing[0].adapter.library
    with Store.open(settings.database.url) as store:
        written = tables.export(store, run.run_id, folder, library)
    return Fixed(run, tuple(written))


def _campaign(
    missing: Sequence[Examined],
    device: str,
    sizes: Sequence[int],
    kernels: Mapping[str, Sequence[Kernel]],
    trials: int | None,
) -> CampaignConfig:
    """One task line per kernel, with the workloads of all rows."""
    wanted: dict[tuple[str, Workload], None] = {}
    for one in missing:
        if one.shape is not None:
            for size in sizes:
                wanted.update(dict.fromkeys(one.adapter.workloads(one.shape, size)))
    if not wanted:
        raise TunerError(
            "no kernel here tunes the missing tables",
            "some quantized experts have none; tune them with the library's own script",
        )
    lines: dict[str, dict[str, Any]] = {}
    for name, workload in wanted:
        spec, target = _place(name, workload, device, kernels)
        line = lines.setdefault(spec, {"kernel": spec, "targets": [target], "workloads": []})
        line["workloads"].append(workload.as_dict())
    budget = {"trials": trials or "auto"}
    return CampaignConfig.model_validate({"tasks": list(lines.values()), "budget": budget})


def _place(
    name: str, workload: Workload, device: str, kernels: Mapping[str, Sequence[Kernel]]
) -> tuple[str, str]:
    """The spec of the kernel for a workload, and the target that the device is here."""
    for kernel in kernels.get(name, ()):
        if not isinstance(kernel, RecordedKernel) or kernel.device.name != device:
            continue
        if workload in kernel.workloads():
            return kernel.spec, kernel.device.kind
    for backend in backend_kinds.specs():
        if backend.accelerator and any(one.name == device for one in backend.find_devices()):
            own = [one for one in kernels.get(name, ()) if backend.kind in one.kinds]
            return (own[-1] if own else registry.load(name)).spec, backend.kind
    raise TunerError(
        f"there is no {device} here to tune on",
        "run --fix on a machine with that device; without --fix the tables are only listed",
    )
