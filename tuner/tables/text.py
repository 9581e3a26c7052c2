"""Encode tables as JSON: equal bytes for equal content. `runtime/_read.py` decodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tuner.runtime import SCHEMA, Entry, Span, Table, file_stem, key_order, slug


def file_name(table: Table) -> str:
    """`softmax@NVIDIA_H200-1a2b3c4d.json`: kernel, device, start of the device's fingerprint.

    A table with numerics has them as a suffix: a folder may hold the plain table, too.
    """
    suffix = f"-{slug(table.device.fingerprint, 8)}" if table.device.fingerprint else ""
    suffix += "" if table.numerics == "any" else f"_{slug(table.numerics, 20)}"
    device = device_stem(table.device.name, table.device.kind)
    return f"{file_stem(table.kernel)}@{device}{suffix}.json"


def device_stem(name: str, kind: str) -> str:
    """A device as part of a file name, with a prefix for a simulated device."""
    stem = slug(name, 60)
    return f"{kind}-{stem}" if kind == "simulated" else stem


def text_of(table: Table) -> str:
    """The table's JSON: two-space indent, entries by key, a newline at the end.

    Names are sorted, except the dims of a key, which stay as the kernel declares them.
    """
    return json.dumps(_sort_names(document_of(table)), indent=2, allow_nan=False) + "\n"


def document_of(table: Table) -> dict[str, Any]:
    """The table as plain data, as docs/table.schema.json describes it."""
    device = table.device
    ordered = sorted(table.entries, key=lambda entry: key_order(entry.key))
    return {
        "schema": SCHEMA,
        "kernel": {
            "name": table.kernel,
            "launch_hash": table.launch_hash,
            "kernel_hashes": list(table.kernel_hashes),
            "space_hash": table.space_hash,
        },
        "device": {
            "name": device.name,
            "kind": device.kind,
            "target": device.target,
            "sm_count": device.sm_count,
            "memory_bytes": device.memory_bytes,
            "shared_bytes": device.shared_bytes,
            "power_limit_w": device.power_limit_w,
            "fingerprint": device.fingerprint,
        },
        "toolchain": dict(table.toolchain),
        "lookup": {
            "rule": table.rule.rule,
            "max_distance": table.rule.max_distance,
            "numeric": list(table.rule.numeric),
        },
        "default": None if table.default is None else dict(table.default),
        "entries": [_entry(entry) for entry in ordered],
        "provenance": dict(table.provenance),
        **({"coverage": [dict(each) for each in table.coverage]} if table.coverage else {}),
    }


def _sort_names(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: value[name] if name == "key" else _sort_names(value[name])
            for name in sorted(value)
        }
    return [_sort_names(item) for item in value] if isinstance(value, list | tuple) else value


def _entry(entry: Entry) -> Mapping[str, Any]:
    return {
        "key": dict(entry.key),
        "config": dict(entry.config),
        "verdict": entry.verdict,
        "median_us": entry.median_us,
        "speedup_over_default": entry.speedup_over_default,
        "interval": None if entry.interval is None else list(entry.interval),
        "tie_set": [dict(config) for config in entry.tie_set],
        "provenance": dict(entry.provenance),
        **({} if entry.dtypes is None else {"dtypes": dict(entry.dtypes)}),
        **({"sizes": _spans(entry.sizes)} if entry.sizes else {}),
        **({"serves": _spans(entry.serves)} if entry.serves else {}),
        **({"baselines": dict(entry.baselines)} if entry.baselines else {}),
        **({"implementation": entry.implementation} if entry.baselines else {}),
    }


def _spans(spans: Mapping[str, Span]) -> Mapping[str, list[int]]:
    return {
        name: [span.low, span.high, *([span.multiple] if span.multiple > 1 else [])]
        for name, span in spans.items()
    }
