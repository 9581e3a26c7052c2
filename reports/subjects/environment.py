"""The environment: devices, toolchain, host, clocks, changes since the last run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from statistics import median

from reports.quantity import NOTHING, plain, size
from reports.source import RunData
from reports.view import Section, SectionSpec, Table
from results_db.stored_records import RunInfo, TaskInfo
from search_spaces.records import Device, Toolchain

Facts = list[tuple[str, str]]


def _watts(value: float) -> str:
    return f"{plain(value)} W"


_UNITS = {"memory_bytes": size, "shared_bytes": size, "l2_bytes": size, "power_limit_w": _watts}
_CLOCKS = {
    "sm_mhz": "clock, MHz",
    "sm_mhz_min": "lowest clock, MHz",
    "power_w": "highest power, W",
    "temperature_c": "temperature, °C",
    "throttle": "throttle reasons",
    "throttled": "passes voided by",
    "copy_tb_s": "copies, TB/s",
    "memory_errors": "errors of the memory",
}
#: Measurements of the run, which the section "How it was measured" shows.
_MEASURED = {"device_busy_share", "busy_share_while_ready", "device_s", "timing_s", "configs"}
_NAMES = {
    "sm_count": "multiprocessors or cores",
    "memory_bytes": "memory",
    "shared_bytes": "shared memory of a block",
    "l2_bytes": "L2 cache",
    "power_limit_w": "power limit",
    "registers": "registers of a multiprocessor",
    "warp_size": "warp size",
}


def build(data: RunData) -> Section:
    """Devices, toolchains, host, clocks, and the changes since the campaign's previous run."""
    infos = [task.info for task in data.tasks]
    devices = {info.key.device.fingerprint: info.key.device for info in infos}
    absent = {task.info.key.device.fingerprint: task.absent for task in data.tasks}
    toolchains = {info.key.toolchain.key: info.key.toolchain for info in infos}
    context = {
        "devices": [_device(device, absent[print_]) for print_, device in devices.items()],
        "toolchains": [_toolchain(toolchain) for toolchain in toolchains.values()],
        "run": _run(data.run),
        "clocks": _clocks(data),
        "previous": data.previous,
        "changes": Table.of(("fact", "before", "now"), list_environment_changes(data)),
    }
    return Section("environment", "Environment", "environment.html.j2", context, folded=True)


def _device(device: Device, absent: bool) -> tuple[str, Facts]:
    facts = []
    for name, value in asdict(device).items():
        if name == "name" or not value or (name == "warp_size" and value == 1):
            continue
        shown = _UNITS[name](value) if name in _UNITS else f"{value}"
        facts.append((_NAMES.get(name, name), f"…{shown[-8:]}" if name == "uuid" else shown))
    if absent:
        facts.append(("timed", "never: the device is absent"))
    return device.name or device.target, facts


def _toolchain(toolchain: Toolchain) -> Facts:
    return [(name, value) for name, value in asdict(toolchain).items() if value]


def _run(run: RunInfo) -> Facts:
    return [
        ("run", f"{run.run_id}"),
        ("campaign", run.campaign),
        ("status", run.status),
        ("started", _moment(run.started_at)),
        ("finished", _moment(run.finished_at)),
        ("campaign hash", run.spec_hash),
        ("seed", f"{run.seed}"),
        *_readable(run.environment),
    ]


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip() if moment else NOTHING


def _readable(facts: Mapping[str, object]) -> Facts:
    return [
        (name.replace("_", " "), "yes" if value is True else "no" if value is False else f"{value}")
        for name, value in sorted(facts.items())
        if value not in (None, "") and name not in _MEASURED
    ]


def _clocks(data: RunData) -> Facts:
    """Records of the device monitors over all trials: ranges of numbers, counts of words."""
    seen: dict[str, list[float | str]] = {}
    for trial in data.trials:
        for name, value in trial.clocks.items():
            seen.setdefault(name, []).append(value)
    facts = []
    for name, values in sorted(seen.items()):
        numbers = [value for value in values if isinstance(value, int | float)]
        words = Counter(f"{value}" or "none" for value in values if isinstance(value, str))
        parts = [_range(numbers)] if numbers else []
        parts += [f"{word} ({number:,} trials)" for word, number in words.most_common(6)]
        facts.append((_CLOCKS.get(name, name.replace("_", " ")), ", ".join(parts)))
    return facts


def _range(numbers: Sequence[float]) -> str:
    texts = [plain(number, 4) for number in (min(numbers), median(numbers), max(numbers))]
    if texts[0] == texts[2]:
        return texts[0]
    return f"{texts[0]} to {texts[2]}, median {texts[1]}"


def list_environment_changes(data: RunData) -> list[tuple[str, str, str]]:
    """(name, before, now) for each fact that changed since the previous run."""
    if data.previous is None:
        return []
    before = _flat(data.previous, data.previous_tasks)
    now = _flat(data.run, [task.info for task in data.tasks])
    return [
        (name, before.get(name, NOTHING), now.get(name, NOTHING))
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _flat(run: RunInfo, tasks: Iterable[TaskInfo]) -> dict[str, str]:
    facts = {name: text for name, text in _readable(run.environment)}
    facts["campaign hash"] = run.spec_hash
    seen: dict[str, set[str]] = {}
    for task in tasks:
        key = task.key
        seen.setdefault("devices", set()).add(f"{key.device.name} ({key.device.target})")
        if key.device.power_limit_w:
            limit = _watts(key.device.power_limit_w)
            seen.setdefault(f"power limit of {key.device.name}", set()).add(limit)
        seen.setdefault(f"code of {key.kernel}", set()).add(key.launch_hash)
        for name, version in _toolchain(key.toolchain):
            seen.setdefault(name, set()).add(version)
    return facts | {name: ", ".join(sorted(values)) for name, values in seen.items()}


SECTION = SectionSpec(build, after="noise")
