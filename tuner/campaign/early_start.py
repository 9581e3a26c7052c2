"""The libraries of a run's workers, loaded while the driver still imports its own.

Which kinds of devices a run needs is mostly known before its kernels are imported: from the
targets, and from the names of built-in families.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from search_spaces import registry
from search_spaces.errors import TunerError
from workers import backend_kinds, pools

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.settings.sections import Settings


def begin(
    kernels: Iterable[tuple[Sequence[str] | None, Sequence[str]]],
    paths: Sequence[str] = (),
    *,
    stand_ins: bool = False,
    torch_free: bool = False,
) -> None:
    """Begin to load what workers of a local pool need, and return at once.

    kernels: for each one its kinds (None: not known yet) and its targets (empty: its own kinds).
    stand_ins: also for the kinds that verify variants of absent accelerators. torch_free: as in
    `PoolSpec`. A wrong guess costs processor time only; mistakes are left to the run, which reports
    them.
    """
    kinds: set[str] = set()
    try:
        for own, targets in kernels:
            kinds |= kinds_of_targets(targets or own or _usual(), own)
        found = backend_kinds.present(kinds)
        if stand_ins:
            found |= {backend_kinds.spec(kind).stand_in for kind in kinds - found} - {""}
    except TunerError:
        return
    if found:
        pools.prestart(sorted(found), paths, torch_free=torch_free)


def end() -> None:
    """End what `begin` began and no pool has taken."""
    pools.end_prestarted()


def load_workers(settings: Settings, campaign: str, base: Path) -> None:
    """Begin to load what the workers of a campaign need, where its pool is on this machine.

    base: the folder of config.yaml.
    """
    found = settings.campaigns.get(campaign)
    if pools.is_here(settings.pool.kind, settings.pool.address) and found is not None:
        kernels = [
            (registry.kinds_by_name(line.kernel), line.targets or found.targets)
            for line in found.tasks
        ]
        free = all(registry.compiles_without_torch(line.kernel) for line in found.tasks)
        begin(kernels, (str(base.resolve()),), torch_free=free)


def kinds_of_targets(targets: Iterable[str], own: Sequence[str] | None = None) -> set[str]:
    """The kinds of runners that the targets need, those of a kernel's own kinds only.

    A code target (`cuda:90`) also needs the kind that stands in for an absent device. Raises
    `TunerError` for an unknown kind.
    """
    kinds: set[str] = set()
    for target in targets:
        kind, _, code = target.partition(":")
        if own is None or kind in own:
            stand_in = backend_kinds.spec(kind).stand_in if code else ""
            kinds |= {kind, stand_in} - {""}
    return kinds


def _usual() -> Sequence[str]:
    """The kinds that a kernel probably runs on: the accelerators here, else the processors."""
    accelerators = [spec.kind for spec in backend_kinds.specs() if spec.accelerator]
    return sorted(backend_kinds.present(accelerators)) or ("cpu",)
