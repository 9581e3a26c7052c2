"""`tuner note`: what happened since a time, as one listing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import NOTE, FireState
from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit
from tuner.views.news import EVENTS, Event, begin_note, list_events

if TYPE_CHECKING:
    from tuner.settings.sections import Settings


def tell_note(
    since: Annotated[
        str | None, typer.Option(metavar="24h", help="How long ago.", show_default=False)
    ] = None,
    send: Annotated[bool, flag("--send", help="Send it to `notify.webhook` too.")] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Say what happened since the last note that was sent, or in the last 24 hours.

    What became faster or slower, was promoted, is in quarantine or left out, and what it cost.
    """
    from tuner.settings.sections import read_seconds

    settings, _ = settings_of(config)
    with store_of(settings) as store:
        now, begin = store.now(), begin_note(store)
        if since is not None:
            begin = now - timedelta(seconds=min(read_seconds("--since", since), 1e9))
        events = list(list_events(store, begin))
        if send:
            send_note(settings, begin, events)
            store.claim_fire(NOTE, now, "")
            store.finish_fire(NOTE, now, FireState.FINISHED)
    emit(events, EVENTS, style, filled=True)


def send_note(settings: Settings, begin: datetime, events: Sequence[Event]) -> None:
    """Send lines to `notify.webhook`; raises `TunerError` where that fails."""
    from tuner.campaign.regressions import post_text

    words = [[f"{each.get(name) or ''}" for name in EVENTS] for each in events]
    lines = [" ".join(filter(None, line)) for line in words]
    head = f"tuner since {begin:%Y-%m-%d %H:%M}Z"
    if failure := post_text(settings.notify.webhook, head, *lines):
        raise TunerError(f"notify.webhook was not told: {failure}", "correct and rerun it")
