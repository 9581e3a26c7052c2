"""`tuner run`: run or resume a campaign, or print its plan."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import RunStatus
from search_spaces.errors import FindingError, TunerError
from tuner.base.inert_text import inert
from tuner.cli.campaign_sources import names_kernel, with_kernel
from tuner.cli.command_context import (
    ConfigOption,
    TraceOption,
    WorkloadsOption,
    command_started_s,
    complete_campaigns,
    complete_kernels,
    flag,
    settings_of,
    storable,
    store_of,
    traced_command,
    warn_of_job_folders,
)
from tuner.cli.console import READABLE, Format, FormatOption, emit, final_output, note, say
from tuner.cli.history import follow_run
from tuner.cli.stop_signals import interruptible
from tuner.views.column import Column
from tuner.views.outcomes import CHECKED, WINNERS, Winner, describe_gain, list_winners
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.campaign import PlannedTask, RunOptions, RunOutcome
    from tuner.settings.sections import Settings

_PLAN: tuple[Column[PlannedTask], ...] = (
    Column("kernel"),
    Column("workload", lambda task: task.workload.key),
    Column("device", lambda task: task.device.name),
    Column("target", lambda task: task.device.target),
    Column("mode"),
    Column("configs", lambda task: task.space_size),
    Column("budget", lambda task: task.budget_trials),
    Column("known"),
    Column("minutes", lambda task: None if task.estimate_s is None else task.estimate_s / 60),
    Column("note"),
    Column("gain_s", heading=None),
)
#: Campaigns that an error lists.
_LISTED = 8


def run(
    context: typer.Context,
    campaign: Annotated[
        str | None,
        typer.Argument(
            help="The campaign's name in config.yaml; the only one by default. Or a kernel, as "
            "file.py:object, which needs no config.yaml.",
            show_default=False,
            autocompletion=complete_campaigns,
        ),
    ] = None,
    config: ConfigOption = None,
    calls: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tune the calls that `tuner capture -o FILE` wrote."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Of a kernel: cuda, hip, cpu or cuda:90; by default its own kinds. Of --calls: by "
            "default cuda.",
            show_default=False,
        ),
    ] = None,
    widen: Annotated[
        bool,
        flag(
            "--widen",
            help="With --calls: also try compiler options and sizes near the library's own.",
        ),
    ] = False,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Only this kernel; may be repeated.", autocompletion=complete_kernels),
    ] = None,
    workload: WorkloadsOption = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000_000, help="Trials per task, in place of the budget's."),
    ] = None,
    wall: Annotated[
        str | None,
        typer.Option(
            help="Wall-clock time of the whole command from its start, finals included, as 90s or "
            "30m; in place of the campaign's."
        ),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Search strategy, in place of the configured one.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, callback=storable, help="Seed of the strategy.")
    ] = None,
    fresh: Annotated[
        bool, flag("--fresh", help="Measure again what the database has results for.")
    ] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", help="Print the plan and stop; needs no GPU and no Ray.")
    ] = False,
    quiet: Annotated[
        bool, flag("--quiet", "-q", help="Show no progress and no table of winners.")
    ] = False,
    no_report: Annotated[bool, flag("--no-report", help="Write no HTML report.")] = False,
    trace: TraceOption = None,
    show: Annotated[
        bool, flag("--open", help="Show the run in the browser while it goes on (`tuner serve`).")
    ] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Run a campaign, or resume its interrupted run.

    The first Ctrl-C finishes the jobs in flight and stops, the second kills the workers. SIGTERM
    counts as Ctrl-C; SIGHUP only finishes the jobs in flight.
    """
    _check_campaign(campaign, calls, target, widen=widen)
    wall_s = _check_values(calls, wall, strategy)
    context.with_resource(traced_command(trace, f"tuner run {campaign or calls}"))
    settings, base = settings_of(config)
    if calls is not None:
        from tuner.cli.campaign_sources import with_calls

        settings, campaign = with_calls(
            settings, calls, kernels=kernel or (), target=target, widen=widen
        )
        kernel = None
    elif names_kernel(campaign) and campaign not in settings.campaigns:
        settings, campaign = with_kernel(
            settings, base, f"{campaign}", workloads=workload or (), target=target
        )
        workload = None
    if not settings.campaigns:
        raise TunerError(
            f"there are no campaigns in {base}",
            "write config.yaml with `tuner init`, or name a kernel: `tuner run file.py:object`",
        )
    if campaign is None:
        campaign = _pick_campaign(settings)
    if not dry_run:
        from tuner.campaign.early_start import load_workers

        load_workers(settings, campaign, base)
    from tuner.campaign import RunOptions

    options = RunOptions(
        fresh=fresh,
        seed=seed,
        kernels=tuple(kernel or ()),
        workloads=tuple(workload or ()),
        trials=trials,
        replaced={} if wall_s is None else {"wall": wall_s},
        started_s=command_started_s(),
        strategy=strategy,
        report=not no_report,
        base=base,
    )
    if dry_run:
        _print_plan(settings, campaign, options, style)
        return
    warn_of_job_folders(settings)
    if show:
        from tuner.cli.report import show_pages

        context.with_resource(show_pages(settings))
    run_and_print(settings, campaign, options, style, quiet=quiet)


def run_and_print(
    settings: Settings, name: str, options: RunOptions, style: Format, *, quiet: bool
) -> None:
    """Run a campaign and print its outcome; raises for a run that is no success."""
    outcome = _execute(settings, name, options, quiet=quiet)
    with final_output():
        _print_outcome(settings, outcome, style, quiet=quiet)
    slower = follow_run(settings, options.base, name, outcome, quiet=quiet)
    for line in slower:
        note(line)
    _leave(outcome)
    if slower:
        raise typer.Exit(1)


def _leave(outcome: RunOutcome) -> None:
    """Exit with the code of a run that is no success, and say why."""
    if outcome.status == RunStatus.INTERRUPTED:
        note(f"run {outcome.run_id} was interrupted; rerun the same command to resume")
    if outcome.fault is not None:
        raise FindingError(outcome.fault.reason, outcome.fault.remedy)
    if outcome.status != RunStatus.FINISHED:
        raise typer.Exit(130 if outcome.status == RunStatus.INTERRUPTED else 2)
    if outcome.findings and outcome.entries is None:
        first, *others = outcome.findings
        for line in others:
            note(line)
        raise FindingError(
            first,
            "the report lists every failure; a corrected kernel is measured again, "
            "anything else with --fresh",
        )


def _check_campaign(
    campaign: str | None, calls: Path | None, target: str | None, *, widen: bool
) -> None:
    if campaign is not None and calls is not None:
        raise TunerError(
            "a campaign and --calls are given",
            "name a campaign of config.yaml, or a file of captured calls with --calls",
        )
    if calls is None and widen:
        raise TunerError("--widen belongs to --calls", "add --calls FILE, of `tuner capture`")
    if calls is None and target is not None and not names_kernel(campaign):
        raise TunerError(
            "--target belongs to --calls and to kernels as file.py:object",
            "set the campaign's targets in config.yaml",
        )


def _check_values(calls: Path | None, wall: str | None, strategy: str | None) -> float | None:
    """Refuse what is wrong whatever is tuned, before anything heavy is imported; the seconds of
    `wall`."""
    from tuner.strategies import STRATEGIES

    if calls is not None and not calls.exists():
        raise TunerError(f"{calls}: No such file or directory", "`tuner capture -o FILE` writes it")
    if strategy is not None:
        STRATEGIES.place(strategy)
    if wall is None:
        return None
    from tuner.settings.sections import read_seconds

    return read_seconds("--wall", wall)


def _pick_campaign(settings: Settings) -> str:
    """The only campaign. Raises TunerError where there are several."""
    if len(settings.campaigns) > 1:
        known = ", ".join(islice(settings.campaigns, _LISTED))
        more = ", ..." if len(settings.campaigns) > _LISTED else ""
        raise TunerError("run: no campaign is named", f"name one of config.yaml: {known}{more}")
    (only,) = settings.campaigns
    return only


def _execute(settings: Settings, name: str, options: RunOptions, *, quiet: bool) -> RunOutcome:
    from tuner.campaign import Control, run_campaign

    control = Control()
    with interruptible(control), show_progress(not quiet) as show:
        return run_campaign(settings, name, options=options, on_progress=show, control=control)


def _print_plan(settings: Settings, name: str, options: RunOptions, style: Format) -> None:
    from reports.quantity import seconds
    from tuner.campaign.plan import plan

    tasks = plan(settings, name, options)
    emit(tasks, _PLAN, style, empty="the plan has no tasks")
    todo = [task for task in tasks if task.mode != "skip"]
    known_s = [task.estimate_s for task in todo if task.estimate_s is not None]
    parts = [f"{len(todo)} tasks"]
    if len(known_s) == len(todo):
        parts.append(f"about {seconds(sum(known_s))}")
    if len(todo) < len(tasks):
        parts.append(f"{len(tasks) - len(todo)} skipped")
    note(", ".join(parts))


def _print_outcome(settings: Settings, outcome: RunOutcome, style: Format, *, quiet: bool) -> None:
    """The summary, the files and the winners; to stderr all but the winners' data."""
    tell, name = (say, print) if style is Format.TABLE else (note, note)
    tell(outcome.summary)
    if outcome.report is not None:
        name(f"report: {inert(outcome.report)}")
    for path in outcome.tables:
        name(f"table: {inert(path)}")
    if outcome.tables:
        from tuner.tables import list_coverage_lines

        for line in list_coverage_lines(outcome.tables):
            tell(line)
    if quiet and style is Format.TABLE:
        return
    if outcome.entries is not None:
        emit(outcome.entries, CHECKED, style)
        return
    rows = _winners(settings, outcome.run_id, style)
    if rows and style is Format.TABLE:
        print()
    if rows or style is not Format.TABLE:
        emit(rows, WINNERS, style)
    if gain := describe_gain(rows, outcome.untimed):
        tell(gain)


def _winners(settings: Settings, run_id: int, style: Format) -> list[Winner]:
    """The winners of a run; none where the database cannot be read any more."""
    try:
        with store_of(settings) as store:
            return list_winners(store.tasks(run_id), parts=style in READABLE)
    except TunerError as error:
        note(f"the winners cannot be listed: {error.message}")
        return []
