"""Where a library's tables are: in its installed package, or in a folder that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from search_spaces.errors import TunerError
from tuner.integrations import Adapter, TableKey, adapters

_REMEDY = "name the folder of the package or of its tables with --tables"


@dataclass(frozen=True, slots=True)
class Library:
    """A library with the folders that each of its adapters searches, first to last."""

    name: str
    adapters: tuple[Adapter, ...]
    #: By adapter name; empty for a kind of table that the given folder does not have.
    folders: Mapping[str, tuple[Path, ...]]
    #: The Triton that the library runs with; empty where it is unknown.
    triton: str = ""
    #: The variables of the process that the library would run in.
    environment: Mapping[str, str] = field(default_factory=dict)

    def find(self, adapter: Adapter, key: TableKey, device: str) -> Path | None:
        """The file that the library loads for a key on a device, or None."""
        name = adapter.file_name(key, device)
        paths = (folder / name for folder in self.folders[adapter.name])
        return next((path for path in paths if path.is_file()), None)


def library_in(
    name: str, folder: Path | None, triton: str, environment: Mapping[str, str]
) -> Library:
    """The library with the tables in a folder, or in its installed package where none is given.

    folder: the package (`.../site-packages/vllm`), a folder that contains it (an unpacked wheel), a
    folder of the user's tables, or a folder of table files. Raises `TunerError` for an unknown
    library, one that is not installed, and a folder without tables of it.
    """
    own = tuple(adapters(name))
    if folder is None:
        package = _find_installed(name)
        found = {one.name: one.folders(package, triton, environment) for one in own}
    else:
        _check_folder(folder)
        found = {one.name: _folders(one, folder, triton, environment) for one in own}
        if not any(found.values()):
            raise TunerError(f"{folder}: there are no tables of {name}", _REMEDY)
    return Library(
        name, own, {key: tuple(paths) for key, paths in found.items()}, triton, environment
    )


def _find_installed(name: str) -> Path:
    """The folder of the installed package, which is not imported."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise TunerError(f"{name} is not installed here", _REMEDY)
    return Path(spec.submodule_search_locations[0])


def _check_folder(folder: Path) -> None:
    try:
        next(folder.iterdir(), None)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{error}"
        raise TunerError(f"{folder}: cannot be read ({reason})", _REMEDY) from None


def _folders(
    adapter: Adapter, folder: Path, triton: str, environment: Mapping[str, str]
) -> list[Path]:
    """The folders of one adapter below a folder that the user names."""
    for package in (folder, folder / adapter.library):
        if (package / adapter.folder).is_dir():
            return adapter.folders(package, triton, environment)
    inside = [folder]
    for root in (folder, folder.parent) if adapter.environment else ():
        named = adapter.folders(Path(), triton, {adapter.environment: f"{root}"})
        below = [path for path in named if path.is_dir() and path.is_relative_to(folder)]
        inside = below if any(_has_tables(adapter, path) for path in below) else inside
    if not any(_has_tables(adapter, path) for path in inside):
        return []
    first = adapter.folders(Path(), triton, environment) if environment else []
    return [*(path for path in first if path.is_absolute() and path.is_dir()), *inside]


def _has_tables(adapter: Adapter, folder: Path) -> bool:
    return any(adapter.parsed_name(path.name) for path in folder.glob("*.json"))
