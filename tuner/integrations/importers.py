"""Read files of other tools as priors: tables of libraries, T4 results, Kernel Tuner's caches.

T4 1.0.0: `results` with `configuration`, `invalidity` and `measurements`
(https://github.com/AutoTuningAssociation/autotuning_methodology, kernel_tuner/schema/T4). Kernel
Tuner's cache: a header and `cache`, one entry per config, whose `time` is text where it failed; the
file has no closing braces while a run goes on (kernel_tuner/util.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.foreign_json import is_finite, object_of, parse_json, values_of
from search_spaces.records import Config, Workload
from tuner import integrations
from tuner.integrations import Adapter, TableKey
from tuner.integrations.priors import MOST, Prior

_KNOWN = "tables of vLLM and SGLang under their own names, T4 results, Kernel Tuner caches"


def import_priors(path: Path, kernel: str = "", workload: Workload | None = None) -> list[Prior]:
    """The priors of a file; raises TunerError for one that cannot be used.

    kernel, workload: of a file that names neither; a file of tuner's own T4 export names both.
    """
    text = _text(path)
    if path.name.endswith(".json") and "device_name=" in path.name:
        return [_of_table(path, text)]
    document = _document(path, text)
    if "results" in document and "schema_version" in document:
        return [_of_t4(path, document, kernel, workload)]
    if "cache" in document and "tune_params_keys" in document:
        return [_of_cache(path, document, kernel, workload)]
    raise TunerError(f"{path}: no format that can be imported", f"these can: {_KNOWN}")


# -- tables of libraries -----------------------------------------------------------------------
def _of_table(path: Path, text: str) -> Prior:
    """The prior of a table; libraries of one form of names differ in what their rows may have."""
    first: TunerError | None = None
    for adapter, key, device in _adapters(path):
        try:
            return _of_library(path, text, adapter, key, device)
        except TunerError as error:
            first = first or error
    assert first is not None
    raise first


def _of_library(path: Path, text: str, adapter: Adapter, key: TableKey, device: str) -> Prior:
    if reason := adapter.explain_unread(key):
        raise TunerError(f"{path}: {reason}", "import a file that the library reads")
    kernel = adapter.kernels[0]
    dims = adapter.dims(kernel, key)
    if dims is None:
        raise TunerError(
            f"{path}: no kernel of tuner computes {adapter.name} [{key}]",
            f"{kernel} is tuned for {adapter.covers}",
        )
    table = adapter.read(text, f"{path}")
    rows = {size: [adapter.translate_back(kernel, config)] for size, config in table.rows.items()}
    size_dim = adapter.size_dims[kernel]
    return Prior(kernel, path.name, adapter.name, dims, rows, size_dim, device, shipped=True)


def _adapters(path: Path) -> list[tuple[Adapter, TableKey, str]]:
    """The adapters of a file: that of its folder, else all with such names, its own form first."""
    named = [(one, one.parsed_name(path.name)) for one in integrations.adapters()]
    fitting = [(one, *parsed) for one, parsed in named if parsed]
    if not fitting:
        raise TunerError(f"{path}: no table of a known library has this name", f"known: {_KNOWN}")
    place = f"{path.resolve().parent}"
    inside = [found for found in fitting if found[0].folder in place]
    return inside or sorted(fitting, key=lambda found: found[0].file_name(*found[1:]) != path.name)


# -- results of tuners -------------------------------------------------------------------------
def _of_t4(
    path: Path, document: Mapping[str, Any], kernel: str, workload: Workload | None
) -> Prior:
    metadata = object_of(document.get("metadata"))
    dims = workload.as_dict() if workload else metadata.get("workload")
    timed: list[tuple[float, Config]] = []
    for row in _rows(path, document["results"]):
        if row.get("invalidity") == "correct":
            objective = next(iter(_list(row.get("objectives"))), "time")
            for one in map(object_of, _list(row.get("measurements"))):
                if one.get("name") == objective:
                    timed += _pair_with_time(one.get("value"), row.get("configuration"))
    name = kernel or _word(metadata.get("kernel"))
    return _prior(path, "t4", name, dims, timed, _word(metadata.get("device")))


def _of_cache(
    path: Path, document: Mapping[str, Any], kernel: str, workload: Workload | None
) -> Prior:
    names = [name for name in _list(document["tune_params_keys"]) if isinstance(name, str)]
    objective = _word(document.get("objective")) or "time"
    timed: list[tuple[float, Config]] = []
    for entry in _rows(path, list(object_of(document["cache"]).values())):
        config = {name: entry[name] for name in names if name in entry}
        timed += _pair_with_time(entry.get(objective, entry.get("time")), config)
    dims = workload.as_dict() if workload else {}
    return _prior(path, "kernel-tuner", kernel, dims, timed, _word(document.get("device_name")))


def _pair_with_time(time: object, config: object) -> list[tuple[float, Config]]:
    """The pair of a config that has a time; failures have text or an infinite time."""
    found = values_of(config)
    return [(float(f"{time}"), found)] if found and is_finite(time) else []


def _prior(
    path: Path,
    format: str,
    kernel: str,
    dims: object,
    timed: Sequence[tuple[float, Config]],
    device: str,
) -> Prior:
    found = values_of(dims)
    if not kernel or not found:
        missing = "kernel" if not kernel else "workload"
        raise TunerError(
            f"{path}: the file does not name the {missing}",
            "add --kernel NAME --workload 'M=4096 N=4096 ...'",
        )
    if not timed:
        raise TunerError(f"{path}: no config has a time", "import results with correct configs")
    best = [config for _, config in sorted(timed, key=lambda pair: pair[0])[:MOST]]
    return Prior(kernel, path.name, format, found, {0: best}, device=device)


# -- the file ----------------------------------------------------------------------------------
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TunerError(f"{path}: {error.strerror}", f"name a file; {_KNOWN}") from None
    except UnicodeDecodeError:
        raise TunerError(f"{path}: not text", f"these can be imported: {_KNOWN}") from None


def _document(path: Path, text: str) -> Mapping[str, Any]:
    """The JSON object; the cache of a run in progress is closed first."""
    for closed in (text, text.rstrip().rstrip(",") + "}}"):
        try:
            document = parse_json(closed)
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    raise TunerError(f"{path}: no JSON object", f"these can be imported: {_KNOWN}")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _rows(path: Path, rows: object) -> Iterable[Mapping[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TunerError(f"{path}: its results are no list of objects", "import another file")
    return rows
