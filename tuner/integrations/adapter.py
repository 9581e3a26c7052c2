"""The role of an adapter: one kind of table file that a library loads, keyed by a problem's size.

A file is about one key (experts and intermediate size, or the columns and depth of a product) on
one device. Its rows are configs by size: the number of tokens, or of rows of a product.

    adapter = integrations.adapter("vllm-moe")
    for shape in adapter.shapes(model, tensor_parallel=2):    # model: a parsed config.json
        found = adapter.find(package, shape.key, "NVIDIA H200")      # a path, or None: no table
        table = adapter.read(found.read_text(encoding="utf-8"), f"{found}") if found else None
        config = adapter.choice(table, shape.key, 48, device)        # what the library launches
        adapter.workloads(shape, 48)                                 # the tasks that tune this row

`package` is the folder of the installed library, `.../site-packages/vllm`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from search_spaces.errors import TunerError
from search_spaces.foreign_json import is_value, parse_json, values_of
from search_spaces.records import Config, Device, Value, Workload

#: Configs by size.
Rows: TypeAlias = Mapping[int, Config]
#: The sizes that the libraries' own tuners measure.
USUAL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
_TRITON = "triton_version"
_REMEDY = "the file must be a JSON object of configs by size"


@dataclass(frozen=True, slots=True)
class TableKey:
    """What one file is about, without the device."""

    #: Letters and numbers of the file's name, in its order: (("E", 128), ("N", 768)).
    sizes: tuple[tuple[str, int], ...]
    #: As in the file's name, `fp8_w8a8`; empty where the name has none.
    dtype: str = ""
    #: Rows and columns that share a scale.
    block_shape: tuple[int, int] | None = None
    #: Further marks of the name, sorted: `down`, `per_channel_quant`.
    marks: tuple[str, ...] = ()

    def size(self, letter: str) -> int:
        """The number of a letter."""
        return dict(self.sizes)[letter]

    def __str__(self) -> str:
        words = [f"{letter}={number}" for letter, number in self.sizes]
        words += [f"dtype={self.dtype}"] if self.dtype else []
        words += [f"block_shape={list(self.block_shape)}"] if self.block_shape else []
        return " ".join([*words, *self.marks])


@dataclass(frozen=True, slots=True)
class Shape:
    """A key that a model needs, with the sizes that the key leaves out."""

    key: TableKey
    #: The model's layer: `experts`, `qkv_proj`.
    layer: str
    #: Dims of the workloads that tune a row, without the size.
    dims: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """The row that a workload belongs to."""

    key: TableKey
    size: int
    #: Workloads of one problem whose times add up, `gate_up` and `down`: the products of one layer.
    part: str = ""
    #: What the key leaves out, such as hidden size and dtype; problems of one row may differ in it.
    rest: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class SizeTable:
    """A parsed file: configs by size, in the file's order, which decides ties of the lookup."""

    rows: Rows
    #: The Triton that made the file, where the file says so.
    triton: str = ""


class Adapter(ABC):
    """One kind of size table of one library; stateless."""

    #: `vllm-moe`; the name on command lines.
    name: ClassVar[str]
    #: The library, as `--format` and `--library` name it.
    library: ClassVar[str]
    #: The version whose code these facts were read from.
    version: ClassVar[str]
    #: Where the files are in the installed package.
    folder: ClassVar[str]
    #: The variable that names a folder which is searched before the package's; empty: none.
    environment: ClassVar[str] = ""
    #: Our kernels that tune the files' rows, and the problems for which they do.
    kernels: ClassVar[tuple[str, ...]]
    covers: ClassVar[str] = ""
    #: Parts of a problem that a row configures together; empty: the problem has one part.
    parts: ClassVar[tuple[str, ...]] = ()
    #: The part that may have a file of its own, of the key `separate_key`; empty: none may.
    separate: ClassVar[str] = ""
    #: Parameters that are launched as the other parts' row has them.
    shared: ClassVar[tuple[str, ...]] = ()
    #: The dim of each of our kernels that is the size.
    size_dims: ClassVar[Mapping[str, str]]
    #: Parameters that every row needs, and those it may have.
    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    #: Whether a file may say which Triton made it.
    says_triton: ClassVar[bool] = False

    # -- the problems ------------------------------------------------------------------------------
    @abstractmethod
    def shapes(
        self, model: Mapping[str, Any], tensor_parallel: int = 1, expert_parallel: int = 1
    ) -> list[Shape]:
        """The keys that a model needs; empty where it has no such layer.

        model: its `config.json`. Raises TunerError where it lacks a field or does not divide.
        """

    @abstractmethod
    def workloads(self, shape: Shape, size: int) -> list[tuple[str, Workload]]:
        """The kernels with workloads that tune one row; empty where no kernel of ours does."""

    @abstractmethod
    def place(self, kernel: str, workload: Workload) -> Place | None:
        """The row that a workload belongs to; None where the file cannot express the problem."""

    @abstractmethod
    def dims(self, kernel: str, key: TableKey) -> Mapping[str, Value] | None:
        """Dims of all workloads of a kernel that belong to a key; None where it computes another
        problem."""

    # -- the files ---------------------------------------------------------------------------------
    @abstractmethod
    def file_name(self, key: TableKey, device: str) -> str:
        """The name under which the library looks for a key on a device of that driver's name."""

    @abstractmethod
    def parsed_name(self, name: str) -> tuple[TableKey, str] | None:
        """The key and device of a file's name; None for another kind of file."""

    def separate_key(self, key: TableKey) -> TableKey | None:
        """The key of the separate part's own file; None where there is none."""
        return None

    def explain_unread(self, key: TableKey) -> str:
        """Why the library never looks for files of a key; empty where it does."""
        return ""

    def folders(
        self, package: Path, triton: str = "", environment: Mapping[str, str] | None = None
    ) -> list[Path]:
        """The folders that the library searches, first to last; some may not exist.

        triton: the installed version, for libraries that keep tables by version. environment: the
        process's variables.
        """
        user = (environment or {}).get(self.environment, "") if self.environment else ""
        return [*([Path(user)] if user else []), package / self.folder]

    def find(
        self,
        package: Path,
        key: TableKey,
        device: str,
        triton: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Path | None:
        """The file that the library loads, or None. The first wins as a whole; none are merged."""
        name = self.file_name(key, device)
        paths = (folder / name for folder in self.folders(package, triton, environment))
        return next((path for path in paths if path.is_file()), None)

    def export_name(self, key: TableKey, device: str, triton: str) -> str:
        """Where an export writes a file, below its folder.

        The folder itself can be named by the library's variable. Files that the library reads only
        from its own package are below `package/`, to be copied there.
        """
        name = self.file_name(key, device)
        return name if self.environment else f"package/{self.library}/{self.folder}/{name}"

    def read(self, text: str, where: str) -> SizeTable:
        """Parse a file; where: its path, for errors. Raises TunerError for a malformed file."""
        rows, triton = _parsed_rows(text, where, says_triton=self.says_triton)
        for size, config in rows.items():
            if missing := [name for name in self.required if name not in config]:
                raise TunerError(
                    f"{where}: the row of size {size} has no {missing[0]}",
                    f"a table of {self.name} has {', '.join(self.required)} in every row",
                )
        return SizeTable(rows, triton)

    def text_of(self, table: SizeTable) -> str:
        """A file as the library's own tuner writes it, with ascending sizes."""
        for size, config in table.rows.items():
            if reason := self.refusal(config):
                raise TunerError(f"{self.name}, size {size}: {reason}", "leave this config out")
        order = (*self.required, *self.optional)
        rows = {
            size: {name: config[name] for name in order if name in config}
            for size, config in table.rows.items()
        }
        return _text_of_rows(rows, table.triton if self.says_triton else "")

    # -- the configs -------------------------------------------------------------------------------
    def refusal(self, config: Config) -> str:
        """Why no row may hold a config of the library's parameters; empty where one may."""
        known = {*self.required, *self.optional}
        if missing := [name for name in self.required if name not in config]:
            return f"the library needs {missing[0]}, which the config lacks"
        if unknown := sorted(set(config) - known):
            return f"the library takes no parameter {unknown[0]}"
        return ""

    def translate(self, kernel: str, config: Config) -> Config:
        """A config of one of our kernels in the library's parameters.

        Raises TunerError where the library's kernel cannot do what the config says.
        """
        return dict(config)

    def translate_back(self, kernel: str, config: Config) -> Config:
        """A row's config in the parameters of one of our kernels, as a start for its search."""
        return dict(config)

    def predict_launch(self, key: TableKey, config: Config) -> Config:
        """What the library makes of a row before it launches it."""
        return dict(config)

    # -- the lookup --------------------------------------------------------------------------------
    def nearest(self, sizes: Iterable[int], size: int) -> int:
        """The row that the library takes for a size: the least distance, the first of equals."""
        return min(sizes, key=lambda one: abs(one - size))

    @abstractmethod
    def default(self, key: TableKey, size: int, device: Device) -> Config:
        """The config that the library launches without a table."""

    def choice(self, table: SizeTable | None, key: TableKey, size: int, device: Device) -> Config:
        """The config that the library launches for a size, with a table or without one."""
        if table is None or not table.rows:
            return self.default(key, size, device)
        return self.predict_launch(key, table.rows[self.nearest(table.rows, size)])


def tables_in(adapter: Adapter, folders: Sequence[Path]) -> Iterator[tuple[Path, TableKey, str]]:
    """The files of an adapter's kind with their keys and device names, sorted by path."""
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            if parsed := adapter.parsed_name(path.name):
                yield path, *parsed


# -- the JSON of size tables -----------------------------------------------------------------------
def _parsed_rows(text: str, where: str, *, says_triton: bool) -> tuple[dict[int, Config], str]:
    """The rows of a file and the Triton that made it; raises TunerError, as the library would fail.

    says_triton: the library takes the name `triton_version`; others fail on it.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        raise TunerError(f"{where}: not JSON (line {line}: {error})", _REMEDY) from None
    if not isinstance(document, dict):
        raise TunerError(f"{where}: not an object", _REMEDY)
    triton = document.pop(_TRITON, "") if says_triton else ""
    rows = {_size(name, where): _config(row, name, where) for name, row in document.items()}
    if not rows:
        raise TunerError(f"{where}: has no rows", _REMEDY)
    return rows, f"{triton}"


def _text_of_rows(rows: Rows, triton: str = "") -> str:
    """Four-space indent, ascending sizes, a newline at the end: equal bytes for equal rows."""
    document: dict[str, Any] = {_TRITON: triton} if triton else {}
    document |= {f"{size}": dict(rows[size]) for size in sorted(rows)}
    return json.dumps(document, indent=4, allow_nan=False) + "\n"


def _size(name: str, where: str) -> int:
    try:
        size = int(name)
    except ValueError:
        size = 0
    if size < 1 or not is_value(size):
        raise TunerError(f"{where}: {name!r} is no size", _REMEDY)
    return size


def _config(row: object, name: str, where: str) -> Config:
    config = values_of(row)
    if config is None:
        raise TunerError(f"{where}: the row of size {name} is no config", _REMEDY)
    return config


# -- file names of size tables: `E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json` ----------
_BLOCK = re.compile(r",block_shape=\[(\d+),\s?(\d+)\]")
_DTYPE = re.compile(r",dtype=([^,=]+)$")
_PER_CHANNEL = ",per_channel_quant=True"
_DOWN = "_down"


def joined_name(key: TableKey, device: str, between: str) -> str:
    """The name of a key on a device whose name is already in its written form.

    between: what is written between the two sides of the block's shape after the comma.
    """
    sizes = ",".join(f"{letter}={number}" for letter, number in key.sizes)
    dtype = f",dtype={key.dtype}" if key.dtype else ""
    sides = key.block_shape
    block = f",block_shape=[{sides[0]},{between}{sides[1]}]" if sides else ""
    per_channel = _PER_CHANNEL if "per_channel_quant" in key.marks else ""
    down = _DOWN if "down" in key.marks else ""
    return f"{sizes},device_name={device}{dtype}{block}{per_channel}{down}.json"


def split_name(name: str, letters: tuple[str, str]) -> tuple[TableKey, str] | None:
    """The key and device of such a name; None for any other."""
    first, second = letters
    begin = re.match(rf"{first}=(\d+),{second}=(\d+),device_name=", name)
    if begin is None or not name.endswith(".json"):
        return None
    rest, marks = name[begin.end() : -len(".json")], []
    if rest.endswith(_DOWN):
        rest, marks = rest.removesuffix(_DOWN), ["down"]
    if _PER_CHANNEL in rest:
        rest, marks = rest.replace(_PER_CHANNEL, ""), [*marks, "per_channel_quant"]
    block, shape = _BLOCK.search(rest), None
    if block:
        rest, shape = rest.replace(block[0], ""), (int(block[1]), int(block[2]))
    dtype = _DTYPE.search(rest)
    device = rest.removesuffix(dtype[0]) if dtype else rest
    if not device or "," in device:
        return None
    sizes = ((first, int(begin[1])), (second, int(begin[2])))
    return TableKey(sizes, dtype[1] if dtype else "", shape, tuple(marks)), device
