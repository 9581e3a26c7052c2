"""The configs that the library has for a call, their pre_hooks and what these do.

`tuner.runtime` finds the hook of a table's config by the same rule. So a config whose hook it would
not find is neither tuned nor exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from search_spaces.absent_device.fake_driver import answering_if_used, get_described
from search_spaces.adoption.autotuned import AutotuneParts, given_values
from search_spaces.errors import KernelError
from search_spaces.kernel import Launch
from search_spaces.records import Config, Device, Workload
from search_spaces.space import Constraint
from tuner.capturing.arguments import placed_in
from tuner.capturing.call_records import Call
from tuner.capturing.inputs import arguments_of, make_tensor
from tuner.capturing.zeroing import HookProblem, zeroed_by
from tuner.runtime._arguments import defaults_of
from tuner.runtime._own_configs import OwnConfigs, UnknownHook, as_config, hook_of


class CallConfigs:
    """The library's configs on the arguments of one call.

    Its pruning is called as the library does, with tensors on the device `meta`, once for each
    device that torch and Triton describe. All methods raise `KernelError` where that raises.
    """

    def __init__(self, call: Call, parts: AutotuneParts) -> None:
        self._call = call
        self._whole = replace(parts, keywords=call.keywords)
        #: What decides on hooks, so that a change of it is a change of the launches.
        self._behind = parts.pruner, [hook_of(item) for item in parts.tuner.configs]

    @property
    def own(self) -> OwnConfigs:
        """The configs before and after pruning."""
        return self._pruned[0]

    @property
    def parts(self) -> AutotuneParts:
        """The kernel with the keywords of the call and, where pruning makes configs, with these."""
        return self._pruned[1]

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return arguments_on_meta(self._call)

    @cached_property
    def _by_device(self) -> dict[Device | None, tuple[OwnConfigs, AutotuneParts]]:
        return {}

    @property
    def _pruned(self) -> tuple[OwnConfigs, AutotuneParts]:
        found = self._by_device.get(get_described())
        if found is None:
            prune = self._whole.bound_pruner(self._arguments, self._grid)
            own, parts = OwnConfigs(self._whole.tuner.configs, prune), self._whole
            if own.makes_configs:
                parts = parts.apply_pruner(self._arguments, self._grid)
            found = self._by_device[get_described()] = own, parts
        return found

    def _grid(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        return self._call.grid.of(values) or self._call.grid.sizes

    def hook(self, config: Config) -> Any:
        """The hook of a config; None for no hook. Raises `KernelError` where it is unknown."""
        try:
            return self.own.hook(self.parts.launch_values(config))
        except UnknownHook:
            raise KernelError(
                f"captured kernel {self._call.kernel}: the pre_hook of {dict(config)} is unknown",
                "its library launches no such config on these arguments; leave it out",
            ) from None

    def list_zeroed(self, config: Config) -> tuple[str, ...]:
        """The arguments that the hook of a config sets to zero; also raises `HookProblem`."""
        hook = self.hook(config)
        if hook is None:
            return ()
        values = self.parts.launch_values(config)
        return zeroed_by(hook, self._arguments, hook_values(values))

    @property
    def constraints(self) -> list[Constraint]:
        """What a config must keep, so that the library could launch it.

        Where pruning makes configs or gives hooks, a config is one of those, or one that pruning
        leaves as it is. Where configs have different hooks, those of others are unknown.
        """
        pruner, hooks = self._behind
        if pruner is None and not any(hooks):
            return []
        reason = "its library launches no such config, or its pre_hook is unknown"
        return [Constraint("launch", self._could_launch, reason)]

    def _could_launch(self, config: Config, workload: Workload, device: Device) -> bool:
        with answering_if_used(device):
            own, given = self.own, given_values(config)
            if own.prune is None or not (own.makes_configs or own.has_hooks):
                kept = True
            else:
                kept = own.keeps(self.parts.launch_values(given))
            if not kept or not own.has_hooks:
                return kept
            try:
                self.list_zeroed(given)
            except (KernelError, HookProblem):
                return False
        return True


def hook_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook is given of a config, which is more than a launch passes."""
    found: dict[str, Any] = as_config(values).all_kwargs()
    return found


def arguments_on_meta(call: Call) -> dict[str, Any]:
    """The arguments of a call with tensors without storage."""
    tensors = [make_tensor(call, at, {}, None, "meta") for at in range(len(call.buffers))]
    return arguments_of(call, tensors, placed_in(call.arguments.values()))


# -- the launches of a config on the arguments of a call -------------------------------------------
def launch_of(
    call: Call, configs: CallConfigs, config: Config, arguments: Mapping[str, Any]
) -> Launch:
    """The launch of a config. arguments: those of the call; the config's values replace them."""
    parts, hook = configs.parts, configs.hook(config)
    # Options of the caller that no config sets, such as `enable_fp_fusion`, stay.
    options = {name: value for name, value in call.options.items() if name not in config}
    tuned = {**options, **parts.launch_values(config)}
    given = {name: value for name, value in arguments.items() if name not in tuned}
    computed = parts.constants({**defaults_of(parts.fn.fn), **given}, tuned)
    if hook is not None:  # it may set the block shapes of descriptors
        hook({**given, **computed, **hook_values(tuned)})
    grid = call.grid.of({**given, **tuned, **computed})
    if grid is None:
        raise KernelError(
            f"captured kernel {call.kernel}: its grid is not known for "
            + ", ".join(f"{name}={tuned.get(name)}" for name in call.grid.reads),
            "capture the call again with a configuration near that one",
        )
    positional, keywords = parts.split(given)
    return Launch(parts.fn, grid, positional, {**keywords, **tuned, **computed})


def run(launch: Launch) -> None:
    """Launch now. As on a GPU, infinities and NaN give no warning in Triton's interpreter."""
    import numpy

    with numpy.errstate(all="ignore"):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
