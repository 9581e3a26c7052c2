"""`tuner best`: the best known config of every task, over all runs of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.errors import FIRST_RUN, NothingStoredError
from search_spaces.near_names import did_you_mean
from tuner.cli.campaign_sources import names_kernel
from tuner.cli.command_context import (
    ConfigOption,
    WorkloadsOption,
    complete_kernels,
    configured_kernels,
    list_run_kernels,
    settings_of,
    store_of,
)
from tuner.cli.console import READABLE, Format, FormatOption, emit, note
from tuner.views.column import Listing
from tuner.views.outcomes import STATES, WINNERS, Winner, list_winners

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import ConfirmedTask, TaskInfo
    from search_spaces.kernel import Kernel
    from tuner.settings.sections import Settings


def best(
    kernel: Annotated[
        str | None,
        typer.Argument(
            help="Only this kernel: its name, or file.py:object.",
            metavar="KERNEL",
            autocompletion=complete_kernels,
        ),
    ] = None,
    workload: WorkloadsOption = None,
    device: Annotated[
        str | None,
        typer.Option(help="Only devices of this kind, target or name: cuda, cuda:90, H200."),
    ] = None,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show the best known config of every task, over all runs.

    It is what the newest confirmation of the present kernel ships. Where only older code was
    confirmed, its result is shown and marked as outdated. Exits with 1 if nothing is known.
    """
    settings, base = settings_of(config)
    # A filter may leave out sizes of a range: then no parts can be told.
    parts = style in READABLE and not workload
    try:
        with store_of(settings) as store:
            rows, missing = _list_known(
                store, settings, base, kernel, workload or (), device, parts
            )
            again = _list_commands(store, settings, [row for row in rows if row.why])
    except NothingStoredError:
        rows, missing, again = [], f"no runs here: {FIRST_RUN}", []
    if rows or style is not Format.TABLE:
        found = Listing(STATES, rows)
        # What no row has needs no column.
        shown = [each for each in STATES if style not in READABLE or found.is_filled(each)]
        emit(rows, (*WINNERS, *shown), style)
    if not rows:
        note(missing)
        raise typer.Exit(1)
    outdated = sum(row.state == "outdated" for row in rows)
    if outdated:
        note(f"{outdated} of {len(rows)} outdated; measured again by {', '.join(again)}")


def _list_commands(store: Store, settings: Settings, rows: Sequence[Winner]) -> list[str]:
    """The commands that tune again what is listed."""
    runs = {row.task.run_id for row in rows}
    names = dict.fromkeys(store.run(run_id).campaign for run_id in sorted(runs))
    known = [name for name in names if names_kernel(name) or name in settings.campaigns]
    return [f"`tuner run {quote(name)}`" for name in known] or ["`tuner run`"]


def _list_known(
    store: Store,
    settings: Settings,
    base: Path,
    kernel: str | None,
    workloads: Sequence[str],
    device: str | None,
    parts: bool,
) -> tuple[list[Winner], str]:
    """The rows of the listing, and a line for the case that there are none.

    parts: whether the sizes of a range are shown as its parts.
    """
    confirmed = store.list_confirmed()
    present = _PresentKernels(settings, base, kernel, list_run_kernels(store, base))
    name = present.name_of(kernel)
    found = [
        task
        for task in confirmed
        if (name is None or task.kernel == name)
        and all(word in task.workload.split() for text in workloads for word in text.split())
        and (device is None or _is_device(task, device))
    ]
    chosen = {task.task_id: (task, why) for task, why in _best(found, present)}

    alike = Counter((task.kernel, task.workload, task.device) for task, _ in chosen.values())

    def describe_state(info: TaskInfo) -> dict[str, str]:
        task, why = chosen[info.task_id]
        state = "outdated" if why else "current"
        several = alike[task.kernel, task.workload, task.device] > 1
        label = present.label_of(task) if several else task.kernel
        return {"kernel": label, "state": state, "why": why}

    tasks = store.tasks_by_number(list(chosen))
    rows = list_winners(list(tasks.values()), parts=parts, more=describe_state)
    remedy = "`tuner status` says why" if store.list_kernels() else FIRST_RUN
    return rows, _nothing(confirmed, kernel, name, workloads, device, remedy)


def _nothing(
    confirmed: Sequence[ConfirmedTask],
    given: str | None,
    kernel: str | None,
    workloads: Sequence[str],
    device: str | None,
    remedy: str,
) -> str:
    from search_spaces import registry

    names = sorted({task.kernel for task in confirmed})
    if kernel is not None and kernel not in names:
        known = registry.available()
        near = "" if kernel in known else did_you_mean(kernel, dict.fromkeys([*names, *known]))
        if given != kernel:
            near = f"; `tuner run {quote(f'{given}')}` measures it"
        return f"no confirmed result of kernel {kernel!r}{near or '; `tuner run` measures it'}"
    filters = [f"--workload '{text}'" for text in workloads]
    filters += [f"--device {device}"] if device else []
    if names and filters:
        return f"no confirmed result matches {' '.join(filters)}"
    return f"no run has confirmed a result yet: {remedy}"


def _is_device(task: ConfirmedTask, text: str) -> bool:
    return text in (task.device_kind, task.target) or text.casefold() in task.device.casefold()


def _best(
    tasks: Iterable[ConfirmedTask], present: _PresentKernels
) -> list[tuple[ConfirmedTask, str]]:
    """One result per kernel, workload and device, with the reason if it is outdated.

    tasks: newest first. The newest result of the present code, or else the newest one. Several
    present kernels of one name have a result each.
    """
    chosen: dict[tuple[str, str, str], dict[str, tuple[ConfirmedTask, str]]] = {}
    for task in tasks:
        found = chosen.setdefault((task.kernel, task.workload, task.fingerprint), {})
        if found and "" not in found and present.is_only(task.kernel):
            continue
        why = present.why_outdated(task)
        if not why:
            found.pop("", None)
            found.setdefault(present.spec_of(task), (task, why))
        elif not found:
            found[""] = task, why
    return [chosen[key][spec] for key in sorted(chosen) for spec in sorted(chosen[key])]


@dataclass(slots=True)
class _PresentKernels:
    """The kernels as they are now, imported when a result of theirs is judged."""

    settings: Settings
    base: Path
    #: The kernel that the command line names, as a name or as a spec.
    given: str | None
    #: The kernels that runs were of without a campaign, as specs.
    recorded: Sequence[str]
    _known: Mapping[str, Sequence[Kernel]] | None = None
    _registered: dict[str, Kernel] = field(default_factory=dict)

    def name_of(self, text: str | None) -> str | None:
        """The kernel's name where the text is `file.py:object`, else the text itself."""
        if text is None or not names_kernel(text):
            return text
        from search_spaces import registry

        return registry.load_undecided(text, (str(self.base),)).name

    def why_outdated(self, task: ConfirmedTask) -> str:
        """Why a stored result is not one of the present code and toolchain; empty if it is."""
        kernels = self._of(task.kernel)
        if not kernels:
            return "no kernel of this name is configured"
        reasons = [_explain_change(task, kernel) for kernel in kernels]
        if all(reasons):
            return reasons[0]
        return _other_toolchain(task)

    def is_only(self, name: str) -> bool:
        """Whether at most one present kernel has this name."""
        return len(self._of(name)) < 2

    def spec_of(self, task: ConfirmedTask) -> str:
        """The spec of the present kernel that a result is of; empty for older code."""
        found = (
            kernel.spec for kernel in self._of(task.kernel) if not _explain_change(task, kernel)
        )
        return next(found, "")

    def label_of(self, task: ConfirmedTask) -> str:
        """The kernel's name, with its place where several present kernels have this name."""
        spec = "" if self.is_only(task.kernel) else self.spec_of(task)
        place = spec.replace(f"{self.base.resolve()}/", "")
        return f"{task.kernel} ({place})" if place else task.kernel

    def _of(self, name: str) -> Sequence[Kernel]:
        from search_spaces import registry

        if self._known is None:
            more = [self.given] if self.given and ":" in self.given else []
            self._known = configured_kernels(self.settings, self.base, [*more, *self.recorded])
        if name in registry.available() and name not in self._registered:
            self._registered[name] = registry.load(name)
        registered = [self._registered[name]] if name in self._registered else []
        return [*self._known.get(name, ()), *registered]


def _explain_change(task: ConfirmedTask, kernel: Kernel) -> str:
    if task.launch_hash != kernel.launch_hash():
        return "the kernel's code has changed"
    return ""


def _other_toolchain(task: ConfirmedTask) -> str:
    from tuner.runtime._device import version
    from workers import backend_kinds

    if backend_kinds.spec_of_stored(task.device_kind).replayed:
        return ""
    package = "triton" if task.triton else "torch"
    measured, installed = getattr(task, package), version(package)
    if measured and installed and measured != installed:
        return f"measured with {package} {measured}; {installed} is installed"
    return ""
