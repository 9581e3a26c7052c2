"""The state of the kernels that a model runs in a library without tables of its own.

A launch is `ok` where a table of captured calls, or what the library itself keeps, has an entry for
its shape on the device and was made with the library's Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import Value
from tuner import runtime
from tuner.integrations import KernelLibrary, Layer, LayerLaunch
from tuner.library_doctor.states import TableState


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A config for one launch of a kernel, in a table or in the library's own files."""

    path: Path
    #: `module:object`, or the name of the function alone.
    kernel: str
    triton: str
    #: The arguments; None where they are unknown.
    key: Mapping[str, Value] | None
    #: Why the file cannot be read; empty where it can.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ExaminedLaunch:
    """One launch of a layer, or without a model one kernel with entries."""

    kernel: str
    state: TableState
    #: The number of its entries of the right Triton.
    entries: int = 0
    #: The numbers of tokens that they are for.
    tokens: tuple[int, ...] = ()
    layer: str = ""
    key: Mapping[str, Value] | None = None
    triton: str = ""
    path: Path | None = None
    note: str = ""


def entries_of(
    library: KernelLibrary,
    tables: Sequence[Path],
    package: Path | None,
    device: str,
    environment: Mapping[str, str],
) -> list[LibraryEntry]:
    """The entries for a library's kernels on a device.

    tables: files and folders of tables. Raises `TunerError` for one that does not exist.
    """
    found: list[LibraryEntry] = []
    for given in tables:
        if not given.exists():
            raise TunerError(f"{given}: no such file or folder", "name tables with --tables")
        for path in sorted(given.rglob("*.json")) if given.is_dir() else [given]:
            found += _of_table(path, library.module, device)
    for one in library.own_configs(package, device, environment):
        problem = "" if one.kernel else "it is no JSON object"
        found.append(LibraryEntry(one.path, one.kernel, one.triton, one.key, problem))
    return found


def _of_table(path: Path, module: str, device: str) -> Iterator[LibraryEntry]:
    try:
        table = runtime.read(path)
    except runtime.TableError as error:
        # Tables of ours have the kernel and the device in their names; other JSON is no concern.
        if "@" in path.name:
            yield LibraryEntry(path, "", "", None, f"{error}")
        return
    place = f"{table.provenance.get('place') or table.kernel}"
    if place.partition(":")[0].partition(".")[0] != module or table.device.name != device:
        return
    for entry in table.entries:
        yield LibraryEntry(path, place, f"{table.toolchain.get('triton', '')}", entry.key)


def examine_launches(
    library: KernelLibrary,
    model: Mapping[str, Any],
    tensor_parallel: int,
    entries: Sequence[LibraryEntry],
    triton: str,
    sizes: Sequence[int] | None,
) -> list[ExaminedLaunch]:
    """The launches of a model's layers.

    sizes: numbers of tokens that must have entries; None: one entry suffices. Raises `TunerError`
    for a model without layers in the library.
    """
    layers = library.layers(model, tensor_parallel)
    if not layers:
        raise TunerError(
            f"{library.name} has no kernel that is known here for this model",
            "capture a script of yours: tuner capture -o calls.json -- python SCRIPT",
        )
    damaged = [entry for entry in entries if entry.problem]
    return [
        *(
            _examine_launch(library, layer, launch, entries, triton, sizes)
            for layer in layers
            for launch in layer.launches
        ),
        *examine_entries(damaged, triton),
    ]


def _examine_launch(
    library: KernelLibrary,
    layer: Layer,
    launch: LayerLaunch,
    entries: Sequence[LibraryEntry],
    triton: str,
    sizes: Sequence[int] | None,
) -> ExaminedLaunch:
    fitting = [
        (entry, tokens)
        for entry in entries
        if entry.key is not None and _is_of(entry.kernel, launch.kernel)
        if (tokens := launch.tokens(entry.key)) is not None
    ]
    usable = [(entry, tokens) for entry, tokens in fitting if _same(entry.triton, triton)]
    covered = {tokens for _, tokens in usable}
    lacking = [size for size in sizes or () if library.looked_up(size) not in covered]
    state, note = TableState.OK, ""
    if usable and lacking:
        state, note = TableState.MISSING, f"no entry for {', '.join(map(str, lacking))} tokens"
    elif not usable and fitting:
        made = sorted({entry.triton for entry, _ in fitting})
        state, note = TableState.OTHER_TRITON, f"made with {', '.join(made)}, this is {triton}"
    elif not usable:
        state = TableState.MISSING
    shown = usable or fitting
    return ExaminedLaunch(
        *(launch.kernel, state, len(usable), tuple(sorted(covered))),
        *(layer.name, launch.key, shown[0][0].triton if shown else ""),
        *(shown[0][0].path if shown else None, note),
    )


def examine_entries(entries: Sequence[LibraryEntry], triton: str) -> list[ExaminedLaunch]:
    """What there is without a model: one record per kernel and file."""
    groups: dict[tuple[str, Path, str, str], int] = {}
    for entry in entries:
        key = entry.kernel, entry.path, entry.triton, entry.problem
        groups[key] = groups.get(key, 0) + 1
    found = []
    for (kernel, path, made, problem), count in sorted(groups.items()):
        state, note = TableState.OK, "" if made else "it does not say which Triton made it"
        if problem:
            state, note, count = TableState.MALFORMED, problem, 0
        elif not _same(made, triton):
            state, note = TableState.OTHER_TRITON, f"made with {made}, this is {triton}"
        found.append(ExaminedLaunch(kernel, state, count, triton=made, path=path, note=note))
    return found


def _is_of(stored: str, wanted: str) -> bool:
    """Whether an entry is of a kernel; a library's own files name the function alone."""
    function = wanted.partition(":")[2]
    return stored == wanted or (":" not in stored and stored.startswith(function))


def _same(made: str, here: str) -> bool:
    """Whether a config is for the Triton here; a library may note the first two numbers alone."""
    return not made or not here or made == here or here.startswith(f"{made}.")
