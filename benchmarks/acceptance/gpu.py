#!/usr/bin/env python3
"""Acceptance tests of the measurement on a GPU: one table, and JSON.

    benchmarks/acceptance/gpu.py --out OUT/acceptance.json [--only G2,G3] [--scale 0.2]

G1 clock-calibration, G2 identical-pairs, G3 planted-slowdowns, G4/G5 selection-regret, G6
cupti-agreement, G7 cache-states, G8 launch-times, G9 order-invariance, G10 idleness, G11 power-cap,
G12 planted-cheats, G13 thousand-variants, G14 several-gpus, G15 energy, G16 interval-coverage,
`cost` config-cost and `ncu` ncu-agreement; `--only` takes an id or a title.

The farm's builder first builds real variants on the CPU. Every test then runs in its own process
with a time limit, on the farm's backend, clocks, jobs, intervals and verdicts. The document is
written after each test, so a test that crashes or hangs loses no result of another. A test that
would begin after `--stop-after` seconds is skipped, and its row says so. `--scale` below 1 takes
fewer repetitions; a bound that needs more of them is then not judged. The exit code is 1 when a
bound was missed.

`--device cpu` runs G2 and G3 without a GPU: loops of known length, timed by the processor's clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "benchmarks"
sys.path[:0] = [path for path in (f"{ROOT}", f"{HERE}") if path not in sys.path]

from matmul_tasks import write  # noqa: E402

from acceptance.fields import build_fields  # noqa: E402
from acceptance.harness import Setup  # noqa: E402
from acceptance.isolation import Lost, isolated  # noqa: E402
from acceptance.result import Result, table  # noqa: E402

_NO_TIME = "not run: no time left"


@dataclass(frozen=True, slots=True)
class Test:
    """One acceptance test, which runs in its own process."""

    #: The key of the result document.
    name: str
    #: What is tested; `--only` takes it as well.
    title: str
    #: `module:name` in the package `acceptance`.
    function: str
    #: Seconds after which the test is ended.
    limit_s: float
    #: Fields of real variants that the test compares.
    needs: tuple[str, ...] = ()
    #: Whether `--device cpu` can run it.
    on_cpu: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} {self.title}"


_SMALL = ("softmax_512x1024", "matmul_1024", "layer_norm_4096x4096", "softmax_8192x8192")
_LARGE = ("matmul_4096", "layer_norm_32768x8192", "matmul_5ms")
#: The most important tests come first, because a run that is cut short omits the last ones.
TESTS = (
    Test("G1", "clock-calibration", "clocks:calibrated", 40),
    Test("G2", "identical-pairs", "pairs:same", 150, (*_SMALL, *_LARGE), on_cpu=True),
    Test("G3", "planted-slowdowns", "pairs:planted", 480, on_cpu=True),
    Test("cost", "config-cost", "cost:of_a_config", 60, ("matmul_4096",)),
    Test("G6", "cupti-agreement", "agreement:with_cupti", 60,
         (*_SMALL, *_LARGE, "softmax_2048x4096", "matmul_8192")),
    Test("G8", "launch-times", "clocks:launches", 30),
    Test("G7", "cache-states", "clocks:caches", 30),
    Test("G9", "order-invariance", "order:invariance", 40, ("matmul_4096", "softmax_512x1024")),
    Test("G10", "idleness", "order:idleness", 40, ("matmul_4096", "softmax_512x1024")),
    Test("G11", "power-cap", "pairs:capped", 30, ("matmul_8192",)),
    Test("G16", "interval-coverage", "pairs:coverage", 90),
    Test("G13", "thousand-variants", "cost:thousand", 90,
         ("thousand_softmax", "thousand_layer_norm")),
    Test("G12", "planted-cheats", "gate:cheats", 120),
    Test("ncu", "ncu-agreement", "ncu:agreement", 110),
    Test("G14", "several-gpus", "devices:devices", 200, ("matmul_4096",)),
    Test("G4/G5", "selection-regret", "selection:exhaustive", 20, on_cpu=True),
    Test("G15", "energy", "devices:energy", 20, on_cpu=True),
)  # fmt: skip


def perform(function: str, setup: Setup) -> Result:
    """Run one test in this process."""
    import importlib

    module, _, name = function.partition(":")
    called: Callable[[Setup], Result] = getattr(
        importlib.import_module(f"acceptance.{module}"), name
    )
    if setup.kind == "cpu":
        return called(setup)
    import torch

    with torch.no_grad():
        return called(setup)


def learn(setup: Setup) -> tuple:
    """Device, toolchain and calibration, from a process that ends before the tests begin."""
    from acceptance.harness import Harness

    harness = Harness(setup)
    return (*harness.backend.info(), harness.calibration)


def main() -> int:
    args = _arguments()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="acceptance-"))
    _prepare_environment(args.device, folder)
    tests = _chosen(args)
    files = {"regret": args.regret}
    setup = Setup(args.device, folder, args.scale, files=files)
    document = _document(args)
    tests = [test for test in tests if test.name not in document["tests"]]
    if args.device == "cuda" and tests:
        setup = _built(setup, tests, args, document)
    document["prepared_s"] = round(time.monotonic() - began, 1)
    print(f"prepared in {document['prepared_s']} s", flush=True)
    earlier_s = document.get("wall_s", 0.0)
    for test in tests:
        left = args.stop_after - (time.monotonic() - began)
        document["tests"][test.name] = _one(test, setup, left)
        document["wall_s"] = round(earlier_s + time.monotonic() - began, 1)
        _save(args.out, document)
    _save(args.out, document)
    rows = [(name, entry) for name, test in document["tests"].items() for entry in test["rows"]]
    labels = {test.name: test.label for test in TESTS}
    print(f"\n{document.get('device', {}).get('name', args.device)}, {document['date']}, "
          f"{document.get('wall_s', 0.0)} s, scale {args.scale:g}\n")  # fmt: skip
    print(table([(labels[name], _Row(entry)) for name, entry in rows]))
    missed = [name for name, entry in rows if entry["ok"] is False]
    judged = sum(entry["ok"] is not None for _, entry in rows)
    print(f"\n{judged - len(missed)} of {judged} bounds met, {len(rows) - judged} not judged")
    return 1 if missed else 0


def _document(args) -> dict:
    """The tests of earlier runs, in the order of `TESTS`."""
    document = {"date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "scale": args.scale, "tests": {}}
    earlier: dict[str, dict] = {}
    for path in args.resume:
        known = json.loads(path.read_text())
        earlier |= {n: entry for n, entry in known["tests"].items() if not _left_out(entry)}
        document = {**known, "tests": {}}
    document["tests"] = {test.name: earlier[test.name] for test in TESTS if test.name in earlier}
    return document


def _left_out(entry: dict) -> bool:
    return any(row["note"].startswith(_NO_TIME) for row in entry["rows"])


class _Row:
    """A row of the document."""

    def __init__(self, entry: dict) -> None:
        self.__dict__.update(entry)


def _one(test: Test, setup: Setup, left_s: float) -> dict:
    if left_s < 5:
        result = Result()
        result.skip(test.function, f"{_NO_TIME}; run it with --only {test.name}")
        return _entry(result, 0.0)
    print(f"-- {test.label}", flush=True)
    started = time.monotonic()
    needed = {name: setup.built[name] for name in test.needs if name in setup.built}
    try:
        given = replace(setup, built=needed)
        result = isolated(perform, test.function, given, limit_s=min(test.limit_s, left_s))
    except Lost as problem:
        result = Result()
        result.add(test.function, "a result", "none", False, f"{problem}")
    seconds = time.monotonic() - started
    entry = _entry(result, seconds)
    for row in entry["rows"]:
        word = {True: "pass", False: "FAIL", None: "-"}[row["ok"]]
        print(f"   {word:4} {row['what']}: {row['measured']} ({row['note']})", flush=True)
    print(f"   {seconds:.1f} s", flush=True)
    return entry


def _entry(result: Result, seconds: float) -> dict:
    rows = [asdict(row) for row in result.rows]
    date = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {"rows": rows, "data": result.data, "seconds": round(seconds, 1), "date": date}


def _built(setup: Setup, tests: list[Test], args, document: dict) -> Setup:
    """The setup with calibration and variants; facts go into the document."""
    device, toolchain, calibration = isolated(learn, setup, limit_s=120.0)
    document["device"] = {**asdict(device)}
    document["toolchain"] = asdict(toolchain)
    document["calibration"] = asdict(calibration)
    further = [isolated(learn, setup, limit_s=120.0)[-1] for _ in range(_further(tests))]
    setup = replace(setup, calibration=calibration, calibrations=tuple(further))
    names = list(dict.fromkeys(name for test in tests for name in test.needs))
    if not names:
        return setup
    started = time.monotonic()
    share = min(1.0, args.scale)
    limit_s = 240.0
    built, problems = isolated(
        build_fields, names, device, setup.folder / "build", share, limit_s=limit_s
    )
    document["built"] = {name: len(artifacts) for name, artifacts in built.items()}
    document["not_built"] = problems
    document["build_s"] = round(time.monotonic() - started, 1)
    print(f"built {sum(document['built'].values())} variants in {document['build_s']} s, "
          f"{len(problems)} failed to build", flush=True)  # fmt: skip
    return replace(setup, built=built)


def _further(tests: list[Test]) -> int:
    """How many calibrations the tests need in addition to the first."""
    return 2 if any(test.name == "G1" for test in tests) else 0


def _prepare_environment(kind: str, folder: Path) -> None:
    """Set up the environment before any import reads it; every test forks from this process."""
    from workers import backend_kinds

    if kind == "cuda":
        os.environ.update(backend_kinds.environment("cuda", f"{folder / 'cache'}"))
        # The usual check would initialise CUDA here, and no forked process could use it afterwards.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        import scipy.stats  # noqa: F401
        import torch  # noqa: F401
        import triton  # noqa: F401


def _chosen(args) -> list[Test]:
    known = {name: test for test in TESTS for name in (test.name, test.title)}
    every = [test.name for test in TESTS]
    names = [name.strip() for name in args.only.split(",")] if args.only else every
    if unknown := sorted(set(names) - set(known)):
        labels = ", ".join(test.label for test in TESTS)
        raise SystemExit(f"no test {', '.join(unknown)}; tests: {labels}")
    return [known[name] for name in names if args.device == "cuda" or known[name].on_cpu]


def _save(out: Path | None, document: dict) -> None:
    if out is not None:
        write(out, document)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="ids or titles of tests, separated by commas")
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="+",
        default=[],
        help="earlier documents; their tests are kept and not run again",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the repetitions")
    parser.add_argument("--stop-after", type=float, default=320.0, help="seconds")
    parser.add_argument(
        "--regret", type=Path, default=HERE / "results" / "h200" / "selection_regret.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
