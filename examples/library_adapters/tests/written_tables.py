"""Tables of captured calls, as `tuner run --calls` writes them."""

from __future__ import annotations

from tuner.runtime import DeviceFacts, Entry, Table
from tuner.tables import text_of


def write_table(folder, place, keys, *, triton="3.6.0", device="NVIDIA H200"):
    """A table for the launches of a kernel; keys: their arguments."""
    kernel = place.partition(":")[2]
    table = Table(
        kernel, "0" * 16, DeviceFacts(device, "cuda", "cuda:90"), {"triton": triton},
        tuple(Entry(key, {"num_warps": 4}) for key in keys),
        provenance={"place": place}, launch_hash="1" * 16,
    )  # fmt: skip
    path = folder / f"{kernel}@{triton}-{device[-4:]}.json"
    path.write_text(text_of(table))
