"""`tuner demo`: a campaign over recorded spaces of an H200, which needs no GPU."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import command_started_s, flag, settings_of
from tuner.cli.console import Format, FormatOption, note
from tuner.cli.run import run_and_print

#: The package's folder of recordings, and its name in the folder of the demo.
_RECORDINGS = "h200"
#: An older recording of a workload that another one holds with more configs.
_OLDER = "matmul_4096x4096x4096_bf16.space.json"


def demo(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")] = Path(
        "tuner-demo"
    ),
    fresh: Annotated[bool, flag("--fresh", help="Replay what the folder has results for.")] = False,
    quiet: Annotated[
        bool, flag("--quiet", "-q", help="Show no progress and no table of winners.")
    ] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Tune 16 workloads whose spaces were recorded on an NVIDIA H200; no GPU is needed.

    DIR gets the recordings, a config.yaml, the database and the report.
    """
    try:
        config = _write_campaign(folder)
    except OSError as error:
        raise TunerError(
            f"cannot write {error.filename or folder}: {error.strerror}", "name another folder"
        ) from None
    # The demo leaves a database and a cluster that the environment names alone.
    overrides = {
        "database.url": f"sqlite:///{folder.absolute() / 'results' / 'tuner.db'}",
        "pool.kind": "local",
    }
    settings, base = settings_of(config, overrides)
    from tuner.campaign import RunOptions

    options = RunOptions(fresh=fresh, export=False, started_s=command_started_s(), base=base)
    run_and_print(settings, "demo", options, style, quiet=quiet)
    note(f"next: cd {folder} && tuner best, or `tuner show`, `tuner trials`, `tuner run --fresh`")


def _write_campaign(folder: Path) -> Path:
    """Write what is missing of the folder's recordings and config.yaml; returns the latter."""
    (folder / _RECORDINGS).mkdir(parents=True, exist_ok=True)
    text = files("tuner").joinpath("templates", "demo.yaml").read_text("utf-8")
    packaged = files("search_spaces").joinpath("recorded", _RECORDINGS)
    for each in sorted(packaged.iterdir(), key=lambda each: each.name):
        if each.name == _OLDER:
            continue
        copy = folder / _RECORDINGS / each.name
        if not copy.exists():
            copy.write_bytes(each.read_bytes())
        text += f"      - kernel: recorded:{_RECORDINGS}/{each.name}\n"
    config = folder / "config.yaml"
    if not config.exists():
        config.write_text(text, "utf-8")
    return config
