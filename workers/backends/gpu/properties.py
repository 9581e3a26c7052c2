"""A GPU's properties as torch reports them."""

from __future__ import annotations

from typing import Any

from search_spaces.errors import TunerError


def torch_properties(kind: str, index: int) -> Any:
    """torch's properties of GPU `index`; initialises the device.

    kind: `cuda` or `hip`. Raises `TunerError` when torch is built for the other kind, or has no
    such device.
    """
    import torch

    built_for = "hip" if torch.version.hip else "cuda"
    count = torch.cuda.device_count() if built_for == kind else 0
    if index >= count:
        raise TunerError(
            f"no {kind} device {index}: {count} visible to this process",
            f"check the driver and that torch {torch.__version__} is a {kind} build",
        )
    return torch.cuda.get_device_properties(index)
