"""The role of a library without tables of its own, whose kernels are tuned by captured calls.

`tuner check --library NAME` asks it; `examples/library_adapters` has three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from search_spaces.records import Value


class TableState(StrEnum):
    """The state of a table."""

    OK = "ok"
    MISSING = "missing"
    OTHER_TRITON = "other triton"
    MALFORMED = "malformed"
    NEVER_READ = "never read"


@dataclass(frozen=True, slots=True)
class DoctorQuestion:
    """What a user asks of a library."""

    #: The device's name, as its driver has it.
    device: str
    #: The Triton that the library runs with; empty: any.
    triton: str
    #: Files and folders of our tables.
    tables: tuple[Path, ...] = ()
    #: The `config.json` whose launches are examined; None: all entries are listed.
    model: Path | None = None
    tensor_parallel: int = 1
    #: Numbers of tokens that must have entries; None: one entry suffices.
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExaminedLaunch:
    """One launch of a layer, or without a model one kernel with entries."""

    #: `module:object`, as in a table's provenance.
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


class KernelLibrary(Protocol):
    """What an entry point of `tuner.kernel_libraries` makes when it is called; stateless."""

    def examine(self, question: DoctorQuestion) -> Sequence[ExaminedLaunch]:
        """The launches of a model, or all entries; raises TunerError where there can be none."""

    def remedies(self, question: DoctorQuestion) -> Sequence[str]:
        """The commands that tune what is missing, or one sentence."""
