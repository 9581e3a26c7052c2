"""The state of each table file: usable, missing, of another Triton, malformed, never read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import Config
from tuner.integrations import Adapter, Shape, SizeTable, TableKey, TableState, adapters, tables_in

# -- where a library's tables are: in its installed package, or in a folder that the user names ----
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


# -- the state of each table file ------------------------------------------------------------------
_VERSION_FOLDER = "triton_"
#: Parameters that Triton takes as the side of a block, which must be a power of two.
_SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_COUNTS = (*_SIDES, "GROUP_SIZE_M", "num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class Examined:
    """One table that a library has, or lacks."""

    adapter: Adapter
    key: TableKey
    state: TableState
    #: One line on the state.
    note: str = ""
    #: None for a missing table.
    path: Path | None = None
    #: The parsed file; None where there is none, or a malformed one.
    table: SizeTable | None = None
    #: The Triton that made the file; empty where nothing says so.
    triton: str = ""
    #: What a model needs the table for; None without a model.
    shape: Shape | None = None


def examine_shapes(
    library: Library, model: Mapping[str, Any], device: str, tensor_parallel: int, experts: int
) -> list[Examined]:
    """The tables that a model needs on a device.

    experts: the expert-parallel size. Raises `TunerError` for a model that does not divide, or
    that needs no table of the library.
    """
    found = []
    for adapter in library.adapters:
        for shape in adapter.shapes(model, tensor_parallel, experts):
            if not library.folders[adapter.name]:
                continue
            found += _with_separate(library, adapter, shape, device)
    if not found:
        raise TunerError(
            f"the model needs no table of {library.name} that is known here",
            f"its adapters are {', '.join(one.name for one in library.adapters)}",
        )
    return found


def _with_separate(library: Library, adapter: Adapter, shape: Shape, device: str) -> list[Examined]:
    """The table of a shape, and that of its separate part where it has a file of its own."""
    first = _of_shape(library, adapter, shape, device)
    key = adapter.separate_key(shape.key)
    if key is None:
        return [first]
    path = library.find(adapter, key, device)
    if path is None:
        words = f"{adapter.separate} has no file of its own and takes this one's rows"
        return [replace(first, note=_join(first.note, words)) if first.table else first]
    layer = f"{shape.layer}.{adapter.separate}"
    second = _of_file(library, adapter, key, path, Shape(key, layer, shape.dims))
    return [first, replace(second, note=_join(second.note, _list_overridden(first, second)))]


def _list_overridden(first: Examined, second: Examined) -> str:
    """The rows of a separate part's file that are launched with values of the other parts' row."""
    adapter = second.adapter
    if first.table is None or second.table is None:
        return ""
    rows = first.table.rows
    notes = []
    for name in adapter.shared:
        sizes = [
            size
            for size, config in second.table.rows.items()
            if config.get(name) != rows[adapter.nearest(rows, size)].get(name)
        ]
        if sizes:
            listed = ", ".join(map(str, sorted(sizes)))
            notes.append(f"{name} of rows {listed} becomes that of the first product's file")
    return _join(*notes)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _of_shape(library: Library, adapter: Adapter, shape: Shape, device: str) -> Examined:
    if reason := adapter.explain_unread(shape.key):
        return Examined(adapter, shape.key, TableState.NEVER_READ, reason, shape=shape)
    path = library.find(adapter, shape.key, device)
    if path is None:
        name = adapter.file_name(shape.key, device)
        return Examined(adapter, shape.key, TableState.MISSING, f"no {name}", shape=shape)
    return _of_file(library, adapter, shape.key, path, shape)


def examine_files(library: Library, device: str) -> tuple[list[Examined], int, int]:
    """The tables that the library loads on a device.

    Also returns the number of table files for other devices, and of the problems that have tables
    for other devices only.
    """
    found: list[Examined] = []
    others: set[tuple[str, TableKey]] = set()
    own: set[tuple[str, TableKey]] = set()
    elsewhere = 0
    for adapter in library.adapters:
        for path, key, word in tables_in(adapter, library.folders[adapter.name]):
            if path.name != adapter.file_name(key, device):
                written = adapter.file_name(key, word)
                elsewhere += 1
                # An alias of this device that the library never asks for is of no use.
                if written == path.name:
                    others.add((adapter.name, key))
                continue
            if (adapter.name, key) in own:
                continue  # an earlier folder has the file that is loaded
            own.add((adapter.name, key))
            if reason := adapter.explain_unread(key):
                found.append(Examined(adapter, key, TableState.NEVER_READ, reason, path))
            else:
                found.append(_of_file(library, adapter, key, path, None))
    return found, elsewhere, len(others - own)


def _of_file(
    library: Library, adapter: Adapter, key: TableKey, path: Path, shape: Shape | None
) -> Examined:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        note = f"cannot be read ({reason})"
        return Examined(adapter, key, TableState.MALFORMED, note, path, shape=shape)
    try:
        table = adapter.read(text, path.name)
    except TunerError as error:
        note = error.message.removeprefix(f"{path.name}: ")
        return Examined(adapter, key, TableState.MALFORMED, note, path, shape=shape)
    made_by = table.triton or _of_folder(path)
    fault = next(_faults(adapter, table), "")
    state, note = TableState.OK, "" if made_by else "it does not say which Triton made it"
    if fault:
        state, note = TableState.MALFORMED, fault
    elif made_by and library.triton and made_by != library.triton:
        state, note = TableState.OTHER_TRITON, f"made with {made_by}, this is {library.triton}"
    return Examined(adapter, key, state, note, path, table, made_by, shape)


def _of_folder(path: Path) -> str:
    """The version in the name of a file's folder, `triton_3_6_0`; empty for another folder."""
    name = path.parent.name
    return name.removeprefix(_VERSION_FOLDER).replace("_", ".") if _is_version(name) else ""


def _is_version(name: str) -> bool:
    return name.startswith(_VERSION_FOLDER) and name[len(_VERSION_FOLDER) :][:1].isdigit()


def _faults(adapter: Adapter, table: SizeTable) -> Iterator[str]:
    """Why rows cannot be launched, one line each."""
    for size, config in table.rows.items():
        if reason := adapter.refusal(config) or _bad_value(config, adapter.required):
            yield f"row {size}: {reason}"


def _bad_value(config: Config, required: Sequence[str]) -> str:
    for name in (*required, *_COUNTS):
        value = config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} is {value!r}, not a positive number"
        if name in _SIDES and value & (value - 1):
            return f"{name} is {value}, not a power of two"
    return ""
