"""Steps of whole models: eager, with `ops.patch`, with Liger's one line, compiled, and both.

Models of transformers with random weights and few layers of the public width, in bfloat16; the
whole UNet of Stable Diffusion 1.5 in float16.
Inference is timed by replays of CUDA graphs, training by events, with all arms in turn. Liger
changes functions of the process: it comes last, in turn with the patched model. With --losses, a
small Llama is trained as well, eager, patched, and eager with another order of summation. With
--optimize, `tuner.optimize` gets a step of each model as it is written, and this budget; more
images, for which the device does not wait for the host. Usage:

    python benchmarks/model_steps.py --out FILE [--models llama qwen2 siglip unet] [--jobs JOB ...]
        [--seconds 1.5] [--plain] [--losses] [--optimize 2m]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from interleaved import capture_graph, compare_to_ops  # noqa: E402
from matmul_tasks import facts  # noqa: E402

import tuner  # noqa: E402
from tuner import ops  # noqa: E402

Call = Callable[[], Any]
#: Samples of an arm at least, and at most.
_FEWEST, _MOST = 7, 60


@dataclass(frozen=True)
class Subject:
    """A model and its inputs."""

    build: Callable[[], Any]
    #: By job: batch and tokens, or batch and 0 for images.
    jobs: dict[str, tuple[int, int]]
    #: What Liger's function is called; empty where it has none.
    liger: str = ""
    #: Batch and tokens of a training step; none for encoders.
    train: tuple[int, int] | None = None
    dtype: torch.dtype = torch.bfloat16
    #: Batch and tokens of the step that `tuner.optimize` gets.
    optimized: tuple[int, int] = (4, 1000)


def language(name: str, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        config = getattr(transformers, f"{name}Config")(
            max_position_embeddings=8192, attn_implementation="sdpa", num_hidden_layers=4, **sizes
        )
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return build


def siglip() -> Any:
    import transformers

    config = transformers.SiglipVisionConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=6, num_attention_heads=16,
        image_size=384, patch_size=14, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.SiglipVisionModel(config)


def unet() -> Any:
    """Its default sizes are those of Stable Diffusion 1.5, but for the text's."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(cross_attention_dim=768)


_IMAGES = {"1 image": (1, 0), "8 images": (8, 0)}
_PASSES = {"1 x 4096": (1, 4096), "4 x 1000": (4, 1000), "32 x 1": (32, 1)}
SUBJECTS = {
    "llama": Subject(
        language("Llama", hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                 num_key_value_heads=8, vocab_size=128256),
        _PASSES, "apply_liger_kernel_to_llama", (1, 4096),
    ),
    "qwen2": Subject(
        language("Qwen2", hidden_size=3584, intermediate_size=18944, num_attention_heads=28,
                 num_key_value_heads=4, vocab_size=152064),
        _PASSES, "apply_liger_kernel_to_qwen2", (1, 4096),
    ),
    "siglip": Subject(siglip, _IMAGES, optimized=(64, 0)),
    "unet": Subject(unet, _IMAGES, dtype=torch.float16, optimized=(24, 0)),
}  # fmt: skip


def make(subject: Subject) -> Any:
    torch.manual_seed(3)
    with torch.device("cuda"):
        return subject.build().to(subject.dtype).eval()


def make_inputs(model: Any, sizes: tuple[int, int]) -> dict[str, Any]:
    torch.manual_seed(5)
    batch, tokens = sizes
    if hasattr(model, "conv_in"):
        draw = partial(torch.randn, device="cuda", dtype=model.dtype)
        return {"sample": draw(batch, 4, 64, 64), "timestep": torch.tensor(500.0, device="cuda"),
                "encoder_hidden_states": draw(batch, 77, 768)}  # fmt: skip
    if not tokens:
        size = model.config.image_size
        return {"pixel_values": torch.randn(batch, 3, size, size, device="cuda").bfloat16()}
    ids = torch.randint(0, 32000, (batch, tokens), device="cuda")
    return {"input_ids": ids, "use_cache": False}


def result_of(found: Any) -> torch.Tensor:
    name = next(name for name in ("logits", "last_hidden_state", "sample") if name in found)
    result: torch.Tensor = found[name]
    return result


def in_turn(calls: dict[str, Call], seconds: float) -> dict[str, Any]:
    """Median milliseconds of each call, and the ratio over `ops` with its interval."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    began, at = time.monotonic(), 0
    while at < _FEWEST or (time.monotonic() - began < seconds * len(calls) and at < _MOST):
        for name in list(calls) if at % 2 else list(calls)[::-1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            calls[name]()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
        at += 1
    ratios = compare_to_ops(times)
    return {name: {"ms": statistics.median(each), **ratios[name]} for name, each in times.items()}


def infer(models: dict[str, Any], inputs: dict[str, Any], seconds: float) -> dict[str, Any]:
    def call(model: Any) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return model(**inputs)

        return run

    calls = {name: call(model) for name, model in models.items()}
    firsts = {name: result_of(run()).float() for name, run in calls.items()}
    scale = firsts["ops"].norm()
    graphs = {name: capture_graph(run, lambda: None) for name, run in calls.items()}
    apart = {name: float((each - firsts["ops"]).norm() / scale) for name, each in firsts.items()}
    del firsts
    return {"apart from ops": apart, "arms": in_turn(graphs, seconds)}


def train(models: dict[str, Any], ids: torch.Tensor, seconds: float) -> dict[str, Any]:
    def call(model: Any) -> Call:
        model.train()

        def run() -> torch.Tensor:
            loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            model.zero_grad()
            return loss.detach()

        return run

    calls = {name: call(model) for name, model in models.items()}
    losses, peaks = {}, {}
    for name, run in calls.items():
        losses[name] = float(run())
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        peaks[name] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)
    return {"losses": losses, "peak GiB": peaks, "arms": in_turn(calls, seconds)}


def run_jobs(subject: Subject, models: dict[str, Any], seconds: float, show: str) -> dict[str, Any]:
    some, found = next(iter(models.values())), {}
    jobs = subject.jobs | ({"training": subject.train} if subject.train else {})
    for job, sizes in jobs.items():
        inputs = make_inputs(some, sizes)
        if job == "training":
            found[job] = train(models, inputs["input_ids"], seconds)
        else:
            found[job] = infer(models, inputs, seconds)
        arms = "  ".join(f"{name} {arm['ms']:.3f}" for name, arm in found[job]["arms"].items())
        print(f"{show} {job}: {arms}", flush=True)
    return found


_SMALL = Subject(
    language("Llama", hidden_size=1024, intermediate_size=2816, num_attention_heads=16,
             num_key_value_heads=4, vocab_size=32000), {},
)  # fmt: skip
#: Steps of training, batches that are repeated, and sequences and tokens of a batch.
_STEPS, _BATCHES, _BATCH = 200, 8, (8, 512)


def learn(patched: bool, parts: int) -> list[float]:
    """Losses of steps of AdamW in bfloat16; the gradients of a batch are summed over its parts."""
    model = make(_SMALL).train()
    if patched:
        ops.patch(model)
    torch.manual_seed(7)
    batches = [torch.randint(0, 32000, _BATCH, device="cuda") for _ in range(_BATCHES)]
    optimizer, losses = torch.optim.AdamW(model.parameters(), 3e-4), []
    for step in range(_STEPS):
        total = 0.0
        for ids in batches[step % _BATCHES].chunk(parts):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def compare_losses() -> dict[str, Any]:
    """How far the losses of training are from those of eager torch, on average and at most."""
    plain = learn(False, 1)
    found: dict[str, Any] = {"first": plain[0], "last": plain[-1]}
    for name, arm in (("ops", (True, 1)), ("eager in two parts", (False, 2))):
        gaps = [abs(one - other) for one, other in zip(learn(*arm), plain, strict=True)]
        found[name] = {"mean": statistics.fmean(gaps), "most": max(gaps)}
    return found


def optimize(subject: Subject, budget: str) -> dict[str, Any]:
    """What `tuner.optimize` predicts and measures, and its text."""
    model = make(subject)
    inputs = make_inputs(model, subject.optimized)

    def step() -> None:
        with torch.no_grad():
            model(**inputs)

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = tuner.optimize(step, budget=budget, tables=folder, progress=False)
    print(found, flush=True)
    ends = found.comparison.measured.interval
    return {"seconds": round(time.monotonic() - began, 1), "predicted saving": found.predicted,
            "measured saving": 1 - found.comparison.measured.ratio,
            "interval": ends and [1 - each for each in ends[::-1]],
            "ships": found.comparison.ships, "text": str(found).splitlines()}  # fmt: skip


def limit(subject: Subject, jobs: list[str] | None) -> Subject:
    """A subject with some of its jobs; all without names."""
    if jobs is None:
        return subject
    kept = {name: sizes for name, sizes in subject.jobs.items() if name in jobs}
    return replace(subject, jobs=kept, train=subject.train if "training" in jobs else None)


def judge(subject: Subject, seconds: float, compiled: bool, name: str) -> dict[str, Any]:
    models = {"eager": make(subject), "ops": make(subject)}
    replaced = ops.patch(models["ops"])
    print(replaced, flush=True)
    found: dict[str, Any] = {"replaced": str(replaced).splitlines()}
    if compiled:
        models["compile"], models["ops+compile"] = make(subject), make(subject)
        ops.patch(models["ops+compile"])
        for arm in ("compile", "ops+compile"):
            models[arm] = torch.compile(models[arm])
    found["jobs"] = run_jobs(subject, models, seconds, name)
    if subject.liger:
        from liger_kernel import transformers as liger

        models = {"ops": models["ops"], "liger": make(subject)}
        getattr(liger, subject.liger)(
            model=models["liger"], fused_linear_cross_entropy=False, cross_entropy=False
        )
        found["liger"] = run_jobs(subject, models, seconds, name)
    found["report"] = str(ops.report()).splitlines()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--jobs", nargs="*", help="some jobs of these models")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--plain", action="store_true", help="without compiled arms")
    parser.add_argument("--losses", action="store_true", help="train a small model")
    parser.add_argument("--optimize", metavar="BUDGET", help="instead of the arms")
    options = parser.parse_args()
    result: dict[str, Any] = {"toolchain": facts(), "models": {}}
    if options.losses:
        result["losses"] = compare_losses()
        print(result["losses"], flush=True)
    # Models of one class are compiled apart, each for several shapes.
    torch._dynamo.config.recompile_limit = 64
    for name in options.models:
        try:
            result["models"][name] = (
                optimize(SUBJECTS[name], options.optimize)
                if options.optimize
                else judge(
                    limit(SUBJECTS[name], options.jobs), options.seconds, not options.plain, name
                )
            )
        except Exception as error:
            result["models"][name] = {"fault": f"{type(error).__name__}: {error}"[:500]}
            print(name, result["models"][name], flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
