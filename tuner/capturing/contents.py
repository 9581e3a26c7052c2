"""Kept contents of tensors, compressed, by their SHA-256. They are unpacked when they are used."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Bytes that are unpacked at once where contents are only examined.
_CHUNK = 1 << 20
#: The fastest level: tensors of indices shrink by it nearly as far as by others.
_LEVEL = 1


class Packed(Mapping[str, bytes]):
    """Contents by name, of which only one is unpacked at a time."""

    def __init__(self, packed: Mapping[str, bytes] | None = None) -> None:
        #: What a file holds, by name.
        self.packed: dict[str, bytes] = dict(packed or {})

    def add(self, data: bytes) -> str:
        """Keep contents; their name."""
        name = hashlib.sha256(data).hexdigest()
        if name not in self.packed:
            self.packed[name] = zlib.compress(data, _LEVEL)
        return name

    def __getitem__(self, name: str) -> bytes:
        return zlib.decompress(self.packed[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def total(self) -> int:
        """The bytes that are held."""
        return sum(map(len, self.packed.values()))


def packed_of(contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Contents as a file holds them."""
    if isinstance(contents, Packed):
        return contents.packed
    return {name: zlib.compress(data, _LEVEL) for name, data in contents.items()}


def check_packed(name: str, packed: bytes, size: int) -> None:
    """Raise ValueError or `zlib.error` for contents that have not their size and checksum.

    Little memory is used, whatever they would unpack to.
    """
    unpacker, sha, seen = zlib.decompressobj(), hashlib.sha256(), 0
    rest = packed
    while rest and seen <= size and not unpacker.eof:
        part = unpacker.decompress(rest, _CHUNK)
        rest, seen = unpacker.unconsumed_tail, seen + len(part)
        sha.update(part)
        if not part and not rest:
            break
    if seen != size or not unpacker.eof or sha.hexdigest() != name:
        raise ValueError(f"the contents {name:.12} do not have their size or checksum")


@dataclass
class Contents:
    """What a recorder keeps."""

    #: Whether contents of floating-point tensors are kept, and those of any size.
    all: bool = False
    #: The largest tensor of small integers or flags that is kept, in bytes.
    most_bytes: int = 1 << 20
    #: The same for integers of 32 and 64 bits, which may be indices: others would repeat some, or
    #: miss the order that a kernel needs.
    most_index_bytes: int = 32 << 20
    #: The most memory of all kept contents, in bytes.
    most_total: int = 256 << 20
    kept: Packed = field(default_factory=Packed)

    def wants(self, dtypes: Sequence[torch.dtype], size: int) -> bool:
        if self.all:
            return True
        if any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
            return False
        wide = all(dtype.itemsize >= 4 for dtype in dtypes)
        most = self.most_index_bytes if wide else self.most_bytes
        return size <= most and self.kept.total < self.most_total

    def keep(self, data: bytes) -> str:
        return self.kept.add(data)
