"""Libraries without tables of their own: what they know, and the state of their kernels.

A launch is `ok` where a table of captured calls, or what the library itself keeps, has an entry for
its shape on the device and was made with the library's Triton.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tuner import TunerError, Value, runtime
from tuner.integrations import DoctorQuestion, ExaminedLaunch, TableState, load_model

from library_adapters.layers import Layer, LayerLaunch


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """A config in a file or database that the library itself keeps on a machine."""

    path: Path
    #: The name of the `@triton.jit` function; empty for a file that is damaged.
    kernel: str
    #: The Triton that it is for, as far as the file says so.
    triton: str
    #: The arguments that it is for; None where the file does not say it in words.
    key: Mapping[str, Value] | None = None


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


class CapturedLibrary(ABC):
    """A library whose kernels are tuned by captured calls: a `tuner.integrations.KernelLibrary`."""

    #: The name on command lines.
    name: ClassVar[str]
    #: Its name on PyPI, and the version whose code these facts were read from.
    distribution: ClassVar[str]
    version: ClassVar[str]
    #: The top-level module.
    module: ClassVar[str]
    #: How to make a missing config of a layer; empty: capture its calls and tune them.
    remedy: ClassVar[str] = ""
    #: Whether its kernels list no configs, so that a search needs an opened space.
    plain: ClassVar[bool] = False

    @abstractmethod
    def layers(self, model: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
        """The layers of a model that run in kernels of the library; empty where there is none.

        model: its `config.json`. Raises TunerError where it lacks a field or does not divide.
        """

    def looked_up(self, tokens: int) -> int:
        """The number of tokens in the key by which a config for that many is found."""
        return tokens

    def own_configs(
        self, package: Path | None, device: str, environment: Mapping[str, str]
    ) -> Iterator[OwnConfig]:
        """What the library itself keeps for a device. package: its folder, where it is known."""
        return iter(())

    def examine(self, question: DoctorQuestion) -> list[ExaminedLaunch]:
        """The launches of a model, or all entries; raises TunerError for a model without layers."""
        package = _find_installed(self.module)
        entries = entries_of(self, question.tables, package, question.device, os.environ)
        if question.model is None:
            return examine_entries(entries, question.triton)
        return examine_launches(
            self, load_model(question.model), question.tensor_parallel,
            entries, question.triton, question.sizes,
        )  # fmt: skip

    def remedies(self, question: DoctorQuestion) -> list[str]:
        """The commands that capture and tune the launches, or what the library itself has."""
        if self.remedy:
            return [self.remedy]
        model, parallel = question.model or "config.json", question.tensor_parallel
        tokens = " ".join(map(str, question.sizes or (4096,)))
        return [
            f"tuner capture -o calls.json -- python -m library_adapters {self.name} "
            f"--model {model} --tp {parallel} --tokens {tokens}",
            f"tuner run --calls calls.json{' --widen' if self.plain else ''}",
        ]


def _find_installed(name: str) -> Path | None:
    """The folder of an installed package, which is not imported; None where there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def entries_of(
    library: CapturedLibrary,
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
    library: CapturedLibrary,
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
    library: CapturedLibrary,
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
