"""What the families' constraints share: config values as integers, and limits of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload

#: Threads of one block at most, on every GPU that Triton compiles for.
MAX_THREADS = 1024
#: The largest size that a launch takes as a 32-bit argument.
MAX_SIZE = 2**31 - 1
#: The largest side of a matrix in tiles: places in tiles and parts that exceed it fit into 32 bits.
LARGEST_SIDE = MAX_SIZE - 2**16
#: Multiprocessors of a device that does not say how many it has.
_USUAL_MULTIPROCESSORS = 128
#: Parameters of products whose ranges follow the sizes.
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages", "SPLIT_K")


def integer(config: Config, name: str, missing: int = 1) -> int:
    """The value of a parameter that is an integer; `missing` where the config does not have it."""
    return int(str(config.get(name, missing)))


def block_parameter(name: str, size: int, low: int, high: int) -> PowerOfTwo:
    """Blocks up to the power of two that holds the whole size; tensor cores need at least 16."""
    top = max(16, min(high, 1 << (size - 1).bit_length()))
    return PowerOfTwo(name, min(low, top), top)


def admitted_tiles(described: bool) -> tuple[str | Parameter, ...]:
    """What launches of products take whatever the sizes; descriptors only where `described`."""
    loads = Choice("loads", ("pointer", "descriptor") if described else ("pointer",))
    return (*_TILE, loads)


def nearest(parameter: Parameter, usual: int) -> Value:
    """The value of a parameter of numbers that is nearest to the usual one."""
    return min(parameter.values(), key=lambda value: abs(int(str(value)) - usual))


def nearest_values(bound: BoundSpace, usual: Mapping[str, Value]) -> dict[str, Value]:
    """The values of a usual config that the space's parameters have nearest to it, in their order.

    Values that are no numbers stay; a parameter that the usual config does not name has no value.
    """
    found: dict[str, Value] = {}
    for parameter in bound.parameters:
        if parameter.name in usual:
            value = usual[parameter.name]
            found[parameter.name] = nearest(parameter, value) if isinstance(value, int) else value
    return found


def threads(config: Config, device: Device) -> int:
    """Threads of one program."""
    return integer(config, "num_warps") * (device.warp_size or 32)


def programs_at_once(device: Device) -> int:
    """Programs that run at the same time, one per multiprocessor."""
    return device.sm_count or _USUAL_MULTIPROCESSORS


def fits_shared(needed_bytes: int, device: Device) -> bool:
    """Whether a program's shared memory fits; 0 is a device whose limit is not known."""
    return device.shared_bytes == 0 or needed_bytes <= device.shared_bytes


def has_capability(device: Device, least: int) -> bool:
    """Whether the target is CUDA of this compute capability (90 for 9.0) or a newer one."""
    kind, _, capability = device.target.partition(":")
    return kind == "cuda" and capability.isdecimal() and int(capability) >= least


def _has_descriptors(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("loads") != "descriptor" or has_capability(device, 90)


DESCRIPTORS = Constraint(
    "descriptors", _has_descriptors, "tensor descriptors need cuda:90 or newer"
)


def _has_tensor_floats(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision", "ieee") == "ieee" or has_capability(device, 80)


TENSOR_FLOATS = Constraint("tensor_floats", _has_tensor_floats, "TF32 needs cuda:80 or newer")


def _block_exists(config: Config, workload: Workload, device: Device) -> bool:
    return threads(config, device) <= MAX_THREADS


BLOCK_EXISTS = Constraint("block", _block_exists, f"a block has at most {MAX_THREADS} threads")


def fits_registers(held: Callable[[Config, Workload], int], most: int) -> Constraint:
    """At most `most` elements for each thread of a program, which works on `held` at a time."""

    def fits(config: Config, workload: Workload, device: Device) -> bool:
        return held(config, workload) <= threads(config, device) * most

    return Constraint("registers", fits, f"a thread would hold more than {most} elements")


def keeps_threads_busy(held: Callable[[Config, Workload], int], least: int) -> Constraint:
    """At least `least` elements for each thread of a program, unless it has a single warp."""

    def busy(config: Config, workload: Workload, device: Device) -> bool:
        enough = held(config, workload) >= threads(config, device) * least
        return config["num_warps"] == 1 or enough

    return Preference("busy", busy, f"threads would hold fewer than {least} elements")


def pipelines_blocks(blocks: Callable[[Config, Workload], int]) -> Constraint:
    """No more `stages` than a program has blocks."""

    def pipelines(config: Config, workload: Workload, device: Device) -> bool:
        return integer(config, "stages") <= blocks(config, workload)

    reason = "a program has too few blocks to load so far ahead"
    return Preference("pipeline", pipelines, reason)
