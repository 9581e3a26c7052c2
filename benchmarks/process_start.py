#!/usr/bin/env python3
"""Start time of a device process, from scratch and forked, and of a local pool.

    benchmarks/process_start.py --out FILE.json [--kind cuda] [--times 5]

Starts the farm's device process and lets it open its device: first each time from a new fork server
that has loaded nothing, then from one that has loaded the modules that `workers.backend_kinds`
names for the kind. Processes start one by one with nothing else running. Then starts whole pools,
whose servers `prestart` has begun to load. Prints wall seconds until the device has answered, until
a killed process is gone, until a pool's runner and builders are ready, and of the pool's close.
Takes about two minutes on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from matmul_tasks import write

from workers import backend_kinds
from workers.job_records import PoolSpec, WorkerReady
from workers.pools import create, prestart
from workers.supervision.fork_server import ForkServer
from workers.supervision.supervised_child import SupervisedChild


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", default="cuda")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    started_s(args.kind, ForkServer("first"))  # this first start also reads files from disk
    from_scratch = [started_s(args.kind, ForkServer("anew")) for _ in range(args.times)]
    server = ForkServer("loaded", preload=backend_kinds.preload(args.kind))
    loading = started_s(args.kind, server, close=False)
    forked = [started_s(args.kind, server, close=False) for _ in range(args.times)]
    server.close()
    pools = [pool_s(args.kind) for _ in range(args.times)]
    document = {
        "script": "benchmarks/process_start.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": loading["device"],
        "toolchain": asdict(backend_kinds.spec(args.kind).toolchain()),
        "anew_s": [row["start_s"] for row in from_scratch],
        "server_and_first_s": loading["start_s"],
        "forked_s": [row["start_s"] for row in forked],
        "killed_s": [row["kill_s"] for row in forked],
        **{name: [row[name] for row in pools] for name in pools[0]},
    }
    write(args.out, document)
    for name in ("anew_s", "forked_s", "killed_s", *pools[0]):
        print(f"{name}: {statistics.median(document[name]):.3f} (median of {document[name]})")
    print(f"server_and_first_s: {document['server_and_first_s']}")
    return 0


def pool_s(kind: str) -> dict[str, float]:
    """Seconds from `prestart` until a pool's runner and all builders are ready, and to close."""
    began = time.monotonic()
    prestart([kind])
    pool = create(PoolSpec(runners={kind: 1}))
    pool.start()
    found: dict[str, float] = {}
    while len(found) < 2:
        if any(isinstance(event, WorkerReady) for event in pool.poll(0.005)):
            found["pool_runner_s"] = round(time.monotonic() - began, 3)
        if pool.warm:
            found.setdefault("pool_builders_s", round(time.monotonic() - began, 3))
    began = time.monotonic()
    pool.close()
    return {**found, "pool_close_s": round(time.monotonic() - began, 3)}


def started_s(kind: str, server: ForkServer, *, close: bool = True) -> dict[str, object]:
    """Seconds until a new process has opened its device, and until it is gone after a kill."""
    began = time.monotonic()
    child = SupervisedChild(
        "workers.measure.device_runner:DeviceService",
        {"kind": kind, "index": 0, "options": {}},
        environment=lambda cache_dir: backend_kinds.environment(kind, f"{cache_dir}"),
        name="process-start",
        server=server,
    )
    device, _ = child.request("info", timeout_s=180.0)
    start_s = time.monotonic() - began
    began = time.monotonic()
    child.kill()
    kill_s = time.monotonic() - began
    if close:
        server.close()
    return {"device": device.name, "start_s": round(start_s, 3), "kill_s": round(kill_s, 3)}


if __name__ == "__main__":
    raise SystemExit(main())
