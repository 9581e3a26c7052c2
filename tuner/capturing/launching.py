"""The launches of a config on the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.errors import KernelError
from search_spaces.kernel import Launch
from search_spaces.records import Config
from tuner.capturing.call_configs import CallConfigs, hook_values
from tuner.capturing.call_records import Call
from tuner.capturing.recorder import defaults_of


def launch_of(
    call: Call, configs: CallConfigs, config: Config, arguments: Mapping[str, Any]
) -> Launch:
    """The launch of a config. arguments: those of the call; the config's values replace them."""
    parts, hook = configs.parts, configs.hook(config)
    tuned = {**_other_options(call, config), **parts.launch_values(config)}
    given = {name: value for name, value in arguments.items() if name not in tuned}
    computed = parts.constants({**defaults_of(parts), **given}, tuned)
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


def _other_options(call: Call, config: Config) -> dict[str, Any]:
    """Options of the caller that no config sets, such as `enable_fp_fusion`."""
    return {name: value for name, value in call.options.items() if name not in config}
