"""One command from the start of its process to its exit, with empty caches.

Every process gets new folders for HOME, XDG_CACHE_HOME and the caches of Triton, Inductor and
CUDA. Packages of the user's own Python folder stay importable. `whole_s` counts from the start of
the process to its exit, `gone_s` until no process is left that it has started.

Installed packages have byte code, as pip makes it. Where this environment forbids Python to write
any (PYTHONDONTWRITEBYTECODE, usual in container images), `compiled_packages` makes it once for all
processes, whichever tool they run; without it every process compiles torch from its source.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import site
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).resolve().parent.parent
_MARK = "KEYPRESS_STEP"
_GONE_S = 10.0
_TAIL = 1500
#: Linux's PR_SET_CHILD_SUBREAPER.
_SUBREAPER = 36


@contextmanager
def compiled_packages(revision: Path) -> Iterator[bool]:
    """Make byte code of all importable packages, if Python may write none, for processes inside.

    revision: a checkout that processes import. Yields whether it had to be made.
    """
    forbidden = os.environ.pop("PYTHONDONTWRITEBYTECODE", "")
    if not forbidden:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="keypress-", ignore_cleanup_errors=True) as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        packages = ("tuner", "workers", "search_spaces", "results_db", "reports", "benchmarks")
        paths = [path for path in sys.path if "packages" in path or "python" in path]
        paths += [f"{revision / name}" for name in packages]
        paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)[:1]
        command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *dict.fromkeys(paths)]
        # Some packages carry files for other versions of Python.
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        try:
            yield True
        finally:
            del os.environ["PYTHONPYCACHEPREFIX"]
            os.environ["PYTHONDONTWRITEBYTECODE"] = forbidden


def cold(folder: Path, revision: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process with empty caches below `folder` that imports `revision`."""
    places = {
        "HOME": folder / "home",
        "XDG_CACHE_HOME": folder / "cache",
        "TRITON_HOME": folder / "home",
        "TRITON_CACHE_DIR": folder / "triton",
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "CUDA_CACHE_PATH": folder / "cuda",
    }
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    paths = [f"{revision}", os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **{name: f"{place}" for name, place in places.items()},
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **(more or {}),
    }


def timed(
    arguments: Sequence[str],
    revision: Path,
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    answer: str = "answer.json",
    database: bool = False,
) -> dict:
    """Run Python with these arguments from an empty folder; its seconds and what it left behind.

    `{folder}` in an argument or a value of the environment is that folder. answer: the JSON file
    that the process may write there. database: read the outcome of `tuner.db` there.
    """
    with tempfile.TemporaryDirectory(prefix="keypress-", ignore_cleanup_errors=True) as name:
        folder, mark = Path(name), uuid4().hex
        more = {key: text.replace("{folder}", name) for key, text in (environment or {}).items()}
        command = [sys.executable, *(text.replace("{folder}", name) for text in arguments)]
        surroundings = cold(folder, revision, {**more, _MARK: mark})
        with (folder / "log").open("w") as log:
            began, began_at = time.perf_counter(), datetime.now(UTC)
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            except BaseException:  # this script is stopped
                _kill(_marked(mark))
                raise
            whole_s = time.perf_counter() - began
        document = {"whole_s": round(whole_s, 3), "gone_s": _gone_s(mark, began)}
        if code is None:
            document["problem"] = f"did not end within {limit_s:.0f} s"
        if (folder / answer).exists():
            document |= json.loads((folder / answer).read_text())
        if code:
            tail = (folder / "log").read_text(errors="replace")[-_TAIL:]
            document["problem"] = f"exit code {code}: {tail}"
        if database and (folder / "tuner.db").exists():
            document |= stored(folder / "tuner.db", began_at)
        return document


def _gone_s(mark: str, began: float) -> float | None:
    """Seconds until no process with the mark is left; None where some had to be killed."""
    deadline = time.perf_counter() + _GONE_S
    while left := _marked(mark):
        if time.perf_counter() > deadline:
            _kill(left)
            return None
        time.sleep(0.02)
    return round(time.perf_counter() - began, 3)


def _kill(numbers: Sequence[int]) -> None:
    for number in numbers:
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Processes whose environment has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


# -- processor time --------------------------------------------------------------------------------
def adopt_orphans() -> None:
    """Make processes whose parent has ended children of this one, on Linux; for a whole script."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def processor_s() -> float:
    """Processor seconds of all children that have ended, those that ended last included.

    A child counts with what it has waited for, and after `adopt_orphans` with all it has started.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# -- what the process has stored -------------------------------------------------------------------
def stored(path: Path, began_at: datetime) -> dict:
    """Trials and outcomes in a database of any revision; seconds since the process started."""
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        trials = database.execute(
            "SELECT status, coalesce(finished_at, recorded_at) AS at FROM trial ORDER BY at"
        ).fetchall()
        chosen = database.execute(
            "SELECT verdict, reason, median_us, log_ratio, log_ratio_low, log_ratio_high, winner,"
            " confirmed_at FROM selection ORDER BY recorded_at"
        ).fetchall()
        baselines = database.execute(
            "SELECT name, status, median_us, log_ratio FROM baseline ORDER BY task_id, position"
        ).fetchall()
        notes = database.execute("SELECT note FROM task WHERE note != ''").fetchall()
    times = [_since(began_at, row["at"]) for row in trials]
    confirmed = [_since(began_at, row["confirmed_at"]) for row in chosen if row["confirmed_at"]]
    verdicts = [row["verdict"] for row in chosen]
    document = {
        "trials": len(trials),
        "failed": sum(row["status"] != "correct" for row in trials),
        "first_trial_s": times[0] if times else None,
        "last_trial_s": times[-1] if times else None,
        "confirmed_s": max(confirmed, default=None),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "notes": sorted({row["note"] for row in notes}),
    }
    if len(chosen) == 1:
        document["selection"] = {**chosen[0], "winner": json.loads(chosen[0]["winner"])}
        document["baselines"] = [dict(row) for row in baselines]
    return document


def _since(began_at: datetime, text: str) -> float:
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return round((at - began_at).total_seconds(), 3)
