"""The dtypes of the tensors that a declared kernel is launched with, for the entries of tables.

The dims of a workload name one dtype, as a rule. Triton compiles, and tunes, for the dtypes of all
tensors, so a launch may use an entry only if all of them are those that were measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces import registry
from search_spaces.absent_device.fake_driver import answering_if_used
from search_spaces.declaration.launch_arguments import name_of
from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, Workload
from tuner.runtime.device_code import base_function


def launch_dtypes(
    kernel: Kernel | None, workload: Workload, config: Config, device: Device
) -> dict[str, str] | None:
    """Dtypes by parameter; None for built-in families, whose libraries look workloads up, for
    kernels without launches, and for those that launch several functions, none of their name.

    Launches that fill tensors before the kernel runs do not count.
    """
    if kernel is None or registry.is_ours(kernel.spec):
        return None
    try:
        with answering_if_used(device):
            launches = _launches(kernel, workload, config)
    except Exception:  # user code may raise anything, as on a machine that lacks its library
        return None
    launches = [launch for launch in launches if not _is_preparation(launch)]
    named = [launch for launch in launches if name_of(launch) == kernel.name] or launches
    found = [dict(_tensors(launch)) for launch in named]
    return found[0] if found and all(each == found[0] for each in found) else None


def _launches(kernel: Kernel, workload: Workload, config: Config) -> list[Launch]:
    from search_spaces.tensors import empty_tensors

    specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    tensors = {**kernel.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}
    return list(kernel.launches(workload, config, tensors))


def _is_preparation(launch: Launch) -> bool:
    return str(base_function(launch.fn).__module__) == "search_spaces.fill"


def _tensors(launch: Launch) -> Iterator[tuple[str, str]]:
    code = base_function(launch.fn).__code__
    names = code.co_varnames[: code.co_argcount]
    for name, value in (*zip(names, launch.args, strict=False), *launch.kwargs.items()):
        if hasattr(value, "dtype"):
            yield name, f"{value.dtype}".rpartition(".")[2]
