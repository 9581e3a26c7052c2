"""Tunes the calls of a step, and puts the winners into a folder of tables."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from results_db.promotion_records import PromotionOutcome
from search_spaces.baselines import is_compiled
from search_spaces.errors import TunerError
from search_spaces.records import digest
from tuner.api import Session, TuneResult
from tuner.optimizing.call_times import CallTime
from tuner.optimizing.launch_record import find_placed
from tuner.optimizing.optimize_result import TunedCall
from tuner.optimizing.worthwhile_calls import share_time
from tuner.tables.published_versions import lock_folder, replace_files


def tune_calls(
    session: Session, ranked: Sequence[tuple[CallTime, float]], deadline_s: float, folder: Path
) -> list[TunedCall]:
    """Tune calls in this order until the deadline; entries that are surely ahead go into `folder`.

    ranked: calls with the seconds that each may save. deadline_s: by `time.monotonic`. A Ctrl-C
    ends the tuning as the deadline does.
    """
    found = []
    for at, (call, _) in enumerate(ranked):
        search_s = share_time(deadline_s - time.monotonic(), [saving for _, saving in ranked[at:]])
        if not search_s:
            break
        budget = {"trials": "auto", "search": search_s}
        try:
            result = session.tune(call.kernel, call.workload, budget=budget)
            found.append(_publish(call, result, folder))
        except TunerError as error:
            found.append(TunedCall(call, note=error.message))
        except KeyboardInterrupt:  # what was found so far is worth a comparison
            found.append(TunedCall(call, note="interrupted"))
            break
    return found


def _publish(call: CallTime, result: TuneResult, folder: Path) -> TunedCall:
    """Add the entry of a result to the folder's tables, where it is surely ahead."""
    found = TunedCall(call, _time_without(call, result), result.median_us)
    if result.median_us is None:
        return found.refuse(result.note or result.reason or "no config is confirmed")
    if not is_ahead(result, over_default=bool(call.place)):
        rival = "the library's config" if call.place else "the fastest baseline"
        return found.refuse(f"not surely faster than {rival}")
    if call.place:
        _export(call, result, folder)
        return found
    refused = [e for e in result.promote(folder) if e.outcome is not PromotionOutcome.PROMOTED]
    return found.refuse(refused[0].reason) if refused else found


def _time_without(call: CallTime, result: TuneResult) -> float | None:
    """Confirmed time of what runs without an entry, microseconds."""
    if call.place:
        return result.median_us and result.speedup and result.median_us * result.speedup
    rivals = [
        time
        for name, time in result.baselines.items()
        if time is not None and not is_compiled(name)
    ]
    return min(rivals, default=None)


def _export(call: CallTime, result: TuneResult, folder: Path) -> None:
    """Write the table of a library's kernel; one file for each call, since kernels of several
    libraries have one name."""
    for file in result.export(folder / "exported"):
        kernel, _, device = file.name.partition("@")
        file.rename(folder / f"{kernel}-{digest([call.place, call.workload.key], 8)}@{device}")


def is_ahead(result: TuneResult, *, over_default: bool = False) -> bool:
    """Whether the config that ships is surely faster than each baseline that a call may run.

    over_default: whether a call runs the default config where there is no entry.
    """
    rivals = [
        each.interval
        for each in result.comparisons.values()
        if each.ratio is not None and not is_compiled(each.name)
    ]
    rivals += [result.speedup_interval] if over_default else []
    return all(ends is not None and ends[0] > 1 for ends in rivals)


def copy_tables(source: Path, target: Path) -> None:
    """Copy the tables of a folder, if it exists."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        shutil.copy(file, target)


def list_new(candidates: Path, tables: Path) -> dict[str, bytes]:
    """The files of the first folder that the second has not, or has with other content."""
    files = {file.name: file.read_bytes() for file in sorted(candidates.glob("*.json"))}
    return {
        name: content
        for name, content in files.items()
        if not (tables / name).exists() or (tables / name).read_bytes() != content
    }


def keep_placed(candidates: Path, tables: Path) -> bool:
    """Take back what is new of operators; whether something new of libraries' kernels is left."""
    placed = {Path(table.path).name for table in find_placed(candidates)}
    new = list_new(candidates, tables).keys()
    for name in new - placed:
        (candidates / name).unlink()
        if (tables / name).exists():
            shutil.copy(tables / name, candidates)
    return bool(new & placed)


def publish_tables(candidates: Path, tables: Path) -> list[Path]:
    """Write what is new into a folder of tables as a promotion does; returns the files' paths."""
    with lock_folder(tables, lambda: None):
        return replace_files(tables, list_new(candidates, tables))
