"""What a bundle is made of: configs of workloads, found in what a user names."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces import registry
from search_spaces.absent_device.module_sets import modules_of
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.recorded import model_calls
from search_spaces.records import Config, Device, Value, Workload, config_key
from tuner.bundling.range_sizes import list_keys
from tuner.capturing import CapturedKernel, load_calls
from tuner.ops.prediction import device_of, find_neighbour
from tuner.runtime import Entry, Table, load, read
from tuner.runtime._given_tables import place_in
from tuner.runtime._lookup import PACKAGED
from workers.compiling.cache import pack_files
from workers.device import offline
from workers.environment import TRITON
from workers.job_records import KernelRef

#: In the place of a path: the tables that come with tuner.
OPERATORS = "ops"
#: A record has no eps, which is compiled in: these, and the kernel's own.
_EPS, _WITH_EPS = (1e-5, 1e-6), ("rms_norm", "layer_norm", "add_norm", "group_norm")
#: Other kernels that an operator launches, by the kernel of its table.
_BESIDE = {
    "rotary": "tuner.bundling.small_kernels:StridedRotary",
    "moe_matmul": "tuner.bundling.small_kernels:OrderedSlots",
}


@dataclass(frozen=True)
class Variant:
    """A config of a workload that is to be compiled."""

    kernel: KernelRef
    name: str
    workload: Workload
    config: Config
    device: Device

    @property
    def key(self) -> tuple[str, ...]:
        return self.kernel.spec, self.workload.key, config_key(self.config)


@dataclass
class Sources:
    """What users named, as variants; files of tables go into the bundle as they are."""

    target: str
    variants: dict[tuple[str, ...], Variant] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    #: What Triton has compiled before, compressed, as files of artifacts.
    compiled: dict[str, bytes] = field(default_factory=dict)
    #: One line for each thing that is left out.
    left_out: list[str] = field(default_factory=list)

    def add(self, kernel: Kernel, workload: Workload, config: Config, device: Device) -> None:
        """Have a variant compiled; for a kernel that compiles eps in, with some of these."""
        ref = KernelRef(kernel.spec, (str(Path.cwd()),))
        keys = [workload.as_dict()]
        if kernel.name in _WITH_EPS and "eps" not in workload:
            keys += [{**keys[0], "eps": eps} for eps in _EPS]
        for key in keys:
            found = Variant(ref, kernel.name, Workload.from_mapping(key), config, device)
            self.variants.setdefault(found.key, found)
        if beside := _BESIDE.get(kernel.spec):
            self.add(registry.load(beside), workload, config, device)


def read_sources(names: Sequence[str], target: str) -> Sources:
    """The variants for a target that these sources name.

    names: files or folders of tables, of captured calls and of records (`TUNER_RECORD`), folders of
    Triton's cache, `ops`, and kernels by name, `module:object` or `file.py:object`. Raises
    `TunerError` in one line.
    """
    found, device, shipped = Sources(target), offline(target), _read_shipped(target)
    kinds = {file: _kind_of(file) for name in names for file in _list_files(name)}
    tables = [load(file) for file, kind in kinds.items() if kind == "table"]
    found.tables += [each for each in tables if each and each.device.target in ("", target)]
    loaded = [registry.load(name, (".",), device) for name in names
              if name != OPERATORS and not Path(name).exists()]  # fmt: skip
    kernels = {kernel.name: kernel for kernel in loaded}
    for kernel in kernels.values():
        for workload in kernel.workloads():
            found.add(kernel, workload, kernel.default_config(workload, device), device)
    named = [table for table in shipped if OPERATORS in names or table.kernel in kernels]
    for table in [*found.tables, *named]:
        _add_table(found, table, kernels)
    for file, kind in kinds.items():
        if kind == "calls":
            for call in model_calls.read_calls(file):
                _add_record(found, call, [*found.tables, *shipped])
        elif kind == "captured":
            with modules_of(device):
                for captured in load_calls(file):
                    _add_captured(found, captured, device)
    for name in names:
        found.compiled |= read_cache(Path(name), target)
    if not (found.variants or found.compiled):
        raise TunerError(
            f"nothing to compile for {target} in {', '.join(names)}",
            "; ".join(found.left_out[:3]) or "name tables, captured calls, records, or ops",
        )
    return found


def read_cache(folder: Path, target: str) -> dict[str, bytes]:
    """The kernels for a target and the host modules in a folder of Triton's cache, if it is one."""
    paths: list[Path] = []
    for index in folder.glob("*/__grp__*.json"):
        facts = index.with_name(index.name.removeprefix("__grp__"))
        binary = facts.with_suffix(".cubin")
        if binary.is_file() and facts.is_file():
            made_for = json.loads(facts.read_bytes())["target"]
            if f"{made_for['backend']}:{made_for['arch']}" == target:
                paths += [facts, binary]
    modules = folder.glob(f"*/*{sysconfig.get_config_var('EXT_SUFFIX')}") if paths else ()
    return pack_files(folder, [*paths, *modules], TRITON)


def _list_files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return sorted(path.glob("*.json"))
    return [path] if path.exists() and name != OPERATORS else []


def _kind_of(file: Path) -> str:
    try:
        document = json.loads(file.read_bytes())
        schema = str(document.get("schema", "")) + str(document.get("format", ""))
    except (OSError, ValueError, AttributeError) as error:
        remedy = "name a file that tuner wrote"
        raise TunerError(f"{file}: cannot be read ({error})", remedy) from None
    if schema == model_calls.SCHEMA:
        return "calls"
    return "table" if schema.startswith("tuner-table/") else "captured"


def _read_shipped(target: str) -> list[Table]:
    tables = map(read, sorted(PACKAGED.glob("*.json")))
    return [table for table in tables if table.device.target == target]


def _add_table(found: Sources, table: Table, kernels: Mapping[str, Kernel]) -> None:
    if place_in(table):
        return  # its workloads are calls, which captured calls have
    try:
        kernel = kernels.get(table.kernel) or registry.load(table.kernel)
    except TunerError as error:
        found.left_out.append(f"{table.path}: {error.message}; name its declaration, too")
        return
    for entry in table.entries:
        for key in list_keys(entry):
            _add_entry(found, kernel, entry, key, table)


def _add_entry(
    found: Sources, kernel: Kernel, entry: Entry, key: Mapping[str, Value], table: Table
) -> None:
    workload = Workload.from_mapping(key)
    try:
        kernel.check_workload(workload)
    except TunerError:
        return  # such a size gets another implementation
    found.add(kernel, workload, dict(entry.config), device_of(table.device))


def _add_record(found: Sources, call: model_calls.ModelCall, tables: Iterable[Table]) -> None:
    """The config of each card's table: its entry's, else the nearest entry's."""
    kernel = registry.load(call.kernel)
    own = [table for table in tables if table.kernel == call.kernel]
    for table in own:
        near = find_neighbour([table], kernel, call.workload, call.dims)
        hit = table.find(call.dims)
        for entry in (near.entry if near else None, hit.entry if hit else None):
            if entry is not None:
                _add_entry(found, kernel, entry, call.dims, table)
    if not own:
        found.left_out.append(f"{call.kernel} [{call.workload.key}]: no table, so torch runs it")


def _add_captured(found: Sources, call: CapturedKernel, device: Device) -> None:
    """The library's own config of a call, and those of tables for it."""
    try:
        kernel = call.declare()
    except TunerError as error:
        found.left_out.append(f"{error.message}")
        return
    for workload in kernel.workloads():
        default = kernel.call(workload).default
        own = [table for table in found.tables if place_in(table) == kernel.place]
        hits = [hit.config for table in own if (hit := table.find(workload.as_dict()))]
        for config in [*hits, *([] if default is None else [default])]:
            found.add(kernel, workload, dict(config), device)
