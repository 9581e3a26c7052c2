"""Tune the entries again that lost their winner, and write tables for the present toolchain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_db import Store
from search_spaces.atomic_file import write_output
from search_spaces.records import Workload, config_key
from tuner.base.log_ratio import Verdict
from tuner.campaign import Control, RunOptions, RunOutcome, run_campaign
from tuner.compare.bench_rows import BenchRow
from tuner.compare.entry_check import EntryOutcome, Result
from tuner.compare.named_configs import default_of
from tuner.compare.tables_here import TableHere
from tuner.progress import ProgressCallback
from tuner.runtime import Entry, Table, key_order
from tuner.settings.sections import CampaignConfig, Settings
from tuner.tables import build, file_name, text_of
from tuner.tables.results import device_facts, find_common, round_ratio
from tuner.tables.table_check import space_hash
from tuner.tables.valid_sizes import renew_sizes, rule_of

if TYPE_CHECKING:
    from search_spaces.records import Toolchain

CAMPAIGN = "upgrade-check"
_SETTLED = (Result.SAME, Result.FASTER, Result.SLOWER)
_UNWRITABLE = "make the folder writable; the results are in the database"


@dataclass(frozen=True, slots=True)
class Retuned:
    """One table after its entries were tuned again."""

    #: The table that was checked.
    path: Path
    #: Number of entries with a new winner.
    tuned: int = 0
    #: The file that was written; None where its content would not change, or for the reason.
    wrote: Path | None = None
    #: Why the table could not be written; else empty.
    reason: str = ""


def retune(
    settings: Settings,
    base: Path,
    tables: Sequence[TableHere],
    outcomes: Sequence[EntryOutcome],
    *,
    trials: int | None = None,
    control: Control | None = None,
    on_progress: ProgressCallback | None = None,
) -> tuple[RunOutcome | None, list[Retuned]]:
    """Run a campaign over the entries that lost their winner, and write their tables.

    A table is written where each of its entries has kept its winner or has a new, confirmed one. It
    then holds the identity of the present code and the present toolchain. trials: per task; by
    default until little more is to be gained. Returns the run, if one was needed.
    """
    lost = [item for item in outcomes if item.lost]
    run: RunOutcome | None = None
    fresh: list[Table] = []
    if lost:
        run = run_campaign(
            settings.model_copy(
                update={
                    "campaigns": {
                        **settings.campaigns,
                        CAMPAIGN: _campaign(tables, lost, trials),
                    }
                }
            ),
            CAMPAIGN,
            options=RunOptions(fresh=True, report=False, export=False, base=base),
            on_progress=on_progress,
            control=control,
        )
        kernels = {item.target.kernel.name: item.target.kernel for item in tables}
        with Store.open(settings.database.url) as store:
            fresh = build(store, run.run_id, kernels)
    done = []
    for item in tables:
        own = [outcome for outcome in outcomes if outcome.path == item.path]
        done.append(_write_table(item, own, _new_entries(item, fresh)))
    return run, done


def _campaign(
    tables: Sequence[TableHere], lost: Sequence[EntryOutcome], trials: int | None
) -> CampaignConfig:
    """One task per kernel and kind of device, with the workloads that lost their winner."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for item in tables:
        kind = item.target.device.kind
        for outcome in lost:
            if outcome.path == item.path:
                line = lines.setdefault(
                    (item.target.kernel.spec, kind),
                    {"kernel": item.target.kernel.spec, "targets": [kind], "workloads": []},
                )
                dims = outcome.workload.as_dict()
                if dims not in line["workloads"]:
                    line["workloads"].append(dims)
    budget = {"trials": trials or "auto"}
    return CampaignConfig.model_validate({"tasks": list(lines.values()), "budget": budget})


def _new_entries(item: TableHere, fresh: Sequence[Table]) -> dict[Workload, Entry]:
    device = item.target.device
    return {
        Workload.from_mapping(entry.key): entry
        for table in fresh
        if table.kernel == item.target.kernel.name
        and table.device.kind == device.kind
        and table.device.name == device.name
        for entry in table.entries
    }


def _write_table(
    item: TableHere, outcomes: Sequence[EntryOutcome], found: Mapping[Workload, Entry]
) -> Retuned:
    entries = []
    for outcome in outcomes:
        if outcome.result in _SETTLED:
            entries.append(_refresh(outcome))
        elif outcome.lost and outcome.workload in found:
            entries.append(found[outcome.workload])
        else:
            reason = f"{outcome.workload.key} has no confirmed winner"
            return Retuned(item.path, reason=reason)
    table = _table(item, outcomes, entries)
    path = item.path
    if not item.table.device.matches(table.device):
        path = path.with_name(file_name(table))
    tuned = sum(outcome.lost for outcome in outcomes)
    content = text_of(table).encode()
    if path.is_file() and path.read_bytes() == content:
        return Retuned(item.path, tuned)
    write_output(path, content, _UNWRITABLE)
    return Retuned(item.path, tuned, path)


def _table(item: TableHere, outcomes: Sequence[EntryOutcome], entries: Sequence[Entry]) -> Table:
    """The table with these entries, of the present code and toolchain."""
    kernel, old = item.target.kernel, item.table
    tools = next((o.toolchain for o in outcomes if o.toolchain is not None), None)
    toolchain = {name: text for name, text in asdict(tools).items() if text} if tools else None
    passes = [o.measurement for o in outcomes if o.measurement is not None]
    device = passes[0].device if passes else item.target.device
    same = old.device.fingerprint == device.fingerprint
    # What is known of ranges was measured with the old configs.
    kept = [entry.config for entry in entries] == [each.entry.config for each in outcomes]
    pairs = zip(entries, outcomes, strict=True)
    renewed = [renew_sizes(kernel, device, entry, each.entry) for entry, each in pairs]
    defaults = [default_of(item.target, outcome.workload) for outcome in outcomes]
    ordered = sorted(renewed, key=lambda entry: key_order(entry.key))
    table = replace(
        old,
        entries=tuple(ordered),
        coverage=old.coverage if kept else (),
        launch_hash=kernel.launch_hash(),
        kernel_hashes=kernel.kernel_hashes(),
        device=old.device if same else device_facts(device),
        toolchain=old.toolchain if toolchain is None else toolchain,
        rule=rule_of(ordered),
        default=find_common(each.config if each else None for each in defaults),
        provenance={**old.provenance, **_checked_with(tools)},
    )
    return replace(table, space_hash=space_hash(table, kernel))


def _checked_with(tools: Toolchain | None) -> dict[str, str]:
    """The mark of a table whose entries were checked after they were tuned."""
    if tools is None:
        return {}
    words = [f"{name} {text}" for name, text in asdict(tools).items() if text]
    return {"upgrade_check": ", ".join(words)}


def _refresh(outcome: EntryOutcome) -> Entry:
    """The entry with the figures of this check, where it was measured."""
    entry, measured = outcome.entry, outcome.measurement
    if outcome.median_us is None or measured is None:
        return entry
    rows = measured.rows
    default = next((row for row in rows if "default" in row.variant.split(", ")), None)
    verdict, speedup, interval = _against_default(rows[0], default)
    old = {config_key(config) for config in entry.tie_set}
    ties = [
        dict(row.config)
        for row in rows
        if row.config is not None and (row is rows[0] or _still_ties(row, old))
    ]
    return replace(
        entry,
        verdict=verdict,
        median_us=round(outcome.median_us, 4),
        speedup_over_default=speedup,
        interval=interval,
        tie_set=tuple(sorted(ties, key=config_key)),
    )


def _still_ties(row: BenchRow, ties: Collection[str]) -> bool:
    """Whether a member of the old tie set can still not be distinguished from the winner."""
    measured = row.verdict in (Verdict.SAME, Verdict.UNDECIDED)
    return measured and row.config is not None and config_key(row.config) in ties


def _against_default(
    winner: BenchRow, default: BenchRow | None
) -> tuple[Verdict, float | None, tuple[float, float] | None]:
    """Verdict, speed-up over the default and its interval."""
    if default is None or default.log_ratio is None:
        return Verdict.UNDECIDED, None, None
    if default is winner:
        return Verdict.SAME, 1.0, (1.0, 1.0)
    return (-default.log_ratio).verdict(), *round_ratio(default.log_ratio)
