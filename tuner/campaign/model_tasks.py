"""The tasks that recorded calls of a model stand for: one line per kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from search_spaces import registry
from search_spaces.errors import WorkloadError
from search_spaces.recorded.model_calls import ModelCall, read_calls
from tuner.settings.sections import TaskConfig


def list_lines(lines: Sequence[TaskConfig], folder: Path) -> Iterator[TaskConfig]:
    """The lines of a campaign, with those of `from_model` replaced by lines of kernels.

    folder: that of config.yaml. What its kernel refuses is left out. Raises `TunerError` for a file
    that holds no calls, and for an unknown kernel.
    """
    for line in lines:
        if not line.from_model:
            yield line
            continue
        calls = read_calls(folder / line.from_model)
        for name in dict.fromkeys(call.kernel for call in calls):
            kept = [dict(each.dims) for each in calls if each.kernel == name and _is_taken(each)]
            changes = {"kernel": name, "workloads": kept, "from_model": ""}
            if kept:
                yield line.model_copy(update=changes)


def _is_taken(call: ModelCall) -> bool:
    try:
        registry.load(call.kernel).check_workload(call.workload)
    except WorkloadError:
        return False
    return True
