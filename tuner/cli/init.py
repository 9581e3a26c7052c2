"""`tuner init`: a first config.yaml and an example kernel."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import flag
from tuner.cli.console import note

#: File names and their templates.
FILES = {"config.yaml": "config.yaml", "my_kernel.py": "my_kernel.py.txt"}


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")] = Path(),
    force: Annotated[bool, flag("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a commented config.yaml and a working example kernel."""
    targets = {folder / name: template for name, template in FILES.items()}
    existing = [path for path in targets if path.exists()]
    if existing and not force:
        names = ", ".join(f"{path}" for path in existing)
        raise TunerError(f"{names} already exists", "add --force to replace it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    for path, template in targets.items():
        _write(path, files("tuner").joinpath("templates", template).read_text("utf-8"))
        print(inert(path))
    there = "" if folder == Path() else f"cd {folder} && "
    note(f"next: {there}tuner run first --dry-run, then {there}tuner run first")


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    from search_spaces.atomic_file import write_atomic

    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> TunerError:
    reason = error.strerror or f"{error}"
    return TunerError(
        f"cannot write {path}: {reason}",
        "name another folder, or free space or get permission there",
    )
