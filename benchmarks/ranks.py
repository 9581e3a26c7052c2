"""Do ranks on several GPUs choose alike, and how long do they tune when they share it?

A matrix product of 48 configs in two sizes, under `tuner.runtime.autotune`, is tuned by one rank
and by all GPUs of this host under `torchrun`, sharing and not, with empty caches. Then real starts
with twelve configs, in which each rank has another cache: empty, filled, or half written. Usage:

    python benchmarks/ranks.py --out FILE [--starts 20] [--gpus N] [--no-times]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from matmul_tasks import facts  # noqa: E402
from torch import distributed  # noqa: E402

from tuner import runtime  # noqa: E402

_CONFIGS = [
    triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
    for m, n in ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
    for k in (32, 64)
    for warps in (4, 8)
    for stages in (3, 4)
]


_EVERY = int(os.environ.get("RANKS_EVERY", "1"))


@runtime.autotune(_CONFIGS[::_EVERY], key=["size"])
@triton.jit
def multiply(a, b, c, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    cols = tl.program_id(1) * N + tl.arange(0, N)
    found = tl.zeros((M, N), tl.float32)
    for first in range(0, size, K):
        at = first + tl.arange(0, K)
        left = (rows[:, None] < size) & (at[None, :] < size)
        right = (at[:, None] < size) & (cols[None, :] < size)
        x = tl.load(a + rows[:, None] * size + at[None, :], mask=left, other=0.0)
        y = tl.load(b + at[:, None] * size + cols[None, :], mask=right, other=0.0)
        found = tl.dot(x, y, found)
    inside = (rows[:, None] < size) & (cols[None, :] < size)
    tl.store(c + rows[:, None] * size + cols[None, :], found.to(tl.float16), mask=inside)


def tune(size: int) -> tuple[str, bool, float]:
    """The config of a launch that misses, whether its result is right, and its seconds."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in "ab")
    c = torch.empty_like(a)
    torch.cuda.synchronize()
    distributed.barrier()
    began = time.monotonic()
    grid = lambda meta: (triton.cdiv(size, meta["M"]), triton.cdiv(size, meta["N"]))  # noqa: E731
    multiply[grid](a, b, c, size)
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    error = (c - a @ b).float().norm() / c.float().norm()
    return str(multiply.best_config), float(error) < 0.01, seconds


def follow(folder: Path) -> None:
    """One rank: tunes, launches, and writes what it chose and how long that took."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    tuned = [tune(size) for size in (4096, 1000)]
    found = {"chosen": [each[:2] for each in tuned], "seconds": sum(each[2] for each in tuned)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def start(ranks: int, mode: str, caches: Path, every: int = 1) -> list[dict[str, Any]]:
    """What the ranks of one start found; each has a folder of `caches`."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += [f"--nproc-per-node={ranks}", __file__, "--follow", folder, "--caches", caches]
        subprocess.run(
            words, check=True, env={**os.environ, "TUNER_RANKS": mode, "RANKS_EVERY": f"{every}"}
        )
        return [json.loads((Path(folder) / f"{at}.json").read_text()) for at in range(ranks)]


def halve(folder: Path) -> None:
    """Leave every second kernel of a cache as a killed process leaves it: without its index."""
    for file in sorted(folder.rglob("__grp__*"))[::2]:
        file.unlink()


def time_cold(ranks: int, mode: str) -> float:
    """Seconds of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        return max(each["seconds"] for each in start(ranks, mode, Path(folder)))


def count_agreements(ranks: int, starts: int) -> Iterator[dict[str, Any]]:
    """Of real starts with caches in all states: how many chose alike, and rightly, after each."""
    alike, right, found = 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder)
        for at in range(starts):
            for rank in range(ranks):
                cache, state = caches / f"{rank}", (at + rank) % 3
                if state == 0:
                    shutil.rmtree(cache, ignore_errors=True)
                elif state == 1 and cache.exists():
                    halve(cache)
            ends = start(ranks, ("broadcast", "share")[at % 2], caches, every=4)
            alike += all(each["chosen"] == ends[0]["chosen"] for each in ends)
            right += all(is_right for each in ends for _, is_right in each["chosen"])
            found.append(ends[0]["chosen"][0][0])
            yield {"starts": at + 1, "alike": alike, "right": right, "choices": len(set(found))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--no-times", action="store_true", help="starts alone")
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--caches", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        os.environ["TRITON_CACHE_DIR"] = str(options.caches / os.environ["RANK"])
        follow(options.follow)
        return
    gpus, times = options.gpus, {}
    ways = [("one", 1, "share"), ("shared", gpus, "share"), ("broadcast", gpus, "broadcast")]
    for name, ranks, mode in [] if options.no_times else ways:
        times[name] = round(time_cold(ranks, mode), 2)
        print(name, times[name], flush=True)
    found = {"toolchain": facts(), "gpus": gpus, "cold seconds": times}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for counts in count_agreements(gpus, options.starts):
        found |= counts
        print(counts, flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
