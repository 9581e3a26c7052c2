"""Device kinds by name; each is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from search_spaces.errors import TunerError
from search_spaces.plugins import PluginGroup
from search_spaces.records import Value
from workers.backends.base import Backend
from workers.build.cache import INDUCTOR, TRITON

__all__ = ["Backend", "create", "environment", "names", "preload"]

BACKENDS = PluginGroup(
    "tuner.backends",
    "backend",
    {
        "cuda": "workers.backends.cuda:CudaBackend",
        "hip": "workers.backends.cuda:HipBackend",
        "cpu": "workers.backends.cpu:CpuBackend",
        "interpreter": "workers.backends.interpreter:InterpreterBackend",
        "simulated": "workers.backends.simulated:SimulatedBackend",
    },
)
#: What their processes spend seconds on before they open a device: torch, Triton, and the digest
#: of Triton's own files, by which it looks for binaries.
_GPU_LIBRARIES = (
    "torch",
    "triton",
    "triton.runtime.cache:triton_key",
    "workers.backends.cuda",
)


def names() -> tuple[str, ...]:
    """All known device kinds: the built-in ones and those of entry points `tuner.backends`."""
    return BACKENDS.names()


def create(kind: str, *, index: int = 0, cache_dir: str, **options: Value) -> Backend:
    """The backend of a device kind on device number `index`.

    cache_dir: where artifacts are installed; `environment(kind, cache_dir)` must have been in the
    process environment before torch was imported, but for what `preload` names. options: the
    backend's own keyword arguments. Raises `TunerError` for an unknown kind or option.
    """
    factory = BACKENDS.load(kind)
    try:
        backend = factory(index=index, cache_dir=cache_dir, **options)  # type: ignore[operator]
    except TypeError as error:
        if not any(name in f"{error}" for name in options):
            raise
        raise TunerError(
            f"backend `{kind}` was given an option it does not know: {error}",
            hint=f"check `options` of runner kind `{kind}`",
        ) from error
    return cast("Backend", backend)


def environment(kind: str, cache_dir: str) -> dict[str, str]:
    """Environment variables a child process of this kind needs before Python starts.

    The compilers' caches lie below `cache_dir`, where `workers.build.install` puts artifacts; of a
    GPU's, modules that hold nothing of a variant do not (see `workers.build.host_modules`).
    """
    root = Path(cache_dir).resolve()
    variables = {
        "TRITON_CACHE_DIR": str(root / TRITON),
        "TORCHINDUCTOR_CACHE_DIR": str(root / INDUCTOR),
        # Baselines are compiled here; a pool of compiler processes would disturb the timing.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if kind in ("cuda", "hip"):
        variables["TRITON_CACHE_MANAGER"] = "workers.build.host_modules:HostModules"
    if kind == "interpreter":
        variables["TRITON_INTERPRET"] = "1"
    if kind == "cpu":
        # Waiting threads must not burn the cores that the next candidate is timed on.
        variables["OMP_WAIT_POLICY"] = "passive"
        variables["OMP_DYNAMIC"] = "false"
    return variables


def preload(kind: str) -> tuple[str, ...]:
    """What a server may load from which processes of this kind are forked (`ForkServer`).

    Nothing for kinds whose libraries read the environment once, or start threads, when imported.
    """
    return _GPU_LIBRARIES if kind in ("cuda", "hip") else ()
