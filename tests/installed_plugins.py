"""Plug-ins as packages install them: a folder with the metadata of a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install_plugins(folder: Path, name: str, group: str, places: Mapping[str, str]) -> Path:
    """Register entry points under a distribution in `folder`, which must be on the import path.

    places: `module:object` by the name of the entry point. Returns the folder of the metadata.
    """
    facts = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{entry} = {place}" for entry, place in places.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return facts
