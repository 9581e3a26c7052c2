"""Which tests find a past fix that is taken back: the same revert, in the suites of `make`.

    python benchmarks/reverted_fixes.py [--full] [--only NAME ...]

Each entry of FIXES is the present form of a fix, by its commit, and what stood there before. In a
copy of the tracked files the former text is put back, and the tests that stand near run until the
first failure, as `make test` selects them (with --full as `make test-all` does). Prints a row per
fix, with the test that failed; the exit code is 1 if a revert was not found. A fix whose text has
moved is an error: follow it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fix:
    """A text of a file, what it replaced, and where tests of it stand."""

    kind: str
    commit: str
    file: str
    now: str
    before: str
    tests: tuple[str, ...]


FIXES = (
    Fix(
        "race in the driver",
        "27fd783a",
        "workers/pools/local.py",
        """                self._events.put(WorkerGone(worker_id, reason, remedy))
                self._events.put(JobLost(job.job_id, reason, remedy, is_lasting(error)))
""",
        """                self._events.put(JobLost(job.job_id, reason, remedy, is_lasting(error)))
                self._events.put(WorkerGone(worker_id, reason, remedy))
""",
        ("tests/pools/test_local_pool.py", "tests/pools", "tests/farm"),
    ),
    Fix(
        "lost lease",
        "57b74e83",
        "tuner/campaign/lease.py",
        """    living = process_lives(run.process)
    if living is None:
        return run.silent_s""",
        """    living = process_lives(run.process)
    if living is not False:
        return run.silent_s""",
        ("tests/farm/test_lease.py", "tests/farm", "tests/store", "tests/cli"),
    ),
    Fix(
        "wrong mask in a family",
        "5bc76c7c",
        "search_spaces/kernels/normalization/triton_kernels.py",
        """        if COLS != BLOCK:
            x = tl.where(in_row, x, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1)""",
        """    scale = tl.rsqrt(tl.sum(x * x, 1)""",
        ("tests/spaces/test_layer_norm.py", "tests/spaces/test_family_variants.py", "tests/spaces"),
    ),
    Fix(
        "nearness",
        "8bfeccee",
        "tuner/runtime/_nearest.py",
        "(math.log2(value) - math.log2(known)) ** 2",
        "(value - known) ** 2",
        ("tests/tables/test_table_lookup.py", "tests/tables", "tests/integrations"),
    ),
    Fix(
        "unescaped name",
        "40346fae",
        "reports/quantity.py",
        "    return escape(text, quote=False)\n",
        "    return text\n",
        ("tests/reports/test_report_figures.py", "tests/reports"),
    ),
    Fix(
        "leaked process",
        "3140efd6",
        "workers/supervision/child/reaper.py",
        """        for pid in _descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        remaining, collected = _collect(worker)""",
        """        with suppress(OSError):
            os.kill(worker, signal.SIGKILL)
        remaining, collected = _collect(worker)
        remaining = False""",
        ("tests/pools/test_child.py", "tests/pools", "tests/farm"),
    ),
    Fix(
        "migration",
        "a2c18ed9",
        "results_db/migrations/versions/0010_tags.py",
        """        batch.create_unique_constraint(op.f("uq_run_tag"), ["tag"])
""",
        "",
        ("tests/store/test_store_migrations.py", "tests/store"),
    ),
    Fix(
        "command-line option",
        "d63a2ba2",
        "tuner/campaign/run.py",
        """        if (whole_s := self.campaign.wall) is not None:
""",
        """        if (whole_s := self.campaign.wall) is not None and len(tasks) == 0:
""",
        ("tests/cli/test_bad_runs.py", "tests/cli"),
    ),
    Fix(
        "circle of imports",
        "ae5db058",
        "tuner/api/html.py",
        "from search_spaces.inert_text import inert\n",
        "from search_spaces.inert_text import inert\nfrom tuner.api.result import Result\n",
        ("tests/test_layers.py",),
    ),
    Fix(
        "identity",
        "538346ed",
        "search_spaces/object_state.py",
        """        for name, value in sorted(fn.__dict__.items()):
            self._put(name)
            self.add(value, name)
""",
        "",
        ("tests/spaces/test_identity.py", "tests/spaces"),
    ),
    Fix(
        "table that is not atomic",
        "a206cfaf",
        "search_spaces/atomic_file.py",
        """    with (
        draft_of(path, durable=durable) as draft,
        os.fdopen(os.open(draft, _NEW_FILE, 0o666), "wb") as file,
    ):
        file.write(content)
""",
        "    path.write_bytes(content)\n",
        ("tests/spaces/test_atomic_file.py", "tests/tables", "tests/cli"),
    ),
    Fix(
        "verdict",
        "5df1b8b3",
        "search_spaces/log_ratio.py",
        "        if self.high < 0 and self.value <= -margin:",
        "        if self.value <= -margin:",
        ("tests/spaces/test_statistics.py", "tests/spaces", "tests/engine"),
    ),
)


def main() -> int:
    """Run the reverts one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="with the tests of `make test-all`")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND")
    options = parser.parse_args()
    print("| fix | commit | found by |\n|---|---|---|", flush=True)
    missed = 0
    for fix in FIXES:
        if not options.only or fix.kind in options.only:
            failed = find(fix, full=options.full)
            missed += failed is None
            print(f"| {fix.kind} | {fix.commit} | {failed or '**nothing**'} |", flush=True)
    return int(missed > 0)


def find(fix: Fix, *, full: bool) -> str | None:
    """The first test that fails without the fix; None if all pass."""
    with tempfile.TemporaryDirectory(prefix="revert") as scratch:
        folder = Path(scratch)
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        for name in filter(None, tracked):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
        text = (folder / fix.file).read_text()
        if text.count(fix.now) != 1:
            sys.exit(
                f"{fix.file}: the text of {fix.commit} stands there {text.count(fix.now)} times"
            )
        (folder / fix.file).write_text(text.replace(fix.now, fix.before))
        return next(filter(None, (_fail(folder, tests, full) for tests in fix.tests)), None)


def _fail(folder: Path, tests: str, full: bool) -> str | None:
    chosen = "not gpu" if full else "not (full or gpu)"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-m", chosen, "-p", "no:cacheprovider", tests],
        cwd=folder, capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": f"{folder}", "FAMILIES": "all" if full else "changed"
        },
    )  # fmt: skip
    if done.returncode not in (0, 1, 5):
        return f"`{tests}` cannot run"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return f"`{found[1]}`" if found else None


if __name__ == "__main__":
    sys.exit(main())
