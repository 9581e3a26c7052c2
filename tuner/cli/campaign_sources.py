"""What `tuner run` tunes without config.yaml: captured calls, or one kernel as `file.py:object`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.cli.console import note
from tuner.cli.programs import add_import_path

if TYPE_CHECKING:
    from tuner.capturing.table import CapturedKernel
    from tuner.settings.sections import Settings


def with_calls(
    settings: Settings,
    file: Path,
    *,
    kernels: Sequence[str] = (),
    target: str | None = None,
    widen: bool = False,
) -> tuple[Settings, str]:
    """The settings with a campaign over the calls of a file, and the campaign's name.

    kernels: the names of the kernels to tune; all by default. Calls that cannot be tuned are noted
    and left out. Workers import the files that are written to a folder next to `file`.
    """
    from tuner.capturing.table import load_calls
    from tuner.settings.sections import Budget, CampaignConfig, TaskConfig

    add_import_path()
    calls = load_calls(file)
    places = dict.fromkeys(call.place or call.kernel for call in calls.records)
    names = {*places, *calls.names}
    for name in kernels:
        if name not in names:
            raise TunerError(
                f"--kernel {name}: {file} has no calls of it{did_you_mean(name, names)}",
                f"it has those of {', '.join(calls.names)}",
            )
    folder = file.resolve().with_name(f"{file.stem}_kernels")
    specs = []
    for place in places:
        captured = calls[place]
        if not kernels or captured.name in kernels or place in kernels:
            specs += _specs(captured, folder, widen=widen)
    if not specs:
        raise TunerError(
            f"{file}: none of its calls can be tuned", "the lines above say why for each"
        )
    campaign = CampaignConfig(
        tasks=[TaskConfig(kernel=spec) for spec in specs],
        targets=[target or "cuda"],
        budget=Budget(trials="auto"),
    )
    name = file.stem
    campaigns = {**settings.campaigns, name: campaign}
    return settings.model_copy(update={"campaigns": campaigns}), name


def _specs(captured: CapturedKernel, folder: Path, *, widen: bool) -> list[str]:
    """The spec of a kernel with those of its calls that can be tuned; empty without one."""
    from tuner.capturing.table import CapturedKernel

    for call in captured.calls:
        if call.problem:
            note(f"{call.kernel}: left out: {call.problem}")
    usable = [call for call in captured.calls if not call.problem]
    if not usable:
        return []
    folder.mkdir(exist_ok=True)
    try:
        tunable = CapturedKernel(usable, captured.contents)
        return [tunable.declare(widen=widen, folder=folder).spec]
    except TunerError as error:
        note(f"{captured.name}: left out: {error.message}")
        return []


def names_kernel(word: str | None) -> bool:
    """Whether a word names a kernel, or a file of kernels: names of campaigns have no colon."""
    return word is not None and (":" in word or word.endswith(".py"))


def with_kernel(
    settings: Settings,
    base: Path,
    spec: str,
    *,
    workloads: Sequence[str] = (),
    target: str | None = None,
) -> tuple[Settings, str]:
    """The settings with a campaign of one kernel, and the campaign's name.

    Its limits and strategy are the defaults of campaigns, which `tuner.tune` has too. workloads: as
    for `tuner bench`; by default all that the kernel lists. Raises `TunerError`.
    """
    from tuner.compare.targets import pick_kernel, pick_workloads
    from tuner.settings.sections import CampaignConfig, TaskConfig

    found, kinds = pick_kernel(settings, base, spec, target)
    chosen = pick_workloads(found, workloads or None)
    campaign = CampaignConfig(
        tasks=[TaskConfig(kernel=spec, workloads=[each.as_dict() for each in chosen])],
        targets=[target] if target else list(kinds),
    )
    campaigns = {**settings.campaigns, spec: campaign}
    return settings.model_copy(update={"campaigns": campaigns}), spec
