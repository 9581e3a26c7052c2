"""Run every planted cheat and a few hundred honest variants through the gate on the GPU.

Usage: python benchmarks/acceptance/gate_cheats.py [OUT.json]

Prints one line per cheat with the reason of its refusal, the number of refused honest variants (it
should be 0), and the GPU time of the gate for a matrix product of 4096^3 in bfloat16.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "measure")]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    from workers import backend_kinds

    os.environ.update(backend_kinds.environment("cuda", str(folder / "cache")))
    backend = backend_kinds.create("cuda", cache_dir=str(folder / "cache"))
    report = {"device": backend.info()[0].name, **play_cheats(backend)}
    report.update(play_honest(backend, folder))
    report.update(gate_cost(backend, folder))
    print(json.dumps({key: report[key] for key in report if key != "cheats"}, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


def play_cheats(backend) -> dict:
    import re

    import cheats

    from workers.job_records import Artifact, Failure, KernelRef, MeasureJob, MeasurementProtocol

    device, toolchain = backend.info()
    ref = KernelRef(f"{Path(cheats.__file__)}:Cheated")
    rows, refused = [], 0
    for cheat in (cheat for cheat in cheats.CHEATS if cheat.writes):
        artifact = Artifact(cheat.config, device.target, toolchain, cheat.name)
        job = MeasureJob(
            "j", ref, cheat.workload(2048), (artifact,), protocol=MeasurementProtocol(warm_ms=20.0)
        )
        answer = backend.measure(job)
        outcome = answer if isinstance(answer, Failure) else answer.outcomes[0]
        message = outcome.message if isinstance(outcome, Failure) else "PASSED"
        named = bool(re.search(cheat.reason, message))
        refused += named
        rows.append({"cheat": cheat.name, "refused": named, "reason": message})
        print(f"{'refused' if named else 'MISSED ':8} {cheat.name:26} {message}")
        time.sleep(0.5 if cheat.name == "thread" else 0)
    return {"cheats": rows, "cheats_played": len(rows), "cheats_refused": refused}


def play_honest(backend, folder: Path) -> dict:
    import honest

    from search_spaces.records import Status
    from workers.job_records import Failure, MeasurementProtocol, Mode

    given = {"mode": Mode.RACE, "protocol": MeasurementProtocol(warm_ms=20.0)}
    counts = {"honest_played": 0, "honest_refused": 0, "honest_failed": 0, "not_deterministic": 0}
    for job in honest.jobs(backend.info()[0], folder / "build", given):
        answer = backend.measure(job)
        if isinstance(answer, Failure):
            print(f"job failed: {job.job_id}: {answer.message}\n{answer.detail}")
            continue
        for artifact, outcome in zip(job.candidates, answer.outcomes, strict=True):
            counts["honest_played"] += 1
            if isinstance(outcome, Failure):
                wrong = outcome.status is Status.CORRECTNESS
                counts["honest_refused" if wrong else "honest_failed"] += 1
                print(f"{outcome.status}: {dict(artifact.config)}: {outcome.message}")
            elif outcome.deterministic is False:
                counts["not_deterministic"] += 1
    return counts


def gate_cost(backend, folder: Path) -> dict:
    """GPU and host time of `prepare` with a full check, for a variant that is already loaded."""
    import statistics

    import torch
    from torch.autograd import DeviceType
    from torch.autograd.profiler import profile

    from search_spaces.records import Workload
    from search_spaces.registry import load
    from workers.compiling import build
    from workers.job_records import Artifact, BuildJob, KernelRef

    device = backend.info()[0]
    workload = Workload.of(M=4096, N=4096, K=4096, dtype="bfloat16")
    ref = KernelRef("matmul")
    config = load("matmul").default_config(workload, device)
    artifact = build(BuildJob("b", ref, workload, config, device), folder / "one")
    assert isinstance(artifact, Artifact), artifact
    task = backend._build_task(ref, workload, (1, 2))
    for _ in range(3):
        entry = backend.prepare(task, artifact, check=True)
    gpu_us, spin_us, kernel_us, host_ms = [], [], [], []
    for _ in range(5):
        torch.cuda.synchronize()
        with profile(use_cpu=False, use_device="cuda", use_kineto=True) as session:
            started = time.perf_counter()
            entry = backend.prepare(task, artifact, check=True)
            host_ms.append((time.perf_counter() - started) * 1e3)
            entry.check.before()
            entry.candidate.run()
            entry.check.after()
            assert entry.check.problem() == ""
        events = [
            (event.name(), event.duration_ns() / 1e3)
            for event in session.kineto_results.events()
            if event.device_type() == DeviceType.CUDA and "Sync" not in event.name()
        ]
        gpu_us.append(sum(us for _, us in events))
        spin_us.append(sum(us for name, us in events if "spin" in name))
        kernel_us.append(sum(us for name, us in events if "matmul" in name))
    return {
        "gate_gpu_us": statistics.median(gpu_us),
        "of_which_spinning_us": statistics.median(spin_us),
        "of_which_the_kernel_us": statistics.median(kernel_us),
        "gate_host_ms": statistics.median(host_ms),
        "gate_error": entry.error,
        "gate_activities": sorted(events, key=lambda event: -event[1])[:12],
    }


if __name__ == "__main__":
    main()
