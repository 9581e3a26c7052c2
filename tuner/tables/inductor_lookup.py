"""Exporter of Inductor's lookup table: configs of its own matmul template by shapes and strides.

The facts are those of torch 2.13, `torch/_inductor/lookup_table/choices.py`: a key is the device's
name, (dtype, shape, strides) of each input and the operation, joined by `+`. Its entries replace
the configs that Inductor would try; each names a template and overrides its parameters.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.errors import TunerError
from search_spaces.records import Config, Status, Value, Workload, canonical_json
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.text import device_stem

KERNEL = "matmul"
_TEMPLATE, _OPERATION = "triton::mm", "mm"
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
#: The vendor's product, which Inductor otherwise leaves out where a key has entries.
_LIBRARY: dict[str, Value] = {"template_id": "aten::mm"}
#: Parameters of ours, and the values with which the template does the same.
_PLAIN: dict[str, Value] = {"loads": "pointer", "persistent": False, "SPLIT_K": 1}
_DTYPES = ("bfloat16", "float16")


class InductorLookup:
    """`inductor`: a JSON file per device for `torch._inductor.config.lookup_table.table`."""

    def files(self, results: Results) -> Iterator[File]:
        found: dict[str, dict[str, list[dict[str, Value]]]] = defaultdict(dict)
        ids: dict[str, list[int]] = defaultdict(list)
        for task in results.tasks:
            if task.selection is None or task.selection.median_us is None:
                continue
            if task.key.kernel != KERNEL or task.key.workload.text("dtype") not in _DTYPES:
                continue
            if entries := _entries(results, task):
                device = task.key.device
                name = f"inductor-{device_stem(device.name, device.kind)}.json"
                found[name][lookup_key(device.name, task.key.workload)] = entries
                ids[name].append(task.task_id)
        if not found:
            raise _nothing(results)
        for name, table in sorted(found.items()):
            text = json.dumps(table, indent=1, sort_keys=True, allow_nan=False) + "\n"
            yield File(name, text.encode(), tuple(sorted(ids[name])))


def lookup_key(device: str, workload: Workload) -> str:
    """The key of a[M, K] @ b[K, N], both with contiguous rows, on a device."""
    m, n, k = (workload.size(dim) for dim in "MNK")
    dtype = f"torch.{workload['dtype']}"
    nodes = f"(({dtype}, {[m, k]}, {[k, 1]}), ({dtype}, {[k, n]}, {[n, 1]}))"
    return f"{device}+{nodes}+{_OPERATION}"


def _entries(results: Results, task: TaskInfo) -> list[dict[str, Value]]:
    """The shipped config and its ties, or else the fastest timed config that the template has."""
    assert task.selection is not None
    ships, workload = select_shipped(task.selection), task.key.workload
    chosen = [config for config in (ships.config, *ships.ties) if _is_plain(config)]
    if not chosen:
        timed = [
            (trial.median_us, trial.number, trial.config)
            for trial in results.trials(task.task_id)
            if trial.status is Status.CORRECT and trial.median_us and _is_plain(trial.config)
        ]
        chosen = [min(timed)[2]] if timed else []
    entries = {canonical_json(dict(one)): _entry(workload, one) for one in chosen}
    return [*entries.values(), _LIBRARY] if entries else []


def _is_plain(config: Config) -> bool:
    return all(config.get(name, only) == only for name, only in _PLAIN.items())


def _entry(workload: Workload, config: Config) -> dict[str, Value]:
    # The template's own value would be that of another BLOCK_K.
    step = config["BLOCK_K"]
    even = isinstance(step, int) and workload.size("K") % step == 0
    tile = {name: config.get(name, 1) for name in _TILE}
    return {"template_id": _TEMPLATE, **tile, "EVEN_K": even}


def _nothing(results: Results) -> TunerError:
    kernels = sorted({task.key.kernel for task in results.tasks})
    what = "no config that Inductor's template can launch" if KERNEL in kernels else "no matmul"
    return TunerError(
        f"run {results.run_id} has nothing for inductor: {what} among {', '.join(kernels)}",
        f"tune {KERNEL} in {' or '.join(_DTYPES)} with loads: [pointer] and SPLIT_K: [1]",
    )
