"""What a shell completes: campaigns, kernels, runs and their tags.

Where config.yaml or the database is missing or broken, nothing is completed and nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import typer

from tuner.base.inert_text import inert

if TYPE_CHECKING:
    from tuner.settings.sections import Settings

#: A word and what it stands for.
Completion: TypeAlias = tuple[str, str]
#: Words that every shell takes as they are.
_WORD = re.compile(r"[\w.,:/+@=-]+")
#: Seconds that a shell waits for the database.
_ANSWER_S = 2.0
#: The newest runs, which are completed.
_RUNS = 50


def complete_campaigns(ctx: typer.Context) -> list[Completion]:
    """The campaigns of config.yaml."""
    return _complete(ctx, _campaigns)


def complete_kernels(ctx: typer.Context) -> list[Completion]:
    """The kernels known by name, and those of config.yaml."""
    return _complete(ctx, _kernels)


def complete_runs(ctx: typer.Context) -> list[Completion]:
    """The numbers of the newest runs, and their tags."""
    return _complete(ctx, _runs)


def complete_exporters(ctx: typer.Context) -> list[Completion]:
    """The names of exporters."""
    return _complete(ctx, _exporters)


def _complete(
    ctx: typer.Context, listed: Callable[[Settings], Iterable[Completion]]
) -> list[Completion]:
    from tuner.settings import load

    try:
        config = ctx.params.get("config") or ctx.params.get("settings_file")
        found = list(listed(load(config)[0]))
    except Exception:  # a shell shows what is printed here in the middle of a line
        return []
    # A stored name may hold what a terminal or a shell obeys.
    return [(word, inert(text)) for word, text in found if _WORD.fullmatch(word)]


def _campaigns(settings: Settings) -> Iterator[Completion]:
    for name, campaign in settings.campaigns.items():
        yield name, campaign.description


def _kernels(settings: Settings) -> Iterator[Completion]:
    from search_spaces import registry

    tasks = (task for campaign in settings.campaigns.values() for task in campaign.tasks)
    specs = [*settings.kernels, *(task.kernel for task in tasks)]
    for name in dict.fromkeys([*registry.available(), *specs]):
        yield name, ""


def _exporters(settings: Settings) -> Iterator[Completion]:
    from tuner.tables import available

    for name in available():
        yield name, ""


def _runs(settings: Settings) -> Iterator[Completion]:
    from results_db import Store

    with Store.open(settings.database.url, create=False, answer_s=_ANSWER_S) as store:
        for run in store.runs(limit=_RUNS):
            described = f"{run.campaign}, {run.status}"
            yield f"{run.run_id}", described
            if run.tag:
                yield run.tag, f"run {run.run_id} of {described}"
