"""The nouns every layer shares: configs, workloads, devices, toolchains, statuses.

Nothing here imports more than the standard library, so a record can cross any process boundary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str | None
Config: TypeAlias = Mapping[str, Value]


class Status(StrEnum):
    """How a trial ended; the names of the T4 results schema of the autotuning community."""

    CORRECT = "correct"
    CONSTRAINTS = "constraints"
    COMPILE = "compile"
    RUNTIME = "runtime"
    TIMEOUT = "timeout"
    CORRECTNESS = "correctness"


def canonical_json(value: object) -> str:
    """The one byte-stable JSON text of a value: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object, length: int = 16) -> str:
    """A short SHA-256 over the canonical JSON of a value, as lower-case hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def config_key(config: Config) -> str:
    """The identity of a config: its canonical JSON."""
    return canonical_json(dict(config))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of an input, output or scratch buffer; of an input also its values."""

    #: Sizes, outermost first.
    shape: tuple[int, ...]
    #: torch's name of the dtype, such as `float32`.
    dtype: str
    #: Mean and standard deviation of random values of floating point.
    mean: float = 0.0
    scale: float = 1.0
    #: Random integers are from the first up to below the second.
    limits: tuple[int, int] = (0, 128)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The problem one task is about: named sizes, dtypes and, where it matters, a tolerance.

    Built by `Workload.of(M=4096, N=4096, dtype="bfloat16")`. Dims keep the order in which they are
    given, for people; workloads that differ in the order alone are equal.
    """

    dims: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, **dims: Value) -> Workload:
        return cls(tuple(dims.items()))

    @classmethod
    def from_mapping(cls, dims: Mapping[str, Value]) -> Workload:
        return cls(tuple(dims.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workload):
            return NotImplemented
        return self.dims == other.dims or dict(self.dims) == dict(other.dims)

    def __hash__(self) -> int:
        return hash(frozenset(self.dims))

    def in_order(self, names: Iterable[str]) -> Workload:
        """The same workload, its dims in the order of `names`; others follow in their own."""
        mine = dict(self.dims)
        first = {name: mine[name] for name in names if name in mine}
        return Workload.from_mapping({**first, **mine})

    def __getitem__(self, name: str) -> Value:
        for key, value in self.dims:
            if key == name:
                return value
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.dims)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.dims)

    def get(self, name: str, default: Value = None) -> Value:
        return dict(self.dims).get(name, default)

    def size(self, name: str) -> int:
        """The size `name`; raises `KeyError` when absent and `TypeError` when not an integer."""
        value = self[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not an integer")
        return value

    def sizes(self, *names: str) -> tuple[int, ...]:
        """Several sizes at once, as `size` gives them."""
        return tuple(map(self.size, names))

    def spec(
        self,
        *shape: str | int,
        dtype: str = "",
        mean: float = 0.0,
        scale: float = 1.0,
        limits: tuple[int, int] = (0, 128),
    ) -> TensorSpec:
        """A tensor whose shape consists of named sizes and numbers; by default of `dtype`."""
        sizes = tuple(self.size(item) if isinstance(item, str) else item for item in shape)
        return TensorSpec(sizes, dtype or self.text("dtype"), mean, scale, limits)

    def text(self, name: str) -> str:
        """The text `name`, such as a dtype."""
        return f"{self[name]}"

    def as_dict(self) -> dict[str, Value]:
        return dict(self.dims)

    def with_dims(self, **dims: Value) -> Workload:
        """The same workload with some dims replaced or added."""
        return Workload.of(**{**self.as_dict(), **dims})

    @property
    def key(self) -> str:
        """The workload as people write it: `M=4096 N=4096 K=4096 dtype=bfloat16`.

        A text that reads like another value, or has blanks, is quoted: `mode="None"`.
        """
        return " ".join(f"{name}={_format_value(value)}" for name, value in self.dims)


def _format_value(value: Value) -> str:
    """A dim's value; one word, and different for different values."""
    if not isinstance(value, str):
        return f"{value}"
    odd = value in ("", "True", "False", "None") or any(c.isspace() or c in '="' for c in value)
    if not odd and not _is_number(value):
        return value
    return json.dumps(value).replace(" ", "\\u0020")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Device:
    """What a kernel runs on, or would run on: the facts constraints and lookups depend on."""

    #: Backend: `cuda`, `hip`, `cpu`, `interpreter`, `simulated` or a plug-in.
    kind: str
    #: The exact name that the driver reports, never that of a product family.
    name: str
    #: What code is generated for: `cuda:90`, `hip:gfx942`, `cpu:x86-64-avx512`.
    target: str
    #: Multiprocessors; compute units of AMD, physical cores of a CPU.
    sm_count: int = 0
    #: Device memory in bytes.
    memory_bytes: int = 0
    #: Opt-in shared memory of one block, bytes; 0 on a CPU.
    shared_bytes: int = 0
    #: 32-bit registers of one multiprocessor; 0 on a CPU.
    registers: int = 0
    #: Threads of one warp (wavefront).
    warp_size: int = 32
    #: L2 cache in bytes; not part of the fingerprint.
    l2_bytes: int = 0
    #: Watts; 0.0 when unknown.
    power_limit_w: float = 0.0
    #: This very card; not part of the fingerprint.
    uuid: str = ""

    @property
    def fingerprint(self) -> str:
        """Identity under which timings and tables are kept: equal cards share it."""
        return _fingerprint(self, f"{self.power_limit_w}")


@lru_cache(4096)
def _fingerprint(device: Device, power: str) -> str:
    """Kept, since a dispatcher asks for those of all workers at every event.

    power: 700 and 700.0 are equal, and written otherwise.
    """
    facts = asdict(device)
    for unstable in ("uuid", "l2_bytes"):
        del facts[unstable]
    facts["memory_bytes"] = round(device.memory_bytes / 2**30)
    return digest(facts)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Versions of everything between the source and the binary; empty text where it has no part."""

    python: str = ""
    torch: str = ""
    triton: str = ""
    cuda: str = ""
    ptxas: str = ""
    driver: str = ""
    compiler: str = ""
    #: Variables of the environment that change generated code, as `NAME=value NAME=value`.
    variables: str = ""

    @property
    def build_key(self) -> str:
        """What builder and runner must share for a binary to be loaded without compiling."""
        versions = [self.torch, self.triton, self.cuda, self.ptxas, self.compiler]
        return digest([*versions, *filter(None, [self.variables])])

    @property
    def key(self) -> str:
        """What two timings must share to be comparable."""
        facts = asdict(self)
        if not self.variables:  # keys of databases that are older than the field
            del facts["variables"]
        return digest(facts)
