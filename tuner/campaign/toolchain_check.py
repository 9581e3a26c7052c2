"""Check published tables under another toolchain, a folder of wheels, as a run of a campaign."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_db.patience import Patience
from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from search_spaces.records import digest
from tuner.campaign import lease
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
    for each in _NOT_HERE:
        if getattr(options, each) not in (None, (), {}):
            raise TunerError(f"{name} checks tables, without {each}", "leave that option out")
    wheels = sorted((options.base / wanted.wheels).glob("*.whl"))
    if not wheels:
        raise TunerError(f"campaign {name!r}: {wanted.wheels}: no wheel", "`pip download` gets one")
    paths = [wanted.tables] if isinstance(wanted.tables, str) else wanted.tables
    tables = [options.base / each for each in paths]
    if missing := [f"{each}" for each in tables if not each.exists()]:
        raise TunerError(f"campaign {name!r}: {missing[0]}: no such file or folder", "correct it")
    done = _check(settings, options.base, tables, _install(wheels, control), control)
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    versions = ", ".join(" ".join(each.name.split("-")[:2]) for each in wheels)
    refused = [each for each in done.stderr.splitlines() if each.startswith("not checked:")]
    summary = "; ".join([_summarise(entries, versions), *refused])
    tools: dict[str, str] = next(filter(None, (each["toolchain"] for each in entries)), {})
    facts = (
        {k: v for k, v in tools.items() if v}
        | collect_facts(options.base, fresh=False)
        | {"wheels": versions}
    )
    facts["devices"] = ", ".join(sorted({each["device"] for each in entries}))
    elapsed_s = time.monotonic() - began
    figures = {"elapsed_s": round(elapsed_s, 3), "device_s": sum(e["device_s"] for e in entries)}
    from results_db import Store

    document, database = {"check": wanted.model_dump(mode="json")}, settings.database
    with Store.open(database.url, answer_s=database.timeout) as opened:
        store = opened.waiting(Patience(database.patience, lambda: control.killed))
        run = store.begin_run(name, digest(document), 0, facts, document, started_at=started_at)
        held = lease.take(store, run)
        try:
            ended = {"summary": summary, "trials": 0, **figures, "entries": entries}
            held.finish_run(run.run_id, RunStatus.FINISHED, ended)
        finally:
            lease.leave(held)
    return RunOutcome(
        run.run_id, RunStatus.FINISHED, len(entries), 0, 0, elapsed_s, summary,
        findings=(f"{name}: {summary}",) if done.returncode else (), entries=tuple(entries),
    )  # fmt: skip


def _summarise(entries: Sequence[Mapping[str, Any]], versions: str) -> str:
    worse = [each for each in entries if each["finding"]]
    if not worse:
        return f"{len(entries)} entries, none of them worse under {versions}"
    kinds = " or ".join(dict.fromkeys(each["result"] for each in worse))
    names = []
    for each in worse[:_NAMED]:
        change = f" {each['change'] - 1:+.1%}" if each["change"] else ""
        names.append(f"{each['kernel']} {each['workload']} {each['result']}{change}")
    names += ["..."] * (len(worse) > _NAMED)
    return f"{len(worse)} of {len(entries)} entries {kinds} under {versions}: {', '.join(names)}"


def _install(wheels: Sequence[Path], control: Control) -> Path:
    """The folder with the contents of wheels, installed once without a network or dependencies."""
    content = {"python": sys.version}
    for each in wheels:
        with each.open("rb") as file:
            content[each.name] = file_digest(file, "sha256").hexdigest()
    root = user_cache.folder("toolchains")
    if root is None:
        raise TunerError(f"{user_cache.place()} is not usable", f"set {user_cache.VARIABLE}")
    kept = root / digest(content)
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=root) as made:
            target = Path(made) / "packages"
            command = ["pip", "install", "--no-index", "--no-deps", "--quiet", "--no-compile"]
            command += ["--target", f"{target}", *map(str, wheels)]
            _run(command, control, Path(made), os.environ, (0,), "ERROR: ")
            with suppress(OSError):  # another process was first
                target.rename(kept)
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
    command = ["tuner", "check", *map(str, tables), "--level", "measure", "-f", "json", "-q"]
    return _run(command, control, base, own, (0, 1), "error: ")


def _run(
    module: Sequence[str],
    control: Control,
    folder: Path,
    environment: Mapping[str, str],
    codes: Sequence[int],
    mark: str,
) -> subprocess.CompletedProcess[str]:
    """A child process that ends with this one; KeyboardInterrupt where the run is to stop.

    `TunerError` with its line that begins with `mark` where it ends with another of the codes.
    """
    command = [sys.executable, "-P", "-m", *module]
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        text=True,
    )  # fmt: skip
    try:
        while child.returncode is None:
            if control.draining:
                raise KeyboardInterrupt
            with suppress(subprocess.TimeoutExpired):
                out, err = child.communicate(timeout=_POLL_S)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=_ENDING_S)
            child.kill()
    if child.returncode not in codes:
        lines = err.strip().splitlines() or [f"it ended with {child.returncode}"]
        why = next((each for each in lines if each.startswith(mark)), lines[-1])
        raise TunerError(f"{module[0]} {module[1]}: {why.removeprefix(mark)}", "correct its cause")
    return subprocess.CompletedProcess(command, child.returncode, out, err)
