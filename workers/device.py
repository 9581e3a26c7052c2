"""Devices of any kind: found, detected by the process that owns them, or known by target.

Each function asks the spec of the kind (`workers.backend_kinds`). Pools and the command line call
`find_devices`, which initialises no device; only the process that owns a device calls `detect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from search_spaces.records import Device
from workers import backend_kinds


def detect(kind: str, index: int = 0) -> Device:
    """The device of that kind and number, for the process that owns it; may initialise it.

    index: counts the devices that are visible to this process. Raises `TunerError` when there is
    no such device or kind.
    """
    return backend_kinds.spec(kind).detect(index)


def find_devices(kind: str) -> list[Device]:
    """The devices of that kind visible to this process, in order; initialises none of them."""
    return backend_kinds.spec(kind).find_devices()


def offline(target: str, kind: str | None = None) -> Device:
    """The limits of a target that is absent here; what is no limit is 0.

    kind: the device's kind, by default the target's own. Raises `TunerError` that names the known
    targets.
    """
    own = target.partition(":")[0]
    if own not in backend_kinds.names() or not backend_kinds.spec(own).usual_target:
        kinds = [one.kind for one in backend_kinds.specs() if one.usual_target]
        raise TunerError(
            f"unknown target {target!r}{did_you_mean(own, kinds)}",
            f"targets for absent devices are those of {', '.join(kinds)}, such as "
            + " and ".join(backend_kinds.spec(one).usual_target for one in kinds),
        )
    device = backend_kinds.spec(own).offline(target)
    return device if kind is None else replace(device, kind=kind)


def assume_device(targets: Sequence[str] = ()) -> Device | None:
    """The absent or present device that targets such as `cuda` and `hip:gfx942` most likely mean.

    The first target of a kind that can be built for in its absence decides: its first device here,
    else its limits. None without such a target. targets: by default any kind with a device here,
    else the first kind.
    """
    if not targets:
        kinds = [one for one in backend_kinds.specs() if one.usual_target]
        targets = [one.kind for one in kinds if one.find_devices()] or [one.kind for one in kinds]
    for target in targets:
        kind, _, code = target.partition(":")
        usual = backend_kinds.spec(kind).usual_target if kind in backend_kinds.names() else ""
        if usual:
            here = [one for one in find_devices(kind) if not code or one.target == target]
            return here[0] if here else offline(target if code else usual)
    return None
