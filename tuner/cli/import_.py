"""`tuner import`: keep configs from other tools for searches to try first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import ConfigOption, configured_kernels, settings_of
from tuner.cli.console import note

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from search_spaces.records import Workload
    from tuner.integrations.priors import Prior


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Tables of vLLM or SGLang under their own names, T4 results, Kernel Tuner caches.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    kernel: Annotated[
        str | None, typer.Option(help="The kernel, where the file does not name it.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="The workload, where the file does not have it, as 'M=4096 N=4096 dtype=float16'."
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Keep configs from other tools: searches try them first, and library tables are the default.

    Nothing is stored unless all files can be used. The row of a library's table for the device of a
    task becomes the task's default config, so verdicts compare with it.
    """
    from tuner.integrations import importers, priors

    settings, base = settings_of(config)
    dims = _workload(workload)
    found = [prior for path in files for prior in importers.import_priors(path, kernel or "", dims)]
    known = {name: kernels[-1] for name, kernels in configured_kernels(settings, base).items()}
    for prior in found:
        _check(prior, known)
    folder = base / settings.paths.priors
    for prior, line in zip(found, priors.describe(found), strict=True):
        print(inert(priors.write(folder, prior)))
        note(line)


def _workload(text: str | None) -> Workload | None:
    from search_spaces.records import Workload
    from tuner.compare.targets import parsed_value

    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words or not all("=" in word for word in words):
        raise TunerError(
            f"--workload {text!r} is not a list of dims", "write them as 'M=4096 dtype=float16'"
        )
    pairs = (word.split("=", 1) for word in words)
    return Workload.from_mapping({name: parsed_value(value) for name, value in pairs})


def _check(prior: Prior, known: dict[str, Kernel]) -> None:
    """Refuse a kernel that does not exist, a workload it does not take, and foreign parameters."""
    from search_spaces import registry
    from search_spaces.declaration import guarded_calls
    from search_spaces.records import Workload

    kernel = known.get(prior.kernel) or registry.load(prior.kernel)
    if prior.size_dim:
        return
    workload = Workload.from_mapping(prior.dims)
    guarded_calls.check(kernel, workload)
    names = {parameter.name for parameter in kernel.space(workload).parameters}
    for configs in prior.rows.values():
        for config in configs:
            if foreign := sorted(set(config) - names):
                raise TunerError(
                    f"{prior.source}: kernel {prior.kernel} has no parameter {foreign[0]}",
                    f"its parameters are {', '.join(sorted(names))}; rename them in the file",
                )
