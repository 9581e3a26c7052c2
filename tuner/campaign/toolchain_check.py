"""Check published tables under another toolchain, a folder of wheels, as a run of a campaign."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_db.patience import Patience
from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from search_spaces.records import digest
from tuner.campaign.options import Control, RunOptions, RunOutcome
from tuner.campaign.run_record import collect_facts
from workers import user_cache

if TYPE_CHECKING:
    from tuner.settings.sections import CheckConfig, Settings

#: Seconds between looks at whether the run is to stop, and those that a stopped child has to end.
_POLL_S, _ENDING_S = 0.2, 10.0
#: Entries that a summary names, and the options that do not apply.
_NAMED = 5
_NOT_HERE = ("kernels", "workloads", "trials", "strategy", "seed", "replaced")
#: What the check must read as this process does; it needs no webhook.
_SECTIONS = {"database", "paths", "pool", "measure", "kernels"}


def check_tables(
    settings: Settings, name: str, wanted: CheckConfig, options: RunOptions, control: Control
) -> RunOutcome:
    """Measure the entries of tables with these wheels, and store what became of them as a run.

    Nothing is stored before the check is over. Raises `TunerError` where it cannot be made.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    given = [each for each in _NOT_HERE if getattr(options, each) not in (None, (), {})]
    if given:
        raise TunerError(f"{name} checks tables, without {given[0]}", "leave that option out")
    wheels = sorted((options.base / wanted.wheels).glob("*.whl"))
    if not wheels:
        raise TunerError(f"campaign {name!r}: {wanted.wheels}: no wheel", "`pip download` gets one")
    tables = [options.base / each for each in wanted.paths]
    if missing := [f"{each}" for each in tables if not each.exists()]:
        raise TunerError(f"campaign {name!r}: {missing[0]}: no such file or folder", "correct it")
    done = _check(settings, options.base, tables, install(wheels, control), control)
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    refused = [each for each in done.stderr.splitlines() if each.startswith("not checked:")]
    versions = ", ".join(" ".join(each.name.split("-")[:2]) for each in wheels)
    summary = "; ".join([_summarise(entries, versions), *refused])
    document = {"check": {"tables": [*map(str, tables)], "wheels": [each.name for each in wheels]}}
    facts = collect_facts(options.base, fresh=False) | {"wheels": versions}
    tools = [each["toolchain"] for each in entries if each["toolchain"]]
    facts |= {name: text for name, text in (tools or [{}])[0].items() if name != "python"}
    facts["devices"] = ", ".join(sorted({each["device"] for each in entries}))
    elapsed_s = time.monotonic() - began
    figures = {"elapsed_s": round(elapsed_s, 3), "device_s": sum(e["device_s"] for e in entries)}
    from results_db import Store

    database = settings.database
    with Store.open(database.url, answer_s=database.timeout) as opened:
        store = opened.waiting(Patience(database.patience, lambda: control.killed))
        run_id = store.begin_run(
            name, digest(document), 0, facts, document, started_at=started_at
        ).run_id
        ended = {"summary": summary, "trials": 0, **figures, "entries": entries}
        store.finish_run(run_id, RunStatus.FINISHED, ended)
    return RunOutcome(
        run_id, RunStatus.FINISHED, len(entries), 0, 0, elapsed_s, summary,
        findings=(f"{name}: {summary}",) if done.returncode else (), entries=tuple(entries),
    )  # fmt: skip


def _summarise(entries: Sequence[Mapping[str, Any]], versions: str) -> str:
    worse = [each for each in entries if each["finding"]]
    if not worse:
        return f"{len(entries)} entries, none of them worse under {versions}"
    kinds = " or ".join(dict.fromkeys(each["result"] for each in worse))
    names = [*map(_describe, worse[:_NAMED]), *["..."] * (len(worse) > _NAMED)]
    return f"{len(worse)} of {len(entries)} entries {kinds} under {versions}: {', '.join(names)}"


def _describe(entry: Mapping[str, Any]) -> str:
    change = f" {entry['change'] - 1:+.1%}" if entry["change"] else ""
    return f"{entry['kernel']} {entry['workload']} {entry['result']}{change}"


def install(wheels: Iterable[Path], control: Control) -> Path:
    """The folder with the contents of wheels, installed once without a network or dependencies.

    Raises `TunerError` for wheels that are not for this Python.
    """
    content: dict[str, str] = {"python": sys.version}
    for each in wheels:
        with each.open("rb") as file:
            content[each.name] = file_digest(file, "sha256").hexdigest()
    root = user_cache.folder("toolchains")
    if root is None:
        raise TunerError(f"{user_cache.place()} is not usable", f"set {user_cache.VARIABLE}")
    kept = root / digest(content)
    if kept.is_dir():
        return kept
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    with tempfile.TemporaryDirectory(dir=root) as made:
        target = Path(made) / "packages"
        command = [*pip, "--no-compile", "--target", f"{target}", *map(str, wheels)]
        done = _run(command, control, Path(made), dict(os.environ))
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
            why = next((each for each in lines if each.startswith("ERROR:")), lines[-1])
            raise TunerError(f"wheels: {why.removeprefix('ERROR: ')}", "use those of this Python")
        with suppress(OSError):  # another process was first
            shutil.move(target, kept)
    return kept


def _check(
    settings: Settings, base: Path, tables: Sequence[Path], packages: Path, control: Control
) -> subprocess.CompletedProcess[str]:
    """What `tuner check` prints under these packages."""
    own = {key: text for key, text in os.environ.items() if not key.startswith("TUNER__")}
    own.pop("TUNER_CONFIG", None)
    sections = settings.model_dump(mode="json", include=_SECTIONS)
    own |= {f"TUNER__{name.upper()}": json.dumps(value) for name, value in sections.items()}
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own["PYTHONPATH"] = os.pathsep.join([f"{packages}", *map(os.path.abspath, paths)])
    command = [sys.executable, "-P", "-m", "tuner", "check", *map(str, tables)]
    command += ["--level", "measure", "--format", "json", "--quiet"]
    done = _run(command, control, base, own)
    if done.returncode not in (0, 1):
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        why = next((each for each in lines if each.startswith("error: ")), lines[-1])
        hints = (each.removeprefix("hint: ") for each in lines if each.startswith("hint: "))
        raise TunerError(f"the check failed: {why.removeprefix('error: ')}", next(hints, ""))
    return done


def _run(
    command: Sequence[str], control: Control, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A child process that ends with this one; KeyboardInterrupt where the run is to stop."""
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not control.draining:
            with suppress(subprocess.TimeoutExpired):
                out, err = child.communicate(timeout=_POLL_S)
                return subprocess.CompletedProcess(command, child.returncode, out, err)
        raise KeyboardInterrupt
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.communicate(timeout=_ENDING_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
