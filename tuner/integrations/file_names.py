"""File names of size tables: `E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`."""

from __future__ import annotations

import re

from tuner.integrations.adapter import TableKey

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
