"""`tuner bundle`: tables and compiled kernels in one folder, for machines that compile nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.console import Format, FormatOption, emit_record, note, say
from tuner.cli.variant_options import QuietOption

_SHOWN = 8


def bundle(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Tables, calls of `tuner capture -o`, records of TUNER_RECORD (files or folders), "
            "`ops` for the tables that come with tuner, declarations of kernels, and folders of "
            "Triton's cache.",
        ),
    ],
    target: Annotated[
        str, typer.Option("--for", metavar="TARGET", help="The cards it is for, such as cuda:90.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ] = Path("bundle"),
    wheel: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Write a wheel of it, too, beside the folder."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="How many compile at a time; 0: one for each processor.")
    ] = 0,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Compile what calls need into a folder, from which `TUNER_BUNDLE` or `tuner.load_bundle` runs.

    No GPU is needed, but a C compiler and the Python, torch and Triton of the machines that will
    load it. Those need no compiler.
    """
    from tuner.bundling.building import build_all
    from tuner.bundling.bundle_sources import read_sources
    from tuner.bundling.writing import check_place, write_bundle, write_wheel
    from tuner.cli.programs import add_import_path

    add_import_path()
    check_place(output.absolute(), target)
    found = read_sources(sources, target)
    variants = list(found.variants.values())
    if not quiet:
        note(f"compiling {len(variants)} configs for {target}")
    built = build_all(variants, found.compiled, processes)
    facts = write_bundle(output.absolute(), found, built)
    packed = None if wheel is None else f"{write_wheel(output.absolute(), wheel)}"
    left_out = [*found.left_out, *built.failed]
    if style is not Format.TABLE:
        known = {"folder": f"{output}", "wheel": packed, **facts, "left_out": left_out}
        emit_record(known, style)
        return
    for line in left_out[:_SHOWN]:
        note(f"left out: {line}")
    if len(left_out) > _SHOWN:
        note(f"left out: {len(left_out) - _SHOWN} more, which --format json lists")
    size = f"{facts['bytes'] / 1e6:.1f} MB"
    say(f"{packed or output}: {facts['kernels']} kernels and {facts['tables']} tables, {size}")
