"""Cards that measure otherwise than before get no work, and what they measured does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from results_db.card_health import CardRun, find_outliers, list_card_runs
from results_db.promotion_records import QuarantineRecord
from results_db.task_history import is_suspect
from search_spaces.errors import TunerError

if TYPE_CHECKING:
    from results_db import Store
    from workers.job_records import WorkerInfo


def read_health(store: Store) -> list[CardRun]:
    """All cards in the newest runs, oldest run first; since they were admitted, if they were."""
    admitted = {e.card: e.admitted_at for e in reversed(store.quarantines()) if e.admitted_at}
    return list_card_runs(store.list_card_times(), admitted)


def quarantine_outliers(store: Store, run_id: int) -> list[str]:
    """Put the cards into quarantine that a run shows to be off; one line for each.

    What they have confirmed since they were off gets a note, and is measured again by the next run.
    """
    found = []
    for each in find_outliers(read_health(store), run_id):
        since = store.run(each.runs[0]).started_at
        if store.quarantine(each.card, each.device, each.reason, since):
            record = next(e for e in store.quarantines() if e.card == each.card)
            _mark_suspects(store, record, each.runs)
            found.append(describe_quarantine(record))
    return found


def find_quarantined(store: Store) -> dict[str, QuarantineRecord]:
    """The cards that get no work, by their identifiers."""
    return {each.card: each for each in store.quarantines() if each.is_open}


def _mark_suspects(store: Store, found: QuarantineRecord, runs: tuple[int, int]) -> None:
    for run_id in range(runs[0], runs[1] + 1):
        for task in store.tasks(run_id):
            if is_suspect(task, [found]):
                note = f"confirmed on {found.card}, which is in quarantine"
                store.set_stage(task.task_id, task.stage, note)


def describe_quarantine(found: QuarantineRecord) -> str:
    """A card in quarantine, in one line."""
    return f"tuner: {found.device:.200} {found.card:.80} is in quarantine: {found.reason:.300}"


def without_quarantined(
    workers: list[WorkerInfo], away: Mapping[str, QuarantineRecord]
) -> list[WorkerInfo]:
    """The workers whose cards are in no quarantine; `TunerError` where all of them are."""
    kept = [worker for worker in workers if worker.device.uuid not in away]
    if workers and not kept:
        found = away[workers[0].device.uuid]
        raise TunerError(
            f"every device here is in quarantine; {found.device} {found.card}: {found.reason}",
            f"once it is sound, `tuner workers admit {found.card}`",
        )
    return kept
