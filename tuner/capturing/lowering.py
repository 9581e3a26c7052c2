"""The free scalars of calls that no compiled launch shows: those of Triton's interpreter.

A process that interprets kernels cannot compile them. So another one, which is kept, compiles the
launch of a call for an absent device.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.records import digest
from search_spaces.source_positions import one_line
from tuner.capturing.call_records import ALIGNMENT, Call, Encoded
from tuner.capturing.data_flow import free_scalars
from tuner.capturing.grids import compiled_in
from tuner.runtime import kernel_hash
from tuner.runtime._own_configs import hook_of
from workers.backend_kinds import spec
from workers.processes.fork_server import ForkServer
from workers.processes.preload import TORCH, Preload, WorkerRole
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SupervisedChild,
)

_log = logging.getLogger(__name__)
_TARGET = "cuda:90"
_TIMEOUT_S = 60.0
_UNSORTED = "%s: no argument is called free: compiling it for %s failed (%s)"
#: Free scalars by what the TTIR of a launch depends on.
_known: dict[str, frozenset[str]] = {}


def lower(call: Call, parts: AutotuneParts) -> frozenset[str]:
    """The free scalars of a call's own launch; none where it does not compile.

    Raises `OSError` or `RuntimeError` where no process starts.
    """
    exact = _list_exact(call, parts)
    kinds = {
        name: encoded if name in exact else _kind_of(call, encoded)
        for name, encoded in call.arguments.items()
    }
    code = kernel_hash(parts.fn)
    key = digest([code, call.place, kinds, dict(call.default or {}), dict(call.options)])
    if key not in _known:
        service = f"{__name__}:{LoweringService.__name__}"
        child = SupervisedChild(service, server=_server(), name="lowering")
        try:
            _known[key] = child.request("lower", call, timeout_s=_TIMEOUT_S)
        except (ChildError, ChildTimeout, ChildDied) as error:
            level = logging.WARNING if isinstance(error, ChildTimeout) else logging.INFO
            _log.log(level, _UNSORTED, call.kernel, _TARGET, one_line(error))
            _known[key] = frozenset()
        finally:
            child.retire()
    return _known[key]


class LoweringService:
    """In the process: compiles a call."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache = cache_dir

    def lower(self, call: Call) -> frozenset[str]:
        from search_spaces.absent_device.module_sets import modules_of
        from tuner.capturing.call_configs import CallConfigs, arguments_on_meta, launch_of
        from tuner.capturing.places import load_place
        from tuner.capturing.recorder import parts_of
        from workers.compiling.absent_target import use_target
        from workers.compiling.gpu import compile_launch
        from workers.device import offline
        from workers.environment import set_variables

        device = offline(_TARGET)
        with (
            modules_of(device),
            set_variables(TRITON_CACHE_DIR=f"{self._cache}"),
            use_target(_TARGET, device) as driver,
        ):
            configs = CallConfigs(call, parts_of(load_place(call.place), call))
            launch = launch_of(call, configs, call.default or {}, arguments_on_meta(call))
            return free_scalars(compile_launch(launch, driver)[0].asm["ttir"])


def end_server() -> None:
    """End the process from which those that compile are forked; the next call starts another."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


atexit.register(end_server)


@cache
def _server() -> ForkServer:
    compilers = spec("cuda").preload(WorkerRole.BUILDER, torch_free=True)
    loaded = Preload.of(TORCH, compilers, "tuner.capturing.declared")
    return ForkServer("lowering", preload=loaded, shared=True)


def _list_exact(call: Call, parts: AutotuneParts) -> frozenset[str]:
    """The arguments on whose values the TTIR may depend."""
    if parts.pruner is not None or any(map(hook_of, parts.tuner.configs)):
        return frozenset(call.arguments)
    return compiled_in(parts) | {*call.grid.steered_by}


def _kind_of(call: Call, encoded: Encoded) -> Encoded:
    """What of an argument at run time changes the TTIR, where that is less than its value."""
    if type(encoded) is float:
        return "float"
    if type(encoded) is int and encoded != 1:  # Triton compiles 1 in
        return "int", encoded % ALIGNMENT == 0, encoded.bit_length() // 32, encoded < 0
    if isinstance(encoded, Mapping) and (at := encoded.get("view")) is not None:
        return call.views[at].dtype
    return encoded
