"""The same bits of a row at every batch size: are they, and what does that cost?

Four steps, each in processes of its own. `tune` tunes the ranges below twice on one device: for the
same bits, and freely. `check` runs in eight processes at once: through `tuner.ops`, 64 rows of
one seed are put among others at 60 sizes, twice and each time at other places, and the bits of the
outputs of each must have one digest in all. `time` launches the config of each table, cuBLAS or
torch, and for products one fixed tile of 128, interleaved (interleaved.py). `model` compares the
logits of four layers of a Llama, patched for the same bits, alone and in batches. Usage:

    python benchmarks/numerics.py --out OUT [--trials 24] [--searches 3] [--minutes 6]

Writes OUT/numerics.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from math import exp, log
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

BATCH_INVARIANT = "batch_invariant"
_TYPE, _MOST = {"dtype": "bfloat16"}, 4096
#: The model: its hidden size, that of its MLP, its heads, layers, vocabulary, and tokens of a row.
HIDDEN, INNER, HEADS, LAYERS, VOCABULARY, TOKENS = 1024, 2816, 8, 4, 1024, 32
_BATCHES = (1, 2, 3, 5, 8, 16, 33, 64, 128)
#: Of attention apart from the model.
PREFILL = 1024
#: Experts, how many a token has, hidden size and that of the experts.
EXPERTS, TOP_K, MOE_HIDDEN, MOE_INNER = 64, 8, 2048, 768
_LINEAR = {"epilogue": "none", "bias": False, **_TYPE}
_MOE = {"experts": EXPERTS, "top_k": TOP_K, "hidden": MOE_HIDDEN, "intermediate": MOE_INNER}
#: Kernel, the dim that counts rows, its largest size, and the other dims.
RANGES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "matmul": ("matmul", "M", _MOST, {"N": 4096, "K": 4096, **_TYPE}),
    "linear": ("linear", "M", _MOST, {"N": HIDDEN, "K": HIDDEN, **_LINEAR}),
    "rms_norm": ("rms_norm", "rows", _MOST, {"cols": HIDDEN, **_TYPE}),
    "softmax": ("softmax", "rows", _MOST, {"cols": 4096, **_TYPE}),
    "attention": (
        "attention", "batch", 16,
        {"heads": HEADS, "sequence": PREFILL, "head_dim": HIDDEN // HEADS, "causal": True, **_TYPE},
    ),
    "paged_decode": (
        "paged_decode", "sequences", 256,
        {"q_heads": 32, "kv_heads": 8, "keys": 2048, "page_size": 16, "head_dim": 128, **_TYPE},
    ),
    "moe gate_up_silu": ("moe_matmul", "tokens", _MOST, {**_MOE, "gemm": "gate_up_silu", **_TYPE}),
    "moe down": ("moe_matmul", "tokens", _MOST, {**_MOE, "gemm": "down", **_TYPE}),
}  # fmt: skip
#: What the model needs besides.
OF_MODEL: list[tuple[str, str, int, dict[str, Any]]] = [
    ("linear", "M", _MOST, {"N": 3 * HIDDEN, "K": HIDDEN, **_LINEAR}),
    ("linear", "M", _MOST, {"N": INNER, "K": HIDDEN, **_LINEAR, "epilogue": "swiglu"}),
    ("linear", "M", _MOST, {"N": HIDDEN, "K": INNER, **_LINEAR}),
    (
        "attention",
        "batch",
        _MOST // TOKENS,
        {"heads": HEADS, "sequence": TOKENS, "head_dim": HIDDEN // HEADS, "causal": True, **_TYPE},
    ),
    ("add_norm", "rows", _MOST, {"cols": HIDDEN, "kind": "rms_norm", "to": "same", **_TYPE}),
]
PRODUCTS = ("matmul", "linear")
SIZES, PROCESSES, SEED = 60, 8, 11
_SAMPLES = 64
TIMED = (1, 4, 16, 33, 64, 128, 300, 1024, 2048, 4096)
_PAIRS, _LOAD_S, _FEW = 40, 0.05, 64


# -- tune ------------------------------------------------------------------------------------------
def tune(options: argparse.Namespace) -> dict[str, Any]:
    """Tune all ranges into OUT/batch_invariant, and those that are timed into OUT/any."""
    seconds = {}
    for kind, share in ((BATCH_INVARIANT, 0.7), ("any", 0.3)):
        ranges = [*RANGES.values(), *(OF_MODEL if kind == BATCH_INVARIANT else ())]
        config = {
            "version": 1,
            "database": {"url": f"sqlite:///{options.out}/tuner.db"},
            "paths": {"results": f"{options.out}", "tables": f"{options.out}/{kind}"},
            "measure": {"numerics": kind},
            "campaigns": {
                "ranges": {
                    "targets": ["cuda"],
                    "wall": f"{share * options.minutes}m",
                    "budget": {"trials": options.trials},
                    "tasks": [
                        {
                            "kernel": kernel,
                            "workloads": [dims],
                            "ranges": {dim: f"1..{most}"},
                            "coverage": {"searches": options.searches, "held_out": 0},
                        }
                        for kernel, dim, most, dims in ranges
                    ],
                }
            },
        }
        file = options.out / f"{kind}.yaml"
        file.write_text(json.dumps(config))
        seconds[kind] = run_timed(options, "run", "ranges", file)
        run_timed(options, "export", "-o", options.out / kind, file)
    return seconds


def run_timed(options: argparse.Namespace, *command: Any) -> float:
    import time

    began, (*words, file) = time.monotonic(), command
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *map(str, words), "-c", str(file)],
        cwd=options.out, env={**os.environ, "TUNER_TABLES": ""},
    )  # fmt: skip
    print(f"tuner {words[0]} ended with {done.returncode}", flush=True)
    return round(time.monotonic() - began, 1)


# -- check -----------------------------------------------------------------------------------------
def draw(*shape: int, seed: int, scale: float = 1.0) -> Any:
    import torch

    source = torch.Generator("cuda").manual_seed(seed)
    made = torch.randn(shape, generator=source, device="cuda")
    return (made * scale).bfloat16()


Call = Callable[[int, Any, Any, int], Any]


def callers() -> Iterator[tuple[str, int, int, Call]]:
    """Of each family its largest size, the number of its sample rows, and what gives the outputs of
    some of these at places among `size` rows, of which the others are of a seed."""
    import torch

    from tuner import ops

    def among(samples: Any, size: int, places: Any, seed: int) -> Any:
        rows = draw(size, *samples.shape[1:], seed=seed)
        rows[places] = samples
        return rows

    x, w = draw(_SAMPLES, 4096, seed=SEED), draw(4096, 4096, seed=SEED, scale=1 / 64)
    yield "matmul", _MOST, _SAMPLES, lambda n, at, no, s: ops.matmul(among(x[no], n, at, s), w)[at]
    h, v = draw(_SAMPLES, HIDDEN, seed=SEED), draw(HIDDEN, HIDDEN, seed=SEED, scale=1 / 32)
    yield "linear", _MOST, _SAMPLES, lambda n, at, no, s: ops.linear(among(h[no], n, at, s), v)[at]
    weight = draw(HIDDEN, seed=SEED + 1)
    yield (
        "rms_norm", _MOST, _SAMPLES,
        lambda n, at, no, s: ops.rms_norm(among(h[no], n, at, s), (HIDDEN,), weight, 1e-6)[at],
    )  # fmt: skip
    yield (
        "softmax",
        _MOST,
        _SAMPLES,
        lambda n, at, no, s: ops.softmax(among(x[no], n, at, s), -1)[at],
    )
    qkv = [draw(2, HEADS, PREFILL, HIDDEN // HEADS, seed=SEED + each) for each in range(3)]

    def attend(size: int, at: Any, no: Any, seed: int) -> Any:
        given = (among(each[no], size, at, seed + which) for which, each in enumerate(qkv))
        return ops.attention(*given, is_causal=True)[at]

    yield "attention", RANGES["attention"][2], 2, attend
    dims = RANGES["paged_decode"][3]
    pages, most = dims["keys"] // dims["page_size"], RANGES["paged_decode"][2]
    shape = (most * pages, dims["page_size"], dims["kv_heads"], dims["head_dim"])
    query = draw(_SAMPLES, dims["q_heads"], dims["head_dim"], seed=SEED)
    own = [draw(pages, *shape[1:], seed=SEED + each) for each in (1, 2)]
    caches = [draw(*shape, seed=SEED + each) for each in (3, 4)]

    def decode(size: int, at: Any, no: Any, seed: int) -> Any:
        source = torch.Generator("cuda").manual_seed(seed)
        order = torch.randperm(size * pages, generator=source, device="cuda")
        table = order.view(size, pages).int()
        for cache, sample in zip(caches, own, strict=True):
            cache[table[at].long()] = sample
        lengths = torch.full((size,), dims["keys"] - 100, dtype=torch.int32, device="cuda")
        lengths[at] += 100
        given = among(query[no], size, at, seed), *(each[: size * pages] for each in caches)
        return ops.paged_attention(*given, table, lengths)[at]

    yield "paged_decode", most, _SAMPLES, decode
    token = draw(_SAMPLES, MOE_HIDDEN, seed=SEED)
    up = draw(EXPERTS, 2 * MOE_INNER, MOE_HIDDEN, seed=SEED, scale=MOE_HIDDEN**-0.5)
    down = draw(EXPERTS, MOE_HIDDEN, MOE_INNER, seed=SEED, scale=MOE_INNER**-0.5)

    def choose(size: int, seed: int) -> tuple[Any, Any]:
        source = torch.Generator("cuda").manual_seed(seed)
        found = torch.rand(size, EXPERTS, generator=source, device="cuda").topk(TOP_K)
        return found.indices.int(), found.values / TOP_K

    chosen = choose(_SAMPLES, SEED)

    def route(size: int, at: Any, no: Any, seed: int) -> Any:
        ids, shares = choose(size, seed)
        ids[at], shares[at] = chosen[0][no], chosen[1][no]
        return ops.moe(among(token[no], size, at, seed), up, down, shares, ids)[at]

    yield "moe", _MOST, _SAMPLES, route


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Of one process: the digests of each sample row at 60 sizes, twice, and each time at another
    place."""
    import torch

    from tuner import ops

    found: dict[str, Any] = {}
    rng = random.Random(options.process)
    for name, most, count, call in callers():
        spread = {round(exp(rng.uniform(0, log(most)))) for _ in range(4 * SIZES)} - {1, most}
        sizes = [1, *sorted(rng.sample(sorted(spread), min(SIZES - 2, len(spread)))), most]
        digests: list[set[str]] = [set() for _ in range(count)]
        calls = 0
        with ops.numerics(BATCH_INVARIANT), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for size in sizes * 2:
                for first in range(0, count, size):
                    some = range(first, min(first + size, count))
                    at, no = torch.tensor(rng.sample(range(size), len(some))), torch.tensor(some)
                    rows = call(size, at.cuda(), no.cuda(), rng.randrange(2**31)).cpu()
                    for which, row in zip(some, rows, strict=True):
                        bits = row.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                        digests[which].add(hashlib.sha256(bits).hexdigest()[:16])
                    calls += 1
            runs = {use.implementation for use in ops.report() if use.calls}
        found[name] = {
            "sizes": len(sizes), "calls": calls, "runs": sorted(runs),
            "digests": [sorted(each) for each in digests],
            "warnings": sorted({f"{each.message}"[:160] for each in warned})[:3],
        }  # fmt: skip
    return found


# -- time ------------------------------------------------------------------------------------------
def launch_of(kernel: Any, workload: Any, config: Any, tensors: dict[str, Any]) -> Any:
    """What launches a config, its outputs and work space allocated."""
    import torch

    more = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    made = {name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype), device="cuda")
            for name, each in more.items()}  # fmt: skip
    launches = kernel.launches(workload, config, {**tensors, **made})

    def launch() -> None:
        for each in launches:
            each.fn[each.grid](*each.args, **each.kwargs)

    return launch


def fixed_tile(kernel: Any, workload: Any, config: dict[str, Any]) -> dict[str, Any]:
    """One tile of 128 x 128 x 64 for all sizes, with everything else as the config has it."""
    fixed = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    plain = {"SPLIT_K": 1, "GROUP_M": 8, "loads": "pointer"}
    return {name: {**fixed, **plain}.get(name, each) for name, each in config.items()}


def time_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The config for the same bits over the free one, torch's function, and the fixed tile."""
    import torch
    from interleaved import judged

    from search_spaces import registry
    from search_spaces.records import Workload
    from tuner import runtime

    tables = {kind: [runtime.read(each) for each in sorted((options.out / kind).glob("*.json"))]
              for kind in (BATCH_INVARIANT, "any")}  # fmt: skip
    found = []
    for name, (family, dim, most, dims) in RANGES.items():
        kernel = registry.load(family)
        for size in [each for each in TIMED if each <= most]:
            workload = Workload.from_mapping({**dims, dim: size})
            row: dict[str, Any] = {"range": name, dim: size}
            found.append(row)
            entries = {}
            for kind, of_kind in tables.items():
                table = next(each for each in of_kind if each.kernel == family)
                hit = table.find(workload.as_dict())
                entries[kind] = hit.entry if hit is not None else None
            if None in entries.values():
                row["missing"] = [kind for kind, each in entries.items() if each is None]
                continue
            configs = {kind: dict(each.config) for kind, each in entries.items()}
            row["configs"] = configs
            tensors = dict(kernel.make_inputs(workload, 7, "cuda"))
            own = launch_of(kernel, workload, configs[BATCH_INVARIANT], tensors)
            others = {"free config": launch_of(kernel, workload, configs["any"], tensors)}
            baselines = kernel.baselines(workload)
            torchs = baselines.get("grouped_mm", baselines["eager"])
            others["torch"] = lambda b=torchs, t=tensors: b(t)
            if family in PRODUCTS:
                fixed = fixed_tile(kernel, workload, configs[BATCH_INVARIANT])
                others["fixed"] = launch_of(kernel, workload, fixed, tensors)
            for other, call in others.items():
                try:
                    result = judged(own, call, lambda: None, _PAIRS, load_s=_LOAD_S)
                except Exception as error:
                    row[other] = f"{type(error).__name__}: {error}"[:200]
                    continue
                row["us"] = result["own_us"]
                row[f"{other}_us"] = result["tuned_us"]
                row[other] = 1 / result["speedup"]
            # The faster of the free config and torch.
            row["free"] = min(row[e] for e in ("free config", "torch") if isinstance(row[e], float))
            torch.cuda.empty_cache()
            print(row["range"], size, {each: row.get(each) for each in ("us", *others)}, flush=True)
    return found


# -- model -----------------------------------------------------------------------------------------
def run_model(options: argparse.Namespace) -> dict[str, Any]:
    """Logits of four layers, alone and in batches, with and without the same bits."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tuner import ops

    torch.manual_seed(SEED)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=VOCABULARY,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().bfloat16().eval()
    ids = torch.randint(VOCABULARY, (_BATCHES[-1] + 1, TOKENS), device="cuda")

    def compare() -> dict[str, Any]:
        with torch.no_grad():
            alone = model(input_ids=ids[:1], use_cache=False).logits[0]
            found = {}
            for batch in _BATCHES:
                for at in {0, batch // 2, batch - 1}:
                    mixed = ids[1 : batch + 1].clone()
                    mixed[at] = ids[0]
                    logits = model(input_ids=mixed, use_cache=False).logits[at]
                    found[f"{batch} at {at}"] = int((logits != alone).sum())
        return {"differing logits": found, "of": alone.numel()}

    facts: dict[str, Any] = {"torch": compare()}
    ops.patch(model)
    facts["patched"] = compare()
    ops.unpatch(model)
    ops.patch(model, numerics=BATCH_INVARIANT)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        facts[BATCH_INVARIANT] = compare()
    facts["warnings"] = sorted({f"{each.message}"[:200] for each in warned})
    with ops.numerics(BATCH_INVARIANT):
        facts["runs"] = [f"{u.operator} {u.workload}: {u.implementation}" for u in ops.report()]
    return facts


# -- all -------------------------------------------------------------------------------------------
def sum_up(checked: list[dict[str, Any]], timed: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the issue."""
    found: dict[str, Any] = {"bits": {}, "over the free winner": {}, "products of at most 64": {}}
    for name in checked[0]:
        runs = [each[name] for each in checked]
        found["bits"][name] = {
            "samples": len(runs[0]["digests"]),
            "samples of one digest": sum(
                len({bits for each in of_sample for bits in each}) == 1
                for of_sample in zip(*(run["digests"] for run in runs), strict=True)
            ),
            "calls": sum(run["calls"] for run in runs),
            "runs": sorted({each for run in runs for each in run["runs"]}),
            "warnings": runs[0]["warnings"],
        }
    rates = [row for row in timed if isinstance(row.get("free"), float)]
    for name in RANGES:
        own = [row["free"] for row in rates if row["range"] == name]
        if own:
            found["over the free winner"][name] = round(geometric_mean(own), 3)
    if rates:
        found["over the free winner"]["all"] = round(geometric_mean(r["free"] for r in rates), 3)
    for other in ("torch", "fixed"):
        few = {f"{row['range']} {row['M']}": round(row[other], 3) for row in timed
               if row["range"] in PRODUCTS and row["M"] <= _FEW and isinstance(row.get(other), float)}  # noqa: E501  # fmt: skip
        if few:
            few["geometric mean"] = round(geometric_mean(few.values()), 3)
        found["products of at most 64"][f"over {other}"] = few
    return found


STEPS = {"check": check, "time": time_all, "model": run_model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6, help="of tuning, at most")
    parser.add_argument("--step", choices=STEPS, help="one step, in this process")
    parser.add_argument("--process", type=int, default=0)
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step:
        file = options.out / f"{options.step}-{options.process}.json"
        file.write_text(json.dumps(STEPS[options.step](options)))
        return
    from matmul_tasks import facts

    result: dict[str, Any] = {"toolchain": facts(), "seconds": tune(options)}
    tables = {"TUNER_TABLES": f"{options.out / BATCH_INVARIANT}"}
    own = [sys.executable, __file__, "--out", str(options.out), "--step"]

    def start(step: str, process: int = 0) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*own, step, "--process", f"{process}"],
                                env={**os.environ, **tables})  # fmt: skip

    def read(step: str, process: int = 0) -> Any:
        file = options.out / f"{step}-{process}.json"
        return json.loads(file.read_text()) if file.exists() else None

    for each in [start("check", process) for process in range(PROCESSES)]:
        each.wait()
    for step in ("model", "time"):
        start(step).wait()
    checked = [found for process in range(PROCESSES) if (found := read("check", process))]
    result |= {"processes": len(checked), **sum_up(checked, read("time") or [])}
    result["model"] = read("model")
    print(json.dumps(result, indent=1))
    result["timed"] = read("time")
    (options.out / "numerics.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
