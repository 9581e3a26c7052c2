"""Behaviour of a separate process: loaded modules, closed pipes, signals, terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from cli_samples import fill

from tuner.cli.stop_signals import interruptible
from tuner.progress import Progress, TaskProgress
from tuner.views.progress_display import (
    ProgressLines,
    best_of,
    duration,
    format_count,
    format_finished,
    picture,
)

HEAVY = ("torch", "ray", "optuna", "plotly", "pandas", "sqlalchemy", "triton", "numpy", "scipy")


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


#: Runs commands in forks after the import of the program, and prints the modules of each.
MODULES = """
import json, os, sys
from tuner.cli import invoke
for line in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        code = invoke(line)
        print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
LIGHT = (["--help"], ["run", "--help"], ["--version"], ["config", "check"], ["schedule", "next"])


def test_light_commands_load_nothing_heavy_and_a_command_loads_no_other(folder):
    lines = [*LIGHT, ["--log-level", "error", "runs"]]
    result = python(MODULES, json.dumps(lines), cwd=folder)
    found = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("[")]
    assert len(found) == len(lines), result.stderr
    for line, (status, modules) in zip(LIGHT, found, strict=False):
        assert status == 0, line
        assert [name for name in HEAVY if name in modules] == [], line
    loaded = found[-1][1]
    assert "tuner.cli.status" in loaded
    others = ("run", "doctor", "capture", "report", "spaces")
    assert not {f"tuner.cli.{other}" for other in others} & {*loaded}


#: Mistakes that need no kernel to be seen, each with a word of its message.
MISTAKEN = (
    (["run", "k.py:K", "--wall", "soon"], "--wall"),
    (["run", "k.py:K", "--strategy", "bays"], "bayes"),
    (["run", "k.py:K", "--target", "cda"], "cuda"),
    (["run", "--calls", "none"], "none: No such file"),
    (["bench", "k.py:K", "--target", "cda"], "cuda"),
    (["verify", "k.py:K", "--target", "cda"], "cuda"),
    (["spaces", "show", "k.py:K", "--target", "cda"], "cuda"),
    (["optimize", "--budget", "soon", "--", "python", "x.py"], "--budget"),
)


def test_mistakes_are_told_before_torch_is_loaded(folder):
    (folder / "k.py").write_text("import torch\nraise AssertionError('imported')\n")
    result = python(MODULES, json.dumps([line for line, _ in MISTAKEN]), cwd=folder)
    found = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("[")]
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    for (line, word), (status, modules), error in zip(MISTAKEN, found, errors, strict=True):
        assert (status, word in error) == (2, True), (line, error)
        assert not {"torch", "triton"} & {*modules}, line


def test_help_of_every_command_and_its_place_in_the_manual():
    from pathlib import Path

    import typer

    from tuner.cli import make_app

    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()

    def walk(command, path):
        inner = getattr(command, "commands", None)
        if inner is None:
            assert command.help, path
            assert f"`tuner {path}" in manual, path
            for parameter in command.params:
                for option in parameter.opts:
                    if option.startswith("--") and option != "--help":
                        assert option in manual, f"{path} {option}"
        for name, item in (inner or {}).items():
            walk(item, f"{path} {name}".strip())

    walk(typer.main.get_command(make_app()), "")


def test_help_breaks_no_word_at_80_columns_and_shows_no_type_of_a_flag(tuner, monkeypatch):
    import typer

    from tuner.cli import make_app

    def find_commands(command, path=()):
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from find_commands(inner, (*path, name))

    commands = list(find_commands(typer.main.get_command(make_app())))
    assert len(commands) > 40
    for path in commands:
        monkeypatch.setenv("COLUMNS", "80")
        narrow = tuner(*path, "--help").out
        monkeypatch.setenv("COLUMNS", "500")
        wide = tuner(*path, "--help").out
        broken = {word for word in narrow.split() if word[0] not in "╭╰─"} - {*wide.split()}
        assert not broken, path
        assert "<bool>" not in narrow, path
    monkeypatch.setenv("COLUMNS", "500")
    assert "those of its trials. A config is shown in full" in tuner("show", "--help").out
    overview = tuner("--help").out
    panels = ("Start", "Tune", "One kernel", "Results", "Tables", "The farm")
    places = [overview.index(f"╭─ {panel} ─") for panel in panels]
    assert places == sorted(places)
    assert "─ Commands ─" not in overview


def test_a_reader_that_leaves_is_no_error(folder):
    command = [sys.executable, "-m", "tuner", "config", "schema"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate()
    assert (child.returncode, err) == (0, b"")


FOREIGN = "\u5f20\u91cf"


@pytest.mark.parametrize(
    "encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.full), "utf-8"]
)
def test_characters_that_a_stream_lacks_are_escaped(folder, encoding):
    results = folder / FOREIGN
    fill(f"sqlite:///{results / 'tuner.db'}", kernel=FOREIGN)
    (folder / "config.yaml").write_text(
        f"version: 1\ndatabase: {{url: 'sqlite:///{FOREIGN}/tuner.db'}}\n", encoding="utf-8"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    shown = FOREIGN.encode(encoding, "backslashreplace")
    lines = (
        ["status"],
        ["status", "-f", "md"],
        ["best", "-f", "csv"],
        ["config", "show"],
        ["report", "-o", f"{FOREIGN}.html"],
        ["export", "-f", "csv", "-o", FOREIGN],
        ["import", FOREIGN],
        ["bench", f"{FOREIGN}.py:kernel"],
    )
    command = [sys.executable, "-c", EACH_IN_A_FORK, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Unicode" not in done.stderr
    outputs, errors = (text.split(b"<end>")[:-1] for text in (done.stdout, done.stderr))
    for line, out, err in zip(lines, outputs, errors, strict=True):
        said = (out + err).replace(b"\\\\", b"\\")
        # YAML has escapes of its own.
        assert shown in said or line[0] == "config", line


#: Runs commands in forks, after what they import, and writes an end after each to both streams.
EACH_IN_A_FORK = """
import json, os, sys
from tuner.cli import bench, export, main, report, status
import tuner.tables, reports.folder
for line in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.argv[1:] = line
        main()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 2), (line, code)
    for stream in (1, 2):
        os.write(stream, b"<end>")
"""


def test_a_full_device_is_an_error_with_a_remedy(folder):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tuner", "config", "schema"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith("error: [Errno 28]")
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


SIGNALLED = """
import os, signal, sys, threading, time
from tuner.cli import invoke
import tuner.campaign
from tuner.campaign.options import RunOutcome

def run_campaign(settings, name, *, options, on_progress, control):
    print("ready", flush=True)
    while not control.draining:
        time.sleep(0.01)
    print("draining", flush=True)
    while sys.argv[1] == "kill" and not control.killed:
        time.sleep(0.01)
    return RunOutcome(3, "interrupted", 1, 5, 0, 1.0, "interrupted after 5 trials")

tuner.campaign.run_campaign = run_campaign
sys.exit(invoke(["run", "c", "--quiet"]))
"""


@pytest.mark.parametrize("how", ["drain", "kill"])
def test_the_first_interrupt_drains_and_the_second_kills(folder, how):
    from cli_samples import campaign_file, kernel_file

    campaign_file(folder, kernel_file(folder))
    child = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "draining\n"
    if how == "kill":
        child.send_signal(signal.SIGINT)
    # Not `communicate`, which does not see what `readline` has read ahead.
    assert child.stderr is not None
    with child.stdout, child.stderr:
        out, err = child.stdout.read(), child.stderr.read()
    assert child.wait() == 130, err
    assert out == "interrupted after 5 trials\n"
    assert "once more to stop at once" in err
    assert ("stopping" in err) == (how == "kill")
    assert "rerun the same command to resume" in err


def test_handlers_are_put_back():
    class Control:
        def drain(self) -> None: ...
        def kill(self) -> None: ...

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interruptible(Control()):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert threading.active_count() >= 1


WAITING = """
import signal, sys, threading, time
from tuner.cli import stop_signals

class Control:
    def drain(self): pass
    def kill(self): pass

stop_signals.PATIENCE_S = 0.5
received = threading.Semaphore(0)
note = stop_signals.note
stop_signals.note = lambda text: (note(text), received.release())

def send():
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)
        received.acquire()

with stop_signals.interruptible(Control()):
    if sys.argv[1] == "elsewhere":
        threading.Thread(target=send, daemon=True).start()
    else:
        send()
    try:
        time.sleep(3600)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("receiver", ["main", "elsewhere"])
@pytest.mark.parametrize("before", ["SIG_DFL", "SIG_IGN"], ids=["foreground", "background"])
def test_what_waits_is_interrupted_some_time_after_the_second_signal(before, receiver):
    """A shell starts what runs in its background with SIGINT ignored.

    A signal that another thread receives does not interrupt the wait of the main thread, as one
    that comes just before the wait.
    """
    program = f"import os, signal, sys\nsignal.signal(signal.SIGINT, signal.{before})\n"
    program += "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", program, WAITING, receiver],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert "it has not stopped in 0.5 s: interrupting what it waits for" in done.stderr


def progress(done: int, total: int | None, **tasks: float | None) -> Progress:
    return Progress(
        done=done,
        total=total,
        trials_per_s=done / 3,
        busy_share=0.5,
        elapsed_s=done * 60.0,
        left_s=None if total is None else (total - done) * 7.0,
        building=2,
        measuring=1,
        tasks_done=0,
        tasks_total=3,
        tasks=tuple(
            TaskProgress(name, "search", done, total, best) for name, best in tasks.items()
        ),
    )


def test_figures_have_a_fixed_width():
    assert len({len(format_count(*pair)) for pair in ((0, None), (7, 9), (12345, 99999))}) == 1
    assert len({len(duration(seconds)) for seconds in (None, 0, 59.6, 61, 3599, 86_399)}) == 1


def test_lines_come_every_few_seconds_and_once_for_a_task_that_is_done():
    now, written = [0.0], []
    show = ProgressLines(written.append, clock=lambda: now[0]).show
    for second in range(11):
        now[0] = float(second)
        show(progress(second, 20, **{"softmax \x1b[1m": 12.5}))
    assert len(written) == 3
    over = progress(20, 20, **{"softmax \x1b[1m": 12.5})
    show(replace(over, tasks=tuple(replace(task, stage="done") for task in over.tasks)))
    show(replace(over, tasks=()))
    assert written[3:] == ["done: softmax \\x1b[1m, search best ~12.5 us (unconfirmed)\n"]
    show(progress(21, 30, matmul=None))
    show(progress(22, 30))
    assert written[4:] == ["done: matmul\n"]
    assert all(line.count("\n") == 1 and line.endswith("\n") for line in written)


def test_a_picture_of_hostile_labels_is_inert_and_aligned(folder):
    import io

    from rich.console import Console

    label = "softmax \x1b[31m[red]" + "x" * 100
    widths = set()
    for done, best in ((1, None), (999, 123.4)):
        console = Console(file=io.StringIO(), width=200, markup=False, force_terminal=False)
        console.print(picture(progress(done, 1000, **{label: best})))
        text = console.file.getvalue()
        assert "\x1b" not in text
        assert "[red]" in text
        widths.add(text.splitlines()[1].index("search"))
    assert len(widths) == 1


def test_a_service_ends_cleanly_at_a_signal(folder):
    (folder / "config.yaml").write_text(
        "version: 1\ncampaigns:\n"
        "  c: {tasks: [{kernel: softmax}], schedule: {cron: '0 0 1 1 *', grace: 1s}}\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "tuner", "schedule", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert child.stderr is not None
    assert "serving the schedules" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
    assert (child.returncode, out) == (0, ""), err
    assert "Traceback" not in err


def test_a_time_of_the_search_is_no_result_yet():
    """It has no ratio to the default, and the confirmed time takes its place."""
    task = TaskProgress("softmax", "confirm", 90, 90, best_us=77.31)
    assert " ".join(best_of(task).split()) == "search best ~77.3 us (unconfirmed)"
    confirmed = replace(task, stage="done", confirmed_us=120.7, speedup=1.55)
    assert format_finished(confirmed) == "softmax, confirmed 120.70 us 1.55x the default"
