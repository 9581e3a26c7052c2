"""Options, progress and columns that `tuner bench` and `tuner verify` share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.command_context import complete_kernels, configured_kernels, flag
from tuner.cli.console import note
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from results_db.run_comparison import TaskComparison
    from tuner.compare import Variant
    from tuner.settings.sections import Settings

SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        "-c",
        envvar="TUNER_CONFIG",
        help="The farm's configuration file; by default config.yaml in this folder.",
        show_default=False,
    ),
]
KernelArgument = Annotated[
    str,
    typer.Argument(
        help="A name, module:object, file.py:object.",
        metavar="KERNEL",
        autocompletion=complete_kernels,
    ),
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        help="best (the database's winner), default, a JSON object, or a file with a config or an "
        "exported table; may be repeated.",
        metavar="best|default|JSON|FILE",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        help="The kernel's workloads with these dims, as 'M=32 dtype=float16', or all dims of a "
        "workload of your own; may be repeated. By default the kernel's first.",
        show_default=False,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", "--device", help="cuda, hip, cpu or cuda:90; by default the best device here."
    ),
]
QuietOption = Annotated[bool, flag("--quiet", "-q", help="Show no progress.")]


def remeasure(
    settings: Settings,
    base: Path,
    found: Sequence[TaskComparison],
    *,
    quiet: bool,
    drifts: bool = False,
) -> list[TaskComparison]:
    """The comparisons, with both configs measured in one pass where that is possible here."""
    from tuner import compare

    kernels = configured_kernels(settings, base)
    with show_progress(not quiet) as on_progress:
        return compare.remeasure(settings, base, found, kernels, on_progress, drifts=drifts)


def note_origins(chosen: Iterable[Sequence[Variant]]) -> None:
    """Print caveats about the origin of configs, to stderr."""
    for variants in chosen:
        for variant in variants:
            if variant.note:
                note(variant.note)
