"""Device kinds by name: the spec of each, and the backend of a device.

A kind is known by its `BackendSpec`. The built-in kinds have one folder each; others come from
entry points of the group `tuner.backends`. A spec is imported on the first use of its kind.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from search_spaces.plugins import PluginGroup
from search_spaces.records import Value
from workers.backend_spec import BackendSpec, Peak
from workers.roles import Backend

__all__ = [
    "Backend",
    "BackendSpec",
    "Peak",
    "create",
    "environment",
    "names",
    "present",
    "spec",
    "spec_of_stored",
    "spec_of_target",
    "specs",
    "target_kinds",
    "timed_kinds",
]

_log = logging.getLogger(__name__)

BACKENDS = PluginGroup(
    "tuner.backends",
    "backend",
    {
        "cuda": "workers.backends.cuda.spec:CudaSpec",
        "hip": "workers.backends.hip.spec:HipSpec",
        "cpu": "workers.backends.cpu.spec:CpuSpec",
        "interpreter": "workers.backends.interpreter.spec:InterpreterSpec",
        "simulated": "workers.backends.simulated.spec:SimulatedSpec",
    },
)
#: Former methods of specs; `BackendSpec.preload` says it all.
_FORMER = ("builder_preload", "standby_preload", "torch_free_builder_preload", "warm_builder")
_specs: dict[str, BackendSpec] = {}
_unusable: set[str] = set()


def names() -> tuple[str, ...]:
    """All known device kinds, sorted; imports nothing."""
    return BACKENDS.names()


def spec(kind: str) -> BackendSpec:
    """The spec of a kind; raises `TunerError` for one that is unknown or cannot be loaded."""
    if kind not in _specs:
        _specs[kind] = _load(kind)
    return _specs[kind]


def spec_of_target(target: str) -> BackendSpec:
    """The spec of the kind that a target names, as `cuda:90` or `cpu:x86-64-avx2` does.

    Raises `TunerError` when the kind is unknown or its plug-in cannot be loaded.
    """
    kind = target.partition(":")[0]
    if kind not in names():
        raise TunerError(
            f"unknown target {target!r}{did_you_mean(kind, target_kinds())}",
            f"targets are {', '.join(target_kinds())}, or a code target such as cuda:90",
        )
    return spec(kind)


def spec_of_stored(kind: str) -> BackendSpec:
    """The spec of a kind in stored results; a plain one when its plug-in is not installed here."""
    try:
        return spec(kind)
    except TunerError:
        plain = BackendSpec()
        plain.kind = kind
        return plain


def specs() -> Iterator[BackendSpec]:
    """The specs of all kinds; logs plug-ins that cannot be loaded.

    Accelerators come before other kinds, and built-in kinds before plug-ins.
    """
    found = []
    for kind in names():
        try:
            found.append(spec(kind))
        except TunerError as error:
            if kind not in _unusable:
                _unusable.add(kind)
                _log.warning("%s; %s", error.message, error.hint)
    yield from sorted(found, key=_order)


def _order(one: BackendSpec) -> tuple[bool, bool]:
    return not one.accelerator, not BACKENDS.is_built_in(one.kind)


def timed_kinds() -> tuple[str, ...]:
    """The kinds whose devices are real and timed, in the order of `specs`."""
    return tuple(one.kind for one in specs() if one.timed and not one.replayed)


def target_kinds() -> tuple[str, ...]:
    """The kinds that a campaign's targets may name, in the order of `specs`."""
    return tuple(one.kind for one in specs() if one.timed)


def present(kinds: Iterable[str]) -> set[str]:
    """The kinds without those accelerators of which this machine has none."""
    found = map(spec, kinds)
    return {each.kind for each in found if not each.accelerator or each.likely_here()}


def create(kind: str, *, index: int = 0, cache_dir: str, **options: Value) -> Backend:
    """The backend of a device kind on device number `index`.

    cache_dir: where artifacts are installed. `environment(kind, cache_dir)` must have been in the
    process environment before torch was imported, except for the modules of the runners' preload.
    options: the backend's own keyword arguments. Raises `TunerError` for an unknown kind or option.
    """
    chosen = spec(kind)
    try:
        found = chosen.create(index=index, cache_dir=cache_dir, **options)
    except TypeError as error:
        if not any(name in f"{error}" for name in options):
            raise
        raise TunerError(
            f"backend `{kind}` does not take an option: {error}",
            hint=f"check `options` of runner kind `{kind}`",
        ) from error
    for method in ("info", "calibration", "prepare_part", "measure", "close"):
        if not hasattr(found, method):
            raise TunerError(
                f"the backend of kind {kind!r}, {type(found).__name__}, has no {method}(): "
                "derive its class from workers.roles.Backend"
            )
    return found


def environment(kind: str, cache_dir: str) -> dict[str, str]:
    """The environment that a runner's process of this kind needs before Python starts."""
    return spec(kind).environment(Path(cache_dir).resolve())


def _load(kind: str) -> BackendSpec:
    found = BACKENDS.load(kind)
    made = found() if inspect.isclass(found) and issubclass(found, BackendSpec) else found
    if not isinstance(made, BackendSpec):
        name = getattr(found, "__name__", type(found).__name__)
        raise BACKENDS.unusable(kind, f"is {name}, which is no BackendSpec")
    if made.kind != kind:
        raise BACKENDS.unusable(kind, f"names its kind {made.kind!r}; both names must be equal")
    former = [name for name in _FORMER if hasattr(made, name)]
    if former or "role" not in inspect.signature(made.preload).parameters:
        named = ", ".join(former) or "preload without a role"
        raise BACKENDS.unusable(kind, f"defines {named}, which is now preload(role, *, torch_free)")
    return made
